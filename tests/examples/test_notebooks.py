"""The notebooks run from their first cell to their last, with fewer epochs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def code(name: str) -> list[str]:
    cells = json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def shorter(cell: str) -> str:
    cell = re.sub(r'"?epochs"?(=|: )(\d+)', lambda m: m[0].replace(m[2], str(max(1, int(m[2]) // 20))), cell)
    return re.sub(r"vertices=(\d[\d_]*)", lambda m: f"vertices={max(300, int(m[1]) // 20)}", cell)


def test_there_are_four() -> None:
    assert len(NOTEBOOKS) == 4


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_all_cells_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for cell in code(name):
        exec(compile(shorter(cell), name, "exec"), namespace)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_all_cells_run_in_full(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for cell in code(name):
        exec(compile(cell, name, "exec"), namespace)
