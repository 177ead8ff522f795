"""Running the command line inside the test process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from trisect.cli.main import run_command


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Trisect = Callable[..., Outcome]


@pytest.fixture
def trisect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trisect:
    """`trisect("train", "x.yaml")` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRISECT_DATA", raising=False)

    def call(*arguments: str | Path) -> Outcome:
        capsys.readouterr()
        code = run_command([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A configuration that trains in a moment."""
    path = tmp_path / "small.yaml"
    settings = {
        "data": {"generate": "community", "vertices": 120, "classes": 3, "features": 8, "per_class": 8},
        "model": {"name": "gcn", "layers": 2, "hidden": 8},
        "task": "node-classification",
        "train": {"epochs": 6, "checkpoint_every": 2, "order": "none"},
    }
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture
def small_timeline(tmp_path: Path) -> Path:
    """The same for a timeline."""
    path = tmp_path / "small-timeline.yaml"
    settings = {
        "data": {"generate": "evolving", "vertices": 60, "steps": 8, "communities": 3, "features": 6},
        "model": {"name": "cd-gcn", "layers": 2, "hidden": 4},
        "task": {"name": "link-prediction", "eval_negatives": 5},
        "train": {"epochs": 4, "checkpoint_every": 2},
    }
    path.write_text(yaml.safe_dump(settings))
    return path
