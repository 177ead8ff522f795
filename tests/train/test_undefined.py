"""Measures that have no value: AUC where all rows of a split are of one class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import trisect
from trisect.api.progress import Progress
from trisect.cli.main import run_command


def _graph() -> trisect.Graph:
    """Two classes in training, and one alone in val and test."""
    generator = torch.Generator().manual_seed(0)
    vertices = 24
    src, dst = torch.randint(0, vertices, (2, 80), generator=generator)
    split = torch.arange(vertices) % 3
    y = (torch.arange(vertices) // 3) % 2
    y[split != 0] = 1
    return trisect.Graph.from_edges(
        src,
        dst,
        vertices=vertices,
        x=torch.rand(vertices, 4, generator=generator),
        y=y,
        splits={name: split == k for k, name in enumerate(("train", "val", "test"))},
    )


def _strict(text: str) -> Any:
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize("layout", ["", "vertex=2"])
def test_null_in_the_files_and_said_once(layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = {"epochs": 3, "eval_every": 1, "monitor": "val.auc", "checkpoint_every": 1}
    options = {"layout": layout} if layout else {}
    run = trisect.fit("gcn", _graph(), out=tmp_path / "run", **train, **options)
    said = capsys.readouterr().out
    assert said.count("val auc is undefined (it needs rows of both classes); null stands for it.") == 1
    assert said.count("test auc is undefined") == 1
    assert "train auc is undefined" not in said
    assert run.summary["metrics"]["test"]["auc"] is None
    records = [_strict(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["val"]["auc"] for record in records] == [None] * 3
    assert all(isinstance(record["train"]["auc"], float) for record in records)
    files = [path for path in (tmp_path / "run").rglob("*.json*") if path.is_file()]
    assert {"summary.json", "plan.json", "trace.json", "metrics.jsonl"} <= {path.name for path in files}
    for path in files:
        for text in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            _strict(text)
    # its readers take null: the report, the terminal's watch, and a run that goes on
    assert run_command(["report", str(tmp_path / "run")]) == 0
    assert run_command(["watch", str(tmp_path / "run"), "--terminal"]) == 0
    more = trisect.fit(
        "gcn",
        _graph(),
        out=tmp_path / "run",
        resume=True,
        **{**train, "epochs": 4},
        **options,
    )
    assert len(more.summary["loss"]) == 4


def test_a_loss_that_is_null_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1, live=False) as progress:
        progress.epoch({"epoch": 1, "loss": None, "seconds": 0.1, "val": {"auc": None}})
    shown = capsys.readouterr().out
    assert "val auc is undefined" in shown
    assert "loss nan" in shown
