"""A run that was stopped leaves a summary and a report of the epochs that were done, and no draft."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import trisect
from trisect.api.stopping import conclude_stopped
from trisect.graph.graph import Graph
from trisect.train.recorders import NoRecorder
from trisect.train.run import checkpoint
from trisect.train.run.run_directory import RunDirectory
from trisect.train.run.writer import CheckpointWriter

OPTIONS: dict[str, Any] = {"layers": 2, "hidden": 8, "checkpoint_every": 2, "dropout": 0.3, "epochs": 9}


class CtrlC(NoRecorder):
    """Ctrl-C when an epoch has ended, before anything of it is written."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def epoch(self, record: Mapping[str, Any]) -> None:
        if record["epoch"] == self._epoch:
            raise KeyboardInterrupt


def summary(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "summary.json").read_text()))


def hidden(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.rglob(".*"))


@pytest.mark.parametrize("layout", ["", "vertex=2"])
def test_ctrl_c_leaves_a_summary_and_a_report(
    community: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str
) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        trisect.fit("gcn", community, layout=layout, out=out, recorder=CtrlC(7), **OPTIONS)
    shown = capsys.readouterr().out
    # ranks may be an epoch further than what was heard of them, or have ended
    done = len(RunDirectory.reopen(out).metrics())
    assert done == 6 if not layout else 6 <= done <= 9
    found = summary(out)
    assert found["stopped"]["epoch"] == found["epochs"] == len(found["loss"]) == done
    assert (found["stopped"]["of"], found["stopped"]["signal"]) == (9, "SIGINT")
    assert found["metrics"]["val"] == RunDirectory.reopen(out).metrics()[found["best_epoch"] - 1]["val"]
    assert set(found["baselines"]["val"]) == {"majority", "logistic", "logistic_neighbours"}
    said = f"Stopped by the user after {done} of 9 epochs"
    assert said in shown
    assert said in (out / "report.html").read_text()
    assert f"stopped after {done} of 9 epochs" in (out / "report.html").read_text()
    assert f"Report: {out / 'report.html'}" in shown
    assert f"Summary: {out / 'summary.json'}" in shown
    assert hidden(out) == []

    whole = trisect.fit("gcn", community, layout=layout, out=out, resume=True, **OPTIONS).summary
    straight = trisect.fit("gcn", community, layout=layout, out=tmp_path / "straight", **OPTIONS).summary
    assert summary(out)["stopped"] is None
    assert {key: whole[key] for key in ("loss", "metrics", "best_epoch")} == {
        key: straight[key] for key in ("loss", "metrics", "best_epoch")
    }
    assert tuple(found) == tuple(whole) == tuple(straight)
    for section in ("metrics", "communication", "transfer", "memory", "plan", "seconds_per_epoch"):
        assert tuple(found[section]) == tuple(whole[section])
    assert found["parameters"] == whole["parameters"]
    assert found["communication"]["bytes_per_epoch"] == whole["communication"]["bytes_per_epoch"]
    assert "Stopped by" not in (out / "report.html").read_text()


def test_what_was_not_measured_is_null_and_said(community: Graph, tmp_path: Path) -> None:
    out, said = tmp_path / "run", []
    more = {**OPTIONS, "eval_every": 9, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        trisect.fit("gcn", community, out=out, recorder=CtrlC(4), **more)
    assert summary(out)["metrics"] == {"train": None, "val": None, "test": None}
    conclude_stopped(out, "SIGTERM", said.append)
    assert said[0] == (
        "Stopped by SIGTERM after 3 of 9 epochs; the newest checkpoint is of epoch 2. Nothing was evaluated yet."
    )
    assert said[0] in (out / "report.html").read_text()


def test_nothing_is_said_of_a_run_without_an_epoch_or_one_that_has_ended(community: Graph, tmp_path: Path) -> None:
    said: list[str] = []
    conclude_stopped(tmp_path / "none", "SIGINT", said.append)
    with pytest.raises(KeyboardInterrupt):
        trisect.fit("gcn", community, out=tmp_path / "run", recorder=CtrlC(1), progress=False, **OPTIONS)
    assert not (tmp_path / "run" / "summary.json").exists()
    trisect.fit("gcn", community, out=tmp_path / "whole", progress=False, **OPTIONS)
    before = summary(tmp_path / "whole")
    conclude_stopped(tmp_path / "whole", "SIGINT", said.append)
    assert summary(tmp_path / "whole") == before
    assert said == []


def test_a_run_that_went_on_and_was_stopped_is_no_more_what_it_was(community: Graph, tmp_path: Path) -> None:
    out = tmp_path / "run"
    trisect.fit("gcn", community, out=out, progress=False, **OPTIONS)
    assert (out / "scores.json").exists()
    more = {**OPTIONS, "epochs": 14, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        trisect.fit("gcn", community, out=out, resume=True, recorder=CtrlC(12), **more)
    assert summary(out)["stopped"] == {"epoch": 11, "of": 14, "signal": "SIGINT", "checkpoint": 10}
    assert not (out / "scores.json").exists()
    assert trisect.load(out, community).summary["epochs"] == 11


def test_a_second_ctrl_c_while_a_checkpoint_is_written_leaves_no_draft(
    community: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, released = threading.Event(), threading.Event()
    honest, honest_wait = checkpoint._write_tensors, CheckpointWriter.wait

    def blocked(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
        if path.parent.name == ".epoch-000004.draft":
            reached.set()
            assert released.wait(60)
        return honest(path, tensors)

    def waits(self: CheckpointWriter, patience: float | None = None) -> None:
        if patience is not None:  # after the first Ctrl-C
            assert reached.wait(60)
            raise KeyboardInterrupt
        honest_wait(self, patience)

    monkeypatch.setattr(checkpoint, "_write_tensors", blocked)
    monkeypatch.setattr(CheckpointWriter, "wait", waits)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        trisect.fit("gcn", community, out=out, recorder=CtrlC(5), progress=False, **OPTIONS)
    assert reached.is_set()
    assert hidden(out) == []
    released.set()
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join()
    assert hidden(out) == []
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["epoch-000002"]
    assert summary(out)["stopped"]["checkpoint"] == 2
