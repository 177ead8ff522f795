"""Ranks whose newest checkpoint is damaged all go on from the one before it, to the same end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

CONFIG = """
data: {generate: community, vertices: 120, classes: 3, features: 8, per_class: 8}
model: {name: gcn, layers: 2, hidden: 8, dropout: 0.3}
task: node-classification
train: {epochs: 6, checkpoint_every: 2}
layout: {vertex: 2}
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "trisect")


def trisect(folder: Path, *arguments: str, start: tuple[str, ...] = ("-m", "trisect")) -> str:
    """Standard output and error of a command that succeeds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *start, *arguments]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight")
    (folder / "c.yaml").write_text(CONFIG)
    trisect(folder, "train", "c.yaml", "--out", "run")
    return folder / "run"


@pytest.fixture
def damaged(straight: Path, tmp_path: Path) -> Path:
    """A copy of the run; a shard of its newest checkpoint is cut short."""
    shutil.copytree(straight, tmp_path / "run")
    shard = tmp_path / "run" / "checkpoints" / "epoch-000006" / "rank-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-3])
    return tmp_path / "run"


def require_set_aside(run: Path, said: str) -> None:
    assert said.count("is damaged: rank-00001.safetensors") == 1
    assert said.count("Continuing from epoch-000004 instead") == 1
    assert (run / "checkpoints" / "epoch-000006.damaged" / "manifest.json").is_file()


def test_resume_takes_the_one_before_and_ends_as_the_straight_run(straight: Path, damaged: Path) -> None:
    said = trisect(damaged.parent, "train", "--resume", "--out", "run")
    require_set_aside(damaged, said)
    assert "Continuing after epoch 4." in said
    one, two = (json.loads((run / "summary.json").read_text()) for run in (straight, damaged))
    assert one["loss"] == two["loss"]
    assert one["metrics"] == two["metrics"]
    assert len(set(one["loss"])) == 6
    differs = False
    for rank in range(2):
        name = f"rank-{rank:05d}.safetensors"
        first, second = (load_file(run / "checkpoints" / "epoch-000006" / name) for run in (straight, damaged))
        before = load_file(damaged / "checkpoints" / "epoch-000004" / name)
        assert first.keys() == second.keys()
        assert all(first[key].equal(second[key]) for key in first)
        differs |= any(not first[key].equal(before[key]) for key in first)
    assert differs


@pytest.mark.slow
@pytest.mark.parametrize("start", [("-m", "trisect"), TORCHRUN])
def test_predict_takes_the_one_before(straight: Path, damaged: Path, start: tuple[str, ...]) -> None:
    said = trisect(damaged.parent, "predict", "run", "--out", "p.npz", "--layout", "vertex=2", start=start)
    require_set_aside(damaged, said)
    shutil.copytree(straight, damaged.parent / "shorter")
    shutil.rmtree(damaged.parent / "shorter" / "checkpoints" / "epoch-000006")
    outputs = []
    for run in ("shorter", str(straight)):
        trisect(damaged.parent, "predict", run, "--out", "q.npz", "--layout", "vertex=2")
        with np.load(damaged.parent / "q.npz", allow_pickle=False) as file:
            outputs.append(file["probability"])
    with np.load(damaged.parent / "p.npz", allow_pickle=False) as file:
        assert np.array_equal(file["probability"], outputs[0])
        assert not np.array_equal(file["probability"], outputs[1])
