"""The names of models and tasks, listed once; the registries of both packages must have exactly these.

They stand here, and not with the models, since a configuration is checked before torch is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

ModelName = Literal[
    "gcn",
    "sage",
    "gcnii",
    "resgcn+",
    "gat",
    "gin",
    "cd-gcn",
    "wd-gcn",
    "evolvegcn-o",
    "evolvegcn-h",
    "tm-gcn",
    "recurrent",
]
TaskName = Literal["node-classification", "link-prediction", "edge-classification", "node-regression"]

MODELS: tuple[str, ...] = get_args(ModelName)
TASKS: tuple[str, ...] = get_args(TaskName)


def require_names(kind: str, registered: Iterable[str], names: tuple[str, ...]) -> None:
    """Raise where a registry has other names than this list."""
    different = set(registered) ^ set(names)
    if different:
        raise RuntimeError(f"{kind} {min(different)!r} is either not registered or not listed in config/names.py")
