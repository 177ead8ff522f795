"""What people and schedulers do to a run: kill its processes at any moment, fill its disk, start it twice, take rights.

Each ends in one sentence without a traceback, leaves no process and no temporary file, and the run goes on afterwards
to the bytes of one that nobody touched.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

GRAPH = """
data: {generate: community, vertices: 301, classes: 3, features: 9, per_class: 10}
model: {name: gcnii, layers: 3, hidden: 7, dropout: 0.3}
task: node-classification
train: {epochs: 9, lr: 0.01, eval_every: 2, checkpoint_every: 2, timeout: 5, grace: 10}
"""
PREDICTION = ("predict", "run", "--layout", "vertex=2", "--out", "p.npz")
FAULTS = Path(__file__).resolve().parents[1] / "ranks" / "faults"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
TWO = ("--layout", "vertex=2")


@contextmanager
def started(folder: Path, *words: str, launcher: tuple[str, ...] = (), **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A command in a folder; afterwards none of its processes lives, and no temporary file of it is left."""
    (folder / "tmp").mkdir(exist_ok=True)
    (folder / "c.yaml").write_text(GRAPH)
    paths = os.pathsep.join((str(FAULTS), *filter(None, [os.environ.get("PYTHONPATH")])))
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp"), "PYTHONPATH": paths}
    variables |= {"TRISECT_TEST_ROUGH": str(folder), **more.pop("env", {})}
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, *launcher, "-m", "trisect", *words],
            cwd=folder,
            env=variables,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            **more,
        )
    try:
        yield process
        process.wait(120)
        until(lambda: not marked(folder), 30.0)
    finally:
        for one in (process, *marked(folder)):
            one.kill()
        process.wait()
    assert not list((folder / "tmp").glob("*trisect*"))


def marked(folder: Path) -> list[psutil.Process]:
    """The processes of commands that were started in a folder."""
    alive = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TRISECT_TEST_ROUGH") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
        except psutil.Error:
            continue
    return alive


def until(ready: Callable[[], Any], limit: float = 90.0) -> None:
    deadline = time.monotonic() + limit
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run(folder: Path, *words: str, code: int = 0, **more: Any) -> str:
    """Run a command to its end; gives what it said."""
    (folder / "log").write_text("")
    with started(folder, *words, **more) as process:
        pass
    said = (folder / "log").read_text()
    assert process.returncode == code, said
    assert "Traceback" not in said, said
    return said


def fault(folder: Path, **fields: Any) -> dict[str, str]:
    """The environment of a fault that comes; see tests/ranks/faults."""
    return {"TRISECT_TEST_FAULTS": json.dumps([{"fired": str(folder / "fired"), **fields}])}


def state(path: Path) -> dict[str, bytes]:
    """The bytes of the last checkpoint."""
    last = sorted((path / "checkpoints").glob("epoch-??????"))[-1]
    return {file.name: file.read_bytes() for file in last.glob("rank-*")}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight")
    run(folder, "train", "c.yaml", "--out", "run", *TWO)
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("action", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("kind", ["SIGKILL", "SIGTERM", "launcher SIGKILL", "launcher SIGTERM", "launcher SIGINT"])
def test_a_process_that_is_ended_before_the_first_epoch(
    tmp_path: Path, straight: Path, kind: str, action: float
) -> None:
    code = {"SIGKILL": 1, "launcher SIGKILL": -9, "launcher SIGINT": 130}.get(kind, 143)
    words = ("train", "c.yaml", "--out", "run", *TWO)
    come = fault(tmp_path, rank=1, epoch=1, at="start", action=action, kind=kind)
    said = run(tmp_path, *words, code=code, env=come)
    assert (tmp_path / "fired").exists()
    assert said.count("trisect: ") == (code != -9)
    run(tmp_path, *words, "--resume")
    assert state(tmp_path / "run") == state(straight)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["start", "epoch"])
def test_torchrun_starts_ranks_again_that_were_killed_in_their_first_epoch_or_before(
    tmp_path: Path, straight: Path, at: str
) -> None:
    come = fault(tmp_path, rank=1, epoch=1, at=at, action=0.5, kind="SIGKILL")
    with started(
        tmp_path, "train", "c.yaml", "--out", "run", *TWO, launcher=(*TORCHRUN, "--max-restarts", "1"), env=come
    ) as process:
        pass
    assert process.returncode == 0, (tmp_path / "log").read_text()
    assert (tmp_path / "fired").exists()
    assert state(tmp_path / "run") == state(straight)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["restarts"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_asks_twice_gets_the_same_end(tmp_path: Path, number: signal.Signals) -> None:
    words = ("train", "c.yaml", "--out", "run", *TWO, "--set", "train.epochs=1000000", "--set", "train.eval_every=1000")
    with started(tmp_path, *words) as process:
        until(lambda: list(tmp_path.glob("run/checkpoints/epoch-*")))
        for _ in range(3):
            process.send_signal(number)
            time.sleep(0.05)
    said = (tmp_path / "log").read_text()
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    assert said.endswith("trisect: Stopped; continue with: trisect train --resume --out run\n")
    assert "Traceback" not in said


@pytest.mark.slow
def test_ctrl_c_while_a_run_goes_on_loses_nothing(tmp_path: Path, straight: Path) -> None:
    words = ("train", "c.yaml", "--out", "run", *TWO)
    run(tmp_path, *words, code=1, env=fault(tmp_path, rank=1, epoch=6, at="train", action=0.2, kind="SIGKILL"))
    for at in ("start", "recovery"):
        (tmp_path / "fired").unlink(missing_ok=True)
        come = fault(tmp_path, rank=0, epoch=1, at=at, action=0.9, kind="launcher SIGINT")
        said = run(tmp_path, *words, "--resume", code=130, env=come)
        assert "trisect: Stopped; continue with" in said
        assert (tmp_path / "fired").exists()
    run(tmp_path, "train", "--resume", "--out", "run")
    assert state(tmp_path / "run") == state(straight)


@pytest.mark.slow
def test_two_commands_on_the_same_directory(tmp_path: Path, straight: Path) -> None:
    words = ("train", "c.yaml", "--out", "run", *TWO)
    with started(tmp_path, *words) as one, started(tmp_path, *words) as two:
        assert sorted((one.wait(120), two.wait(120))) == [0, 2]
    said = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("trisect: ")]
    assert len(said) == 1
    assert "already holds a run" in said[0] or "Another process is writing to" in said[0]
    assert state(tmp_path / "run") == state(straight)
    said = run(tmp_path, *words, code=2)
    assert "already holds a run" in said


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [False, True])
def test_a_limit_of_file_sizes_is_a_sentence(tmp_path: Path, straight: Path, resumed: bool) -> None:
    """As a disk that is full: the system refuses to let a file grow."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))

    words = ("train", "c.yaml", "--out", "run", *TWO)
    if resumed:
        run(tmp_path, *words, code=1, env=fault(tmp_path, rank=1, epoch=6, at="train", action=0.2, kind="SIGKILL"))
    said = run(tmp_path, *words, *(("--resume",) if resumed else ()), code=1, preexec_fn=limit)
    assert "File too large" in said or "could not be written whole" in said
    assert "ulimit -f" in said
    run(tmp_path, *words, "--resume")
    assert state(tmp_path / "run") == state(straight)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["launcher", "0", "1"])
def test_a_prediction_that_is_killed_leaves_nothing(tmp_path: Path, straight: Path, victim: str) -> None:
    (tmp_path / "run").symlink_to(straight)
    run(tmp_path, *PREDICTION)
    good = (tmp_path / "p.npz").read_bytes()

    def victims() -> list[psutil.Process]:
        wanted = None if victim == "launcher" else victim
        return [one for one in marked(tmp_path) if one.environ().get("RANK") == wanted]

    (tmp_path / "log").write_text("")
    with started(tmp_path, *PREDICTION) as process:
        until(lambda: len(marked(tmp_path)) == 3)
        time.sleep(0.5)
        victims()[0].kill()
    said = (tmp_path / "log").read_text()
    assert process.returncode == (-9 if victim == "launcher" else 1), said
    assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.glob(".*")) == []
    assert (tmp_path / "p.npz").read_bytes() == good
    run(tmp_path, *PREDICTION)


@pytest.mark.slow
def test_two_predictions_to_the_same_file(tmp_path: Path, straight: Path) -> None:
    (tmp_path / "run").symlink_to(straight)
    with started(tmp_path, *PREDICTION) as one:
        until(lambda: list(tmp_path.glob(".p.npz.rows/.lock")))
        one.send_signal(signal.SIGSTOP)  # so that it is still there when the other one comes
        with started(tmp_path, *PREDICTION) as two:
            assert two.wait(120) == 2
            one.send_signal(signal.SIGCONT)
        assert one.wait(120) == 0
    assert "Another process is writing to" in (tmp_path / "log").read_text()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_a_run_of_somebody_else(tmp_path: Path, straight: Path) -> None:
    """Who may read a run directory and not write it gets predictions elsewhere, and sentences."""
    code = "import os, sys; os.setgid(65534); os.setuid(65534); from trisect.cli.main import run_command; "
    code += "sys.exit(run_command(sys.argv[1:]))"

    def as_nobody(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=own,
            env={**os.environ, "TMPDIR": str(own), "HOME": str(own), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, 65534, 65534)
    for folder in (*tmp_path.parents, *straight.parents):
        if folder.stat().st_uid == os.geteuid() and "pytest-" in str(folder):
            folder.chmod(0o755)
    if as_nobody("--version").returncode != 0:
        pytest.skip("nobody may not read this environment")
    for words in (("train", "--resume", "--out", str(straight)), ("report", str(straight)), ("predict", str(straight))):
        done = as_nobody(*words)
        assert done.returncode in (1, 2), done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        assert "Permission denied" in done.stderr
    done = as_nobody("predict", str(straight), "--layout", "vertex=1", "--out", "p.npz")
    assert done.returncode == 0, done.stderr
    assert (own / "p.npz").exists()
