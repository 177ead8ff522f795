"""What the planner says of two papers' systems, and of larger ones: tables and curves, and nothing measured.

`--set write=docs` writes `scaling.md` there, its figures beside it, and the numbers that they are made of.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trisect.errors import ConfigError
from trisect_bench import _paper_layers, _paper_time, _scales
from trisect_bench._scaling_page import charts, page

SECTIONS = ("pipeline", "timeline", "users", "internet")
FOLDER, NUMBERS = "scaling", "numbers.json"


def run(only: str | Sequence[str] = SECTIONS, write: str | None = None, fit: bool = False) -> dict[str, Any]:
    """Work out the figures.

    Args:
        only: some of the sections: pipeline, timeline, users, internet.
        write: a folder (docs) in which the page and its figures are written; needs all sections, or those that are
            there from before.
        fit: instead, find the three constants of the device again, which takes minutes.
    """
    if fit:
        return {"constants": _paper_layers.fit()}
    wanted = [only] if isinstance(only, str) else list(only)
    for name in wanted:
        if name not in SECTIONS:
            raise ConfigError(f"only is {name!r}; choose of {', '.join(SECTIONS)}.")
    numbers: dict[str, Any] = {}
    kept = None if write is None else Path(write, FOLDER, NUMBERS)
    if kept is not None and kept.exists():
        numbers = json.loads(kept.read_text(encoding="utf-8"))
    if "pipeline" in wanted:
        numbers["pipeline"] = {
            "constants": _paper_layers.CONSTANTS,
            "rows": _paper_layers.table(),
            "strong": _paper_layers.strong_scaling(),
            "depth": _paper_layers.depth(),
        }
    if "timeline" in wanted:
        slower = _paper_time.slowness()
        numbers["timeline"] = {
            "slower": slower,
            "scaling": _paper_time.scaling(slower),
            "differences": _paper_time.differences(slower),
            "alternatives": _paper_time.alternatives(slower),
        }
    if "users" in wanted:
        numbers["users"] = _scales.curves()
    if "internet" in wanted:
        numbers["internet"] = _scales.internet()
    numbers = rounded(numbers)
    if kept is not None and write is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
        for name, text in files(numbers).items():
            Path(write, name).write_text(text, encoding="utf-8")
    return numbers


def files(numbers: dict[str, Any]) -> dict[str, str]:
    """Give the page and its figures, by their path."""
    return {"scaling.md": page(numbers), **{f"{FOLDER}/{name}": text for name, text in charts(numbers).items()}}


def rounded(value: Any) -> Any:
    """Give plain data with five digits of each number, and names for keys, as a JSON file has them."""
    if isinstance(value, dict):
        return {str(key): rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def show(result: dict[str, Any]) -> None:
    """Print the page, or what there is of it."""
    print(page(result) if set(SECTIONS) <= set(result) else json.dumps(result, indent=1))
