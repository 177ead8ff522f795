"""A run that is stopped, or loses a rank, ends on all ranks, in one sentence, and keeps what was checkpointed."""

from __future__ import annotations

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

from trisect.train.run_directory import RunDirectory

CONFIG = """
data: {generate: community, vertices: 200, classes: 3, features: 8, per_class: 10}
model: {name: gcn, layers: 2, hidden: 8}
task: node-classification
train: {epochs: 1000000, lr: 0.001, eval_every: 10, checkpoint_every: 5, timeout: 5}
"""


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A run that has written a checkpoint and would go on for days."""
    (folder / "c.yaml").write_text(CONFIG)
    process = subprocess.Popen(
        [sys.executable, "-m", "trisect", "train", "c.yaml", "--out", "run", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    children: list[psutil.Process] = []
    try:
        until(lambda: any((folder / "run" / "checkpoints").glob("epoch-*")), process)
        children = psutil.Process(process.pid).children(recursive=True)
        yield process
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive
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


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    with running(tmp_path, "--layout", "layer=2") as process:
        rank_of(process, 0).kill()
        said = ended(process)
    assert process.returncode == 1
    assert len(said) == 1
    assert "rank 0 was ended by signal 9 (SIGKILL)" in said[0]


@pytest.mark.slow
def test_ranks_do_not_outlive_their_launcher(tmp_path: Path) -> None:
    with running(tmp_path, "--layout", "vertex=2") as process:
        process.kill()
        process.wait()
        # `running` waits for the ranks
