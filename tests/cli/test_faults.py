"""A run that is stopped, or loses a rank, ends on all ranks, in one sentence, and keeps what was checkpointed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from trisect.train.run.run_directory import RunDirectory

CONFIG = """
data: {generate: community, vertices: 200, classes: 3, features: 8, per_class: 10}
model: {name: gcn, layers: 2, hidden: 8}
task: node-classification
train: {epochs: 1000000, lr: 0.001, eval_every: 10, checkpoint_every: 5, timeout: 5}
"""
# messages above 64 KiB, which go through shared memory
WIDE = """
data: {generate: community, vertices: VERTICES, classes: 3, features: 8, per_class: 10}
model: {name: gcn, layers: 3, hidden: HIDDEN, dropout: 0.2}
task: node-classification
train: {epochs: 1000000, lr: 0.001, eval_every: 10, checkpoint_every: 1, timeout: 8}
"""
LONG = """
data: {generate: evolving, vertices: VERTICES, steps: 6, communities: 3, features: 6}
model: {name: cd-gcn, layers: 2, hidden: HIDDEN}
task: node-classification
train: {epochs: 1000000, lr: 0.001, eval_every: 10, checkpoint_every: 1, timeout: 8}
"""


def environment(folder: Path) -> dict[str, str]:
    """One thread, and a folder of its own for temporary files."""
    (folder / "tmp").mkdir(exist_ok=True)
    return {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}


@contextmanager
def running(folder: Path, *arguments: str, config: str = CONFIG) -> Iterator[subprocess.Popen[str]]:
    """A run that has written a checkpoint and would go on for days. Afterwards nothing of it is left but its files."""
    (folder / "c.yaml").write_text(config)
    shared = set(os.listdir("/dev/shm"))
    process = subprocess.Popen(
        [sys.executable, "-m", "trisect", "train", "c.yaml", "--out", "run", *arguments],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    children: list[psutil.Process] = []
    try:
        until(lambda: any((folder / "run" / "checkpoints").glob("epoch-*")), process)
        children = psutil.Process(process.pid).children(recursive=True)
        yield process
        _, alive = psutil.wait_procs(children, timeout=60)  # on a machine that has much else to do
        assert not alive
        assert not list((folder / "tmp").glob("*trisect*"))
        assert not [name for name in set(os.listdir("/dev/shm")) - shared if "trisect" in name]
    finally:
        for child in children:
            if child.is_running():
                child.kill()
        process.kill()
        process.wait()


def until(ready: Callable[[], bool], process: subprocess.Popen[str], limit: float = 120.0) -> None:
    deadline = time.monotonic() + limit
    while not ready():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rank_of(process: subprocess.Popen[str], rank: int) -> psutil.Process:
    children = psutil.Process(process.pid).children()
    return next(child for child in children if child.environ().get("RANK") == str(rank))


def ended(process: subprocess.Popen[str]) -> list[str]:
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    return [line for line in errors.splitlines() if line.startswith("trisect: ")]


@pytest.mark.parametrize(
    ("layout", "number", "code"),
    [
        ([], signal.SIGTERM, 143),
        (["--layout", "vertex=2"], signal.SIGTERM, 143),
        pytest.param([], signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(["--layout", "vertex=2"], signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_stopped(tmp_path: Path, layout: list[str], number: signal.Signals, code: int) -> None:
    with running(tmp_path, *layout) as process:
        process.send_signal(number)
        said = ended(process)
    assert process.returncode == code
    assert said == ["trisect: Stopped; continue with: trisect train --resume --out run"]
    checkpoint = RunDirectory.reopen(tmp_path / "run").checkpoints.latest()
    assert checkpoint is not None
    assert checkpoint.epoch >= 5
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    done = RunDirectory.reopen(tmp_path / "run").metrics()[-1]["epoch"]
    assert summary["epochs"] == len(summary["loss"]) == done
    assert summary["stopped"] == {"epoch": done, "of": 1000000, "signal": number.name, "checkpoint": checkpoint.epoch}
    by = {signal.SIGINT: "the user", signal.SIGTERM: "SIGTERM"}[number]
    assert f"Stopped by {by} after {done:,} of 1,000,000 epochs" in (tmp_path / "run" / "report.html").read_text()
    assert not list((tmp_path / "run").rglob(".*"))
    if number == signal.SIGTERM:  # the epoch that was under way was ended, and kept
        assert checkpoint.epoch == RunDirectory.reopen(tmp_path / "run").metrics()[-1]["epoch"]


def test_a_stalled_rank_is_named_after_the_timeout(tmp_path: Path) -> None:
    with running(tmp_path, "--layout", "vertex=3") as process:
        rank_of(process, 1).suspend()
        begin = time.monotonic()
        said = ended(process)
        taken = time.monotonic() - begin
    assert process.returncode == 1
    assert len(said) == 1
    assert "rank 1 is silent" in said[0]
    assert taken > 4.0  # the timeout of 5 s, less what had passed of it


@pytest.mark.parametrize(
    ("config", "vertices", "hidden", "layout", "rank", "number"),
    [
        (WIDE, 3000, 32, "layer=2,chunks=2", 0, signal.SIGKILL),
        pytest.param(WIDE, 60_000, 128, "layer=2,chunks=2", 1, signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(WIDE, 60_000, 128, "layer=2,chunks=2", 0, signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param(WIDE, 120_000, 128, "vertex=2", 1, signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(WIDE, 120_000, 128, "vertex=2", 0, signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param(LONG, 60_000, 64, "time=2,temporal=carry", 1, signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(LONG, 60_000, 64, "time=2,temporal=carry", 0, signal.SIGSTOP, marks=pytest.mark.slow),
    ],
)
def test_a_rank_lost_among_shared_rows_is_named_and_the_run_goes_on_to_the_bit(
    tmp_path: Path, config: str, vertices: int, hidden: int, layout: str, rank: int, number: signal.Signals
) -> None:
    text = config.replace("VERTICES", str(vertices)).replace("HIDDEN", str(hidden))
    with running(tmp_path, "--layout", layout, config=text) as process:
        lost = rank_of(process, rank)
        # messages of the first epoch, which is exact, are files; slots are mapped for those that come again
        until(lambda: any("memfd:trisect" in mapped.path for mapped in lost.memory_maps(grouped=False)), process)
        lost.send_signal(number)
        begin = time.monotonic()
        said = ended(process)
        taken = time.monotonic() - begin
    assert process.returncode == 1
    assert len(said) == 1
    if number == signal.SIGKILL:
        assert f"rank {rank} was ended by signal 9 (SIGKILL)" in said[0]
    else:
        assert f"rank {rank} is silent" in said[0]
        assert taken > 5.0  # the timeout of 8 s, less what had passed of it
    checkpoint = RunDirectory.reopen(tmp_path / "run").checkpoints.latest()
    assert checkpoint is not None
    last = checkpoint.epoch + 2
    trained(tmp_path, "--resume", "--out", "run", "--set", f"train.epochs={last}")
    trained(tmp_path, "c.yaml", "--out", "straight", "--layout", layout, "--set", f"train.epochs={last}")
    losses = [json.loads((tmp_path / name / "summary.json").read_text())["loss"] for name in ("run", "straight")]
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == last
    for k in range(2):
        name = f"checkpoints/epoch-{last:06d}/rank-{k:05d}.safetensors"
        one, two = load_file(tmp_path / "run" / name), load_file(tmp_path / "straight" / name)
        assert one.keys() == two.keys()
        assert all(one[key].equal(two[key]) for key in one)


def trained(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "trisect", "train", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_ranks_do_not_outlive_their_launcher(tmp_path: Path, stopped: bool) -> None:
    with running(tmp_path, "--layout", "vertex=2") as process:
        if stopped:
            for rank in range(2):
                rank_of(process, rank).suspend()
        process.kill()
        process.wait()
        # `running` waits for the ranks
