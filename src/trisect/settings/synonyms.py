"""Names of other libraries for our settings: either is accepted, in Python, YAML and `--set`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trisect.errors import ConfigError

SYNONYMS = {"optimiser": "optimizer", "hidden_channels": "hidden", "num_layers": "layers"}


def with_our_names(options: Mapping[str, Any], where: str | None = None) -> dict[str, Any]:
    """Return options by our names.

    Args:
        where: names the owner of the options, for a ConfigError.

    >>> with_our_names({"hidden_channels": 8, "epochs": 3})
    {'hidden': 8, 'epochs': 3}

    Raises:
        ConfigError: an option is given under both of its names; without `where` a ValueError.
    """
    ours: dict[str, Any] = {}
    for name, value in options.items():
        own = SYNONYMS.get(name, name)
        if own in ours:
            both = f"has both {own} and its other name {_other(own)}; keep one of them"
            raise ValueError(both) if where is None else ConfigError(f"{where} {both}.")
        ours[own] = value
    return ours


def _other(own: str) -> str:
    return next(name for name, ours in SYNONYMS.items() if ours == own)
