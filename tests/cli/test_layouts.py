"""`trisect train --layout …`: local ranks, the result of one process, bytes as by formula, resume to the bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from trisect.cli.main import run_command
from trisect.train import from_config
from trisect.train.outputs import new_data
from trisect.train.processes import launch

CONFIG = """
data: {generate: community, vertices: 300, classes: 3, features: 8, per_class: 10}
model: {name: gcnii, layers: 3, hidden: 8, dropout: 0.3}
task: node-classification
train: {epochs: 6, lr: 0.01, eval_every: 3, checkpoint_every: 3}
"""


def trisect(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "trisect", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


def summary(folder: Path, out: str, *arguments: str) -> dict[str, Any]:
    done = trisect(folder, "train", "c.yaml", "--out", out, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads((folder / out / "summary.json").read_text()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("layouts")
    (path / "c.yaml").write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    return summary(folder, "alone")


@pytest.mark.parametrize("layout", ["vertex=2", "layer=2", "vertex=2,layer=2"])
def test_exact_layouts_have_the_result_of_one(folder: Path, alone: dict[str, Any], layout: str) -> None:
    found = summary(folder, layout, "--layout", layout)
    assert found["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert found["metrics"]["test"]["accuracy"] == pytest.approx(alone["metrics"]["test"]["accuracy"], abs=0.01)
    sent = found["communication"]
    assert sent["bytes_per_epoch"] == sent["formula_bytes_per_epoch"] > 0
    assert len(found["memory"]["peak_rss_bytes"]) == found["world"]
    # what progress shows is what the summary has
    told = [json.loads(line) for line in (folder / layout / "metrics.jsonl").read_text().splitlines()]
    assert {line["sent_bytes"] for line in told} == {sent["bytes_per_epoch"]}
    assert 0 < told[-1]["peak_rss_bytes"] <= max(found["memory"]["peak_rss_bytes"])


def test_another_seed_has_another_result(folder: Path, alone: dict[str, Any]) -> None:
    found = summary(folder, "seed", "--layout", "layer=2", "--set", "train.seed=1")
    assert found["loss"] != pytest.approx(alone["loss"], rel=1e-5)


def test_a_stale_pipeline_resumes_to_the_bit(folder: Path) -> None:
    layout = ["--layout", "layer=2,chunks=3"]
    straight = summary(folder, "straight", *layout)
    summary(folder, "halves", *layout, "--set", "train.epochs=3")
    done = trisect(folder, "train", "c.yaml", "--resume", "--out", "halves", *layout)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "halves" / "summary.json").read_text())["loss"] == straight["loss"]
    for rank in range(2):
        name = f"checkpoints/epoch-000006/rank-{rank:05d}.safetensors"
        one, two = load_file(folder / "straight" / name), load_file(folder / "halves" / name)
        assert one.keys() == two.keys()
        assert any(key.startswith("program.") for key in one)
        assert all(one[key].equal(two[key]) for key in one)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("layer=9", "layout.layer is 9, and the model has"),
        ("vertex=4,chunks=99", "more than the graph's 300 vertices"),
        ("time=4", "layout.time is 4, but the data are one graph, which has no steps; leave time out"),
        ("vertex=2,temporal=carry", "layout.temporal is carry, but the data are one graph"),
        ("vertex=3,layer=9", "layout.layer is 9, and the model has"),
        ("layer=2,chunks=0", "layout.chunks is 0, but must be at least 1"),
        ("vertex=2,wire=int4", "layout.wire is 'int4', but must be one of"),
        ("blocks=0", "layout.blocks is 0, but must be a whole number of at least 1, or auto"),
        ("vertex=2,transport=foo", "layout.transport is 'foo', but must be one of auto, network"),
        ("vertex=301", "layout.vertex × layout.chunks is 301 × 1, more than the graph's 300 vertices"),
        ("vertex=2,vertex=3", "gives vertex twice; give it once"),
        ("", "The layout is '', but must look like vertex=2,layer=2 or be auto"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_before_ranks_start(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, layout: str, said: str
) -> None:
    # on any machine there is room for the ranks, so that it is the layout itself that is refused
    monkeypatch.setattr(launch, "free_bytes", lambda device, bounded: 1 << 50)
    refused(folder, capfd, ["--layout", layout], said)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("train.device=cuda:99", "train.device is 'cuda:99', and this machine has"),
        ("train.device=tpu", "train.device is 'tpu'"),
        ("train.monitor=val.acuracy", "train.monitor is 'val.acuracy', but must be one of"),
        ("train.monitor=accuracy", "train.monitor is 'accuracy', but must look like val.accuracy"),
        ("model.name=cd-gcn", "a dynamic model needs a timeline"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_ranks_start(
    folder: Path, capfd: pytest.CaptureFixture[str], setting: str, said: str
) -> None:
    refused(folder, capfd, ["--layout", "vertex=2", "--set", setting], said)


def test_more_ranks_than_memory_are_refused_before_the_cut(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "free_bytes", lambda device, bounded: 1000 << 20)
    monkeypatch.setattr(from_config.ConfiguredData, "__call__", must_not_cut)
    refused(folder, capfd, ["--layout", "vertex=7"], "The layout needs 7 ranks, and this machine has 1000 MiB")
    launch.require_room(6)
    capfd.readouterr()
    assert run_command(["check", str(folder / "c.yaml"), "--layout", "vertex=7"]) == 2
    assert "The layout needs 7 ranks" in capfd.readouterr().err
    with pytest.raises(AssertionError, match="was cut"):
        run_command(["train", str(folder / "c.yaml"), "--out", str(folder / "refused"), "--layout", "vertex=6"])


@pytest.mark.usefixtures("alone")
def test_predictions_on_more_ranks_than_memory_are_refused_before_the_cut(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "free_bytes", lambda device, bounded: 1000 << 20)
    monkeypatch.setattr(new_data.PredictedData, "__call__", must_not_cut)
    words = ["predict", str(folder / "alone"), "--out", str(folder / "p.npz"), "--layout"]
    assert run_command([*words, "vertex=7"]) == 2
    assert "The layout needs 7 ranks" in capfd.readouterr().err
    with pytest.raises(AssertionError, match="was cut"):
        run_command([*words, "vertex=6"])


def must_not_cut(*given: Any) -> None:
    raise AssertionError("the graph was cut")


def refused(folder: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    capfd.readouterr()
    assert run_command(["train", str(folder / "c.yaml"), "--out", str(folder / "refused"), *words]) == 2
    shown = capfd.readouterr()
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert "ranks:" not in shown.out
    assert not (folder / "refused").exists()


def test_a_world_of_another_size_is_refused(folder: Path) -> None:
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    command = [sys.executable, "-m", "trisect", "train", "c.yaml", "--layout", "vertex=2", "--out", "refused"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "3 were started" in done.stderr
