"""`torchrun … -m trisect train`: the world that is found, the result of our own launcher, failures in one sentence."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

CONFIG = """
data: {generate: community, vertices: 300, classes: 3, features: 8, per_class: 10}
model: {name: gcnii, layers: 3, hidden: 8, dropout: 0.3}
task: node-classification
train: {epochs: 4, lr: 0.01, eval_every: 2, checkpoint_every: 2}
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def torchrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options, "-m", "trisect"]


def run(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def one_host(ranks: int = 2) -> list[str]:
    return ["--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port", str(free_port())]


def summary(folder: Path, out: str) -> dict[str, Any]:
    return dict(json.loads((folder / out / "summary.json").read_text()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("torchrun")
    (path / "c.yaml").write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def ours(folder: Path) -> dict[str, Any]:
    done = run(folder, [sys.executable, "-m", "trisect", "train", "c.yaml", "--out", "ours", "--layout", "vertex=2"])
    assert done.returncode == 0, done.stderr
    return summary(folder, "ours")


def test_one_host_has_the_result_of_our_launcher(folder: Path, ours: dict[str, Any]) -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        done = run(folder, [*torchrun(*one_host()), "train", "c.yaml", "--out", "one", "--layout", "vertex=2"])
    finally:
        os.sched_setaffinity(0, cores)
    assert done.returncode == 0, done.stderr
    found = summary(folder, "one")
    assert found["loss"] == ours["loss"]
    assert found["metrics"] == ours["metrics"]
    assert found["communication"] == ours["communication"]
    assert done.stdout.count("Run directory:") == 1
    assert done.stdout.count("2 ranks share 1 core,") == 1


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_world_that_was_started_is_planned_for(folder: Path, ranks: int) -> None:
    words = ["train", "c.yaml", "--out", f"auto-{ranks}", "--layout", "auto"]
    done = run(folder, [*torchrun(*one_host(ranks)), *words])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Layout ") == 1
    assert summary(folder, f"auto-{ranks}")["world"] == ranks
    done = run(folder, [*torchrun(*one_host(ranks)), "train", "c.yaml", "--out", "other", "--devices", str(ranks + 1)])
    assert f"--devices is {ranks + 1}, but {ranks} ranks were started" in done.stderr


@pytest.mark.slow
def test_resume_is_to_the_bit(folder: Path, ours: dict[str, Any]) -> None:
    words = ["train", "c.yaml", "--out", "halves", "--layout", "vertex=2"]
    for more in (["--set", "train.epochs=2"], ["--resume"]):
        done = run(folder, [*torchrun(*one_host()), *words, *more])
        assert done.returncode == 0, done.stderr
    assert "Continuing after epoch 2" in done.stdout
    found = summary(folder, "halves")
    assert found["loss"] == ours["loss"]
    assert found["metrics"] == ours["metrics"]
    name = "checkpoints/epoch-000004/rank-00000.safetensors"
    one, two = load_file(folder / "ours" / name), load_file(folder / "halves" / name)
    assert one.keys() == two.keys()
    assert all(one[key].equal(two[key]) for key in one)
    # what a checkpoint that does not fit is told by ranks that nobody checked before
    done = run(folder, [*torchrun(*one_host()), *words, "--resume", "--set", "model.hidden=9"])
    [said] = [line for line in done.stderr.splitlines() if line.startswith("trisect: ")]
    assert "model.hidden is 9, but the run in" in said
    assert "exitcode  : 2" in done.stderr


@pytest.mark.slow
def test_two_hosts_have_the_result_of_our_launcher(folder: Path, ours: dict[str, Any]) -> None:
    place = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    hosts = [
        subprocess.Popen(
            [*torchrun(*place, "--node-rank", str(k)), "train", "c.yaml", "--out", "two", "--layout", "vertex=2"],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(2)
    ]
    try:
        said = [host.communicate(timeout=240) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    assert [host.returncode for host in hosts] == [0, 0], said
    assert summary(folder, "two")["loss"] == ours["loss"]


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("vertex=3", "needs 1 × 1 × 3 = 3 ranks, but 2 were started"),
        pytest.param("vertex=2,chunks=999", "more than the graph's", marks=pytest.mark.slow),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_in_one_sentence(folder: Path, layout: str, said: str) -> None:
    done = run(folder, [*torchrun(*one_host()), "train", "c.yaml", "--out", "refused", "--layout", layout])
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("trisect: ")]
    assert len(lines) == 1, done.stderr
    assert said in lines[0]
    assert "exitcode  : 2" in done.stderr  # what torchrun saw of the rank
    # whatever else torchrun prints, the sentence stands at the end of it as well
    last = done.stderr.rstrip("=\n ").splitlines()[-1]
    assert last.strip().startswith("traceback :"), done.stderr
    assert said in last
    assert not (folder / "refused").exists()


@pytest.mark.slow
def test_a_killed_rank_is_named(folder: Path) -> None:
    command = [*torchrun(*one_host(3)), "train", "c.yaml", "--out", "killed", "--layout", "vertex=3"]
    command += ["--set", "train.epochs=100000", "--set", "train.timeout=20"]
    parent = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: (folder / "killed" / "metrics.jsonl").exists(), parent)
        ranks = {rank.environ()["RANK"]: rank for rank in psutil.Process(parent.pid).children() if is_rank(rank)}
        ranks["1"].kill()
        _, errors = parent.communicate(timeout=60)
    finally:
        parent.kill()
        parent.wait()
    assert parent.returncode != 0
    assert "Signal 9 (SIGKILL)" in errors
    psutil.wait_procs(list(ranks.values()), timeout=10)
    assert not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks.values())


@pytest.mark.slow
def test_a_rank_that_was_started_by_hand_names_the_silent_one(folder: Path) -> None:
    """Without any launcher, as under a cluster's own: the ranks find out among themselves."""
    place = {"WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "trisect", "train", "c.yaml", "--out", "silent", "--layout", "vertex=3"]
    command += ["--set", "train.epochs=100000", "--set", "train.timeout=5"]
    ranks = [
        subprocess.Popen(
            command,
            cwd=folder,
            env={**ENVIRONMENT, **place, "RANK": str(k)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(3)
    ]
    try:
        until(lambda: (folder / "silent" / "metrics.jsonl").exists(), ranks[0])
        psutil.Process(ranks[1].pid).suspend()
        said = [ranks[k].communicate(timeout=60)[1] for k in (0, 2)]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [ranks[k].returncode for k in (0, 2)] == [1, 1]
    for errors in said:
        assert "trisect: rank 1 is gone or silent" in errors
        assert "Traceback" not in errors


@pytest.mark.slow
def test_ranks_that_were_started_by_hand_agree_on_a_layout(folder: Path) -> None:
    """Rank 0 holds the store in which they meet for the layout, and then for the run."""
    place = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "trisect", "train", "c.yaml", "--out", "agreed", "--layout", "auto"]
    ranks = [
        subprocess.Popen(
            [*command, "--set", "train.timeout=30"],
            cwd=folder,
            env={**ENVIRONMENT, **place, "RANK": str(k)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for k in range(2)
    ]
    try:
        said = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert summary(folder, "agreed")["world"] == 2


def is_rank(process: psutil.Process) -> bool:
    try:
        return "RANK" in process.environ()
    except psutil.Error:
        return False


def until(ready: Any, process: subprocess.Popen[str], limit: float = 120.0) -> None:
    deadline = time.monotonic() + limit
    while not ready():
        assert process.poll() is None, "it ended before it was ready"
        assert time.monotonic() < deadline
        time.sleep(0.1)
