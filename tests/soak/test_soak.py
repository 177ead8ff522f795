"""Faults of several kinds on two ranks, and (slow) every kind once, on three layouts; `make soak` draws hundreds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cases import CASES, Case
from compared import differences, predictions
from disturbed_runs import disturbed
from drawn_faults import KINDS, DrawnRun, Fault, draw
from leftovers import MARK, clear, drafts, end_orphans

from soak import soak


def case(config: str, layout: str) -> Case:
    return next(one for one in CASES if (one.config, one.layout) == (config, layout))


ALONE = case("deep", "vertex=1")
RUNS = (
    DrawnRun(
        0,
        case("deep", "vertex=2"),
        (
            Fault("EIO", "manifest", 0, 2),
            Fault("SIGSTOP", "train", 1, 5, 0.7),
            Fault("SIGTERM", "train", 1, 9, 0.4),
            Fault("SIGKILL", "start", 1, 10, 0.6),
            Fault("SIGKILL", "recovery", 0, 11),
        ),
        {2: "flipped"},
    ),
    DrawnRun(
        1,
        ALONE,
        (
            Fault("ENOSPC", "metrics", 0, 1),
            Fault("pause", "train", 0, 3, 0.5),
            Fault("launcher SIGKILL", "train", 0, 7, 0.2),
            Fault("memory", "evaluate", 0, 10, 0.9),
            Fault("SIGKILL", "shard", 0, 13),
            Fault("SIGTERM, SIGKILL", "train", 0, 15, 0.4),
        ),
        {2: "cut"},
    ),
    DrawnRun(
        2,
        case("links", "time=2,temporal=carry"),
        (
            Fault("launcher SIGTERM", "train", 0, 4, 0.6),
            Fault("frozen", "train", 1, 8, 0.3),
            Fault("launcher SIGINT", "train", 1, 12, 0.8),
            Fault("SIGSTOP", "summary", 0, 14),
        ),
        {2: "no manifest"},
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("soak")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("runs", [RUNS[:1], pytest.param(RUNS, marks=pytest.mark.slow)], ids=["one", "all"])
def test_nothing_is_lost(runs: tuple[DrawnRun, ...], tmp_path: Path) -> None:
    tally = soak(runs, tmp_path, jobs=2)
    assert tally.sound, "\n".join(tally.lines())
    assert tally.equal == len(runs)
    assert set(tally.fired) == {fault.kind for run in runs for fault in run.faults} | {"damage"}
    assert runs != RUNS or set(tally.fired) == set(KINDS)
    assert sum(tally.fired.values()) == sum(len(run.faults) + len(run.damages) for run in runs)


@pytest.fixture(scope="module")
def twin(folder: Path) -> Path:
    """An undisturbed run."""
    assert soak([DrawnRun(0, ALONE, ())], folder).equal == 1
    return folder / f"twin-{ALONE.name}" / "run"


@pytest.mark.timeout(900)
def test_a_fault_that_does_not_come_is_noticed(twin: Path, tmp_path: Path) -> None:
    never = Fault("SIGKILL", "train", 0, ALONE.epochs + 1)
    report = disturbed(DrawnRun(0, ALONE, (never,)), tmp_path / "run", twin)
    assert report.lost[0] == f"did not come: {never}"


def test_what_differs_is_noticed(twin: Path, tmp_path: Path) -> None:
    for name in ("same", "bit", "loss", "shorter", "predicted"):
        shutil.copytree(twin, tmp_path / name)
    assert differences(twin, tmp_path / "same") == []
    last = f"checkpoints/epoch-{ALONE.epochs:06d}/rank-00000.safetensors"
    content = bytearray((twin / last).read_bytes())
    content[-1] ^= 1
    (tmp_path / "bit" / last).write_bytes(content)
    assert any(said.startswith("rank-00000.safetensors: ") for said in differences(twin, tmp_path / "bit"))
    lines = (twin / "metrics.jsonl").read_text().splitlines()
    record = json.loads(lines[3])
    lines[3] = json.dumps({**record, "loss": record["loss"] * (1 + 1e-15)})
    (tmp_path / "loss" / "metrics.jsonl").write_text("\n".join(lines))
    assert [said[:24] for said in differences(twin, tmp_path / "loss")] == ["epoch 4 of metrics.jsonl"]
    (tmp_path / "shorter" / "metrics.jsonl").write_text("\n".join(lines[:-1]))
    assert [said[:14] for said in differences(twin, tmp_path / "shorter")] == ["epochs [1, 2, "]
    table = predictions(twin)
    assert table
    name = min(name for name, column in table.items() if column.dtype == np.float32)
    table[name] = np.nextafter(table[name], np.float32(9))
    np.savez(tmp_path / "predicted-predictions.npz", **table)
    assert differences(twin, tmp_path / "predicted") == [f"{name} of predictions"]


def test_what_is_left_over_is_noticed(tmp_path: Path) -> None:
    assert end_orphans("none", 0.0) == []
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(command, env={**os.environ, MARK: str(tmp_path)}) as process:
        (orphan,) = end_orphans(str(tmp_path), 0.5)
    assert orphan.startswith(f"process {process.pid} ")
    (tmp_path / "trisect-job-1").mkdir()
    (tmp_path / "checkpoints" / ".epoch-000001.draft").mkdir(parents=True)
    assert drafts(tmp_path) == [str(tmp_path / "checkpoints" / ".epoch-000001.draft")]
    assert [Path(path).name for path in clear(tmp_path)] == ["checkpoints", "trisect-job-1"]
    assert clear(tmp_path) == []


def test_a_seed_draws_every_kind_and_faults_that_can_come() -> None:
    runs = list(islice(draw(3), 80))
    assert runs == list(islice(draw(3), 80))
    assert runs != list(islice(draw(4), 80))
    assert {fault.kind for run in runs for fault in run.faults} == set(KINDS) - {"damage"}
    assert {run.case for run in runs} == set(CASES)
    assert any(run.damages for run in runs)
    for run in runs:
        epochs = [fault.epoch for fault in run.faults]
        assert epochs == sorted(set(epochs))
        assert epochs[-1] < run.case.epochs
        assert all(fault.rank < run.case.ranks for fault in run.faults)
