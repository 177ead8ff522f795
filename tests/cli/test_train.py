"""`trisect train` from a configuration to the files of the contract, stopped and continued."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from safetensors import safe_open

from trisect.config import load_config
from trisect.train.loop import Trainer
from trisect.train.run.lock import locked

KEYS = {
    "version",
    "layout",
    "world",
    "epochs",
    "seconds_per_epoch",
    "loss",
    "metrics",
    "communication",
    "transfer",
    "memory",
    "staleness",
    "plan",
}


def metrics(run: Path) -> list[dict]:
    """metrics.jsonl without its times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "seconds" not in key} for line in lines]


def shard(run: Path, epoch: int) -> bytes:
    return (run / "checkpoints" / f"epoch-{epoch:06d}" / "rank-00000.safetensors").read_bytes()


@pytest.mark.parametrize("kind", ["small", "small_timeline"])
def test_the_files_of_a_run(trisect, kind, request, tmp_path):
    config = request.getfixturevalue(kind)
    shown = trisect("train", config, "--out", "run")
    assert shown.code == 0, shown.err
    run = tmp_path / "run"
    epochs = load_config(config).train.epochs
    assert {path.name for path in run.iterdir()} >= {
        "config.yaml",
        "metrics.jsonl",
        "events",
        "checkpoints",
        "summary.json",
        "trace.json",
        "report.html",
    }
    assert [line["epoch"] for line in metrics(run)] == list(range(1, epochs + 1))
    summary = json.loads((run / "summary.json").read_text())
    assert summary.keys() >= KEYS
    assert (summary["world"], summary["epochs"], len(summary["loss"])) == (1, epochs, epochs)
    assert summary["metrics"].keys() == {"train", "val", "test"}
    assert summary["communication"]["by_axis"] == {"vertex": 0, "layer": 0, "time": 0, "weights": 0}
    assert summary["communication"]["bytes_per_epoch"] == 0
    assert 0 < summary["seconds_per_epoch"]["best"] <= summary["seconds_per_epoch"]["median"]
    assert summary["memory"]["peak_rss_bytes"][0] > 1 << 20
    assert summary["transfer"].keys() == {"full_bytes", "sent_bytes"}
    assert summary["plan"].keys() == {"seconds_per_epoch", "bytes_per_epoch", "memory_bytes"}
    assert json.loads((run / "trace.json").read_text())["traceEvents"]
    assert f"Run directory: {Path('run')}" in shown.out
    assert f"epoch {epochs}/{epochs}" in shown.out
    assert "test:" in shown.out


def test_the_resolved_configuration_repeats_the_run(trisect, small, tmp_path):
    assert trisect("train", small, "--out", "first", "--set", "train.seed=3").code == 0
    assert trisect("train", tmp_path / "first" / "config.yaml", "--out", "second").code == 0
    assert metrics(tmp_path / "first") == metrics(tmp_path / "second")
    assert shard(tmp_path / "first", 6) == shard(tmp_path / "second", 6)
    assert trisect("train", small, "--out", "third").code == 0
    assert metrics(tmp_path / "third") != metrics(tmp_path / "first")


def test_every_option_is_in_the_resolved_configuration(trisect, small, tmp_path):
    assert trisect("train", small, "--out", "run").code == 0
    config = load_config(tmp_path / "run" / "config.yaml")
    assert config.data.options["degree"] == 10.0
    assert config.model.options["activation"] == "relu"
    assert "split" in config.task.options


@pytest.mark.parametrize("kind", ["small", "small_timeline"])
def test_stopped_and_continued_equals_straight(trisect, kind, request, tmp_path, monkeypatch):
    """Epoch 3 or 5 is interrupted after the checkpoint before it; what it wrote must be written again, the same."""
    config = request.getfixturevalue(kind)
    epochs = load_config(config).train.epochs
    dropout = ["--set", "model.dropout=0.4", "--set", "train.optimiser=adamw"]
    assert trisect("train", config, "--out", "straight", *dropout).code == 0
    stop_at = epochs - 1
    original = Trainer.evaluate

    def stopping(self, splits, epoch):
        if epoch == stop_at and self.recorder is not None:
            self.recorder.epoch({"epoch": epoch, "loss": 0.0, "seconds": 0.0})  # a line that must not survive
            raise KeyboardInterrupt
        return original(self, splits, epoch)

    monkeypatch.setattr(Trainer, "evaluate", stopping)
    shown = trisect("train", config, "--out", "stopped", *dropout)
    assert shown.code == 130
    assert shown.err == "trisect: Stopped; continue with: trisect train --resume --out stopped\n"
    monkeypatch.setattr(Trainer, "evaluate", original)
    shown = trisect("train", "--resume", "--out", "stopped")
    assert shown.code == 0, shown.err
    assert f"Continuing after epoch {stop_at - 1}." in shown.out
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "straight")
    assert shard(tmp_path / "stopped", epochs) == shard(tmp_path / "straight", epochs)
    # the comparison can fail
    assert trisect("train", config, "--out", "other", "--set", "model.dropout=0.3").code == 0
    assert shard(tmp_path / "other", epochs) != shard(tmp_path / "straight", epochs)


def test_a_finished_run_goes_on(trisect, small, tmp_path):
    assert trisect("train", small, "--out", "straight").code == 0
    assert trisect("train", small, "--out", "short", "--set", "train.epochs=4").code == 0
    assert trisect("train", small, "--out", "short", "--resume").code == 0
    assert metrics(tmp_path / "short") == metrics(tmp_path / "straight")
    assert shard(tmp_path / "short", 6) == shard(tmp_path / "straight", 6)
    first, second = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("straight", "short"))
    assert first["loss"] == second["loss"]
    assert first["metrics"] == second["metrics"]


def test_resuming_a_run_that_is_done_changes_no_parameter(trisect, small, tmp_path):
    assert trisect("train", small, "--out", "run").code == 0
    before = shard(tmp_path / "run", 6)
    assert trisect("train", "--out", "run", "--resume").code == 0
    assert shard(tmp_path / "run", 6) == before


def test_a_run_without_a_checkpoint_starts_again(trisect, small, tmp_path, monkeypatch):
    original = Trainer.evaluate

    def stopping(self, splits, epoch):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "evaluate", stopping)
    assert trisect("train", small, "--out", "run").code == 130
    monkeypatch.setattr(Trainer, "evaluate", original)
    shown = trisect("train", "--resume", "--out", "run")
    assert shown.code == 0
    assert "no checkpoint" in shown.out
    assert len(metrics(tmp_path / "run")) == 6


def test_default_places_and_the_newest_run(trisect, small, tmp_path):
    assert trisect("train", small).code == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"small-\d{8}-\d{6}", run.name)
    shown = trisect("train", small, "--resume", "--set", "train.epochs=8")
    assert shown.code == 0, shown.err
    assert len(metrics(run)) == 8


def test_the_best_epoch_is_in_every_checkpoint(trisect, small, tmp_path):
    assert trisect("train", small, "--out", "run").code == 0
    path = tmp_path / "run" / "checkpoints" / "epoch-000006" / "rank-00000.safetensors"
    with safe_open(path, "pt") as file:
        names = set(file.keys())
    assert any(name.startswith("best.model.") for name in names)
    assert any(name.startswith("optimiser.") for name in names)


def test_auto_is_a_layout_of_one_rank(trisect, small, tmp_path):
    assert trisect("train", small, "--out", "run", "--layout", "auto").code == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["world"] == 1


@pytest.mark.parametrize("layout", ["vertex=1", "vertex=2"])
def test_a_run_that_still_goes_on_is_left_alone(trisect, small: Path, tmp_path: Path, layout: str):
    assert trisect("train", small, "--out", "run").code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with locked(tmp_path / "run"):
        shown = trisect("train", "--resume", "--out", "run", "--layout", layout, "--set", "train.epochs=8")
    assert shown.code == 2
    assert "Another process is writing to run" in shown.err
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
