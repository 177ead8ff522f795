"""`trisect train` from a configuration to the files of the contract, stopped and continued."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors import safe_open

from trisect.config import load_config
from trisect.data.formats.store import write_directory
from trisect.data.generators.generate import generate
from trisect.train.loop import Trainer
from trisect.train.processes import start
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
    """metrics.jsonl without its times and the memory."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("seconds", "peak_rss_bytes")} for line in lines]


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


def test_resume_begins_a_run_that_is_not_there(trisect, small, tmp_path):
    shown = trisect("train", small, "--resume", "--out", "run")
    assert shown.code == 0
    assert f"There is no run in {tmp_path / 'run'} yet; it begins." in shown.out
    assert len(metrics(tmp_path / "run")) == 6
    assert "Continuing after epoch 6" in trisect("train", small, "--resume", "--out", "run").out


def test_fewer_devices_go_on_under_another_layout(trisect, small):
    assert trisect("train", small, "--out", "run", "--layout", "vertex=2", "--set", "train.epochs=2").code == 0
    shown = trisect("train", "--resume", "--out", "run", "--devices", "1", "--set", "train.epochs=4")
    assert shown.code == 0
    assert "Continuing after epoch 2 under another layout (one rank; until then vertex=2)" in shown.out


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


@pytest.mark.parametrize("layout", ["vertex=1", "layer=2"])
def test_changed_data_are_refused(trisect, small: Path, tmp_path: Path, layout: str):
    made = generate("community", vertices=120, classes=3, features=8, per_class=8, seed=0)
    settings = yaml.safe_load(small.read_text())
    settings["data"] = {"path": str(tmp_path / "graph")}
    small.write_text(yaml.safe_dump(settings))
    write_directory(made, tmp_path / "graph")
    assert trisect("train", small, "--out", "run", "--set", "train.epochs=2").code == 0
    x = np.array(made.x)
    x[7, 1] += 1e-3
    shutil.rmtree(tmp_path / "graph")
    write_directory(replace(made, x=x), tmp_path / "graph")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    more = ("--resume", "--out", "run", "--layout", layout, "--set", "train.epochs=4")
    shown = trisect("train", *more)
    assert shown.code == 2
    assert "The data are not those that" in shown.err
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    shutil.rmtree(tmp_path / "graph")
    write_directory(made, tmp_path / "graph")
    if layout == "vertex=1":
        assert trisect("train", *more).code == 0


@pytest.mark.parametrize(("schedule", "name"), [("cosine", "epochs"), ("plateau", "eval_every")])
def test_what_a_schedule_depends_on_is_not_changed_in_silence(
    trisect, small: Path, tmp_path: Path, schedule: str, name: str
):
    made = trisect("train", small, "--out", "run", "--set", f"train.lr_schedule={schedule}")
    assert made.code == 0
    shown = trisect("train", "--resume", "--out", "run", "--set", f"train.{name}=9")
    assert shown.code == 2
    assert f"train.{name} is 9, but the run in run was made with" in shown.err


def test_a_loss_that_explodes_ends_the_run_and_keeps_the_last_good_checkpoint(trisect, small: Path, tmp_path: Path):
    more = ("--set", "train.checkpoint_every=1", "--set", "train.lr=1e6")
    shown = trisect("train", small, "--out", "run", *more)
    assert shown.code == 1
    assert re.search(r"the loss of epoch 2 is .*, more than 10,000 times .* train\.guard: false\.", shown.err)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["epoch-000001"]
    shown = trisect("train", small, "--out", "off", *more, "--set", "train.guard=false")
    assert "times that of the first epoch" not in shown.err
    assert shown.code == 0


def test_local_ranks_that_share_cores_are_said(trisect, small, monkeypatch):
    monkeypatch.setattr(start, "usable_cores", lambda: 1)
    shown = trisect("train", small, "--set", "train.epochs=1", "--layout", "vertex=2", "--out", "cut")
    assert shown.code == 0, shown.err
    assert "2 ranks share 1 core," in shown.out
    assert "share" not in trisect("train", small, "--set", "train.epochs=1", "--out", "alone").out
