"""Start a world of ranks for a test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trisect.comm.world import LISTENER


def run_ranks(
    world: int, cases: list[dict[str, Any]], folder: Path, timeout: float = 600
) -> list[list[dict[str, Any]]]:
    """What each rank found for each case: results[case][rank]."""
    command = _prepared(cases, folder)
    ranks = []
    with _meeting() as (meeting, listener):
        for rank in range(world):
            environment = {**meeting, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
            if rank > 0:
                del environment[LISTENER]
            ranks.append(_started(command, environment, (listener,) if rank == 0 else ()))
    try:
        outputs = [rank.communicate(timeout=timeout)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    failed = [f"rank {r}:\n{outputs[r]}" for r, rank in enumerate(ranks) if rank.returncode != 0]
    if failed:
        raise AssertionError("\n".join(failed))
    found = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world)]
    return [[found[rank][case] for rank in range(world)] for case in range(len(cases))]


def run_forks(
    world: int, cases: list[dict[str, Any]], folder: Path, timeout: float = 600
) -> list[list[dict[str, Any]]]:
    """As `run_ranks`, with ranks that are forks of one process, so that torch is loaded once for all of them."""
    command = _prepared(cases, folder)
    with _meeting() as (environment, listener):
        parent = _started([*command, str(world)], environment, (listener,))
    try:
        output = parent.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        os.killpg(parent.pid, signal.SIGKILL)
        output = "took too long"
    if parent.wait() != 0:
        logs = [f"{log.name}:\n{log.read_text()}" for log in sorted(folder.glob("rank-*.log"))]
        raise AssertionError("\n".join([output, *logs]))
    found = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world)]
    return [[found[rank][case] for rank in range(world)] for case in range(len(cases))]


def _prepared(cases: list[dict[str, Any]], folder: Path) -> list[str]:
    """The worker's command for these cases."""
    (folder / "cases.json").write_text(json.dumps(cases))
    return [sys.executable, str(Path(__file__).with_name("worker.py")), str(folder / "cases.json"), str(folder)]


@contextmanager
def _meeting() -> Iterator[tuple[dict[str, str], int]]:
    """The environment in which ranks meet, and the listening socket that rank 0 is handed, as the library does it."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        environment = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(listener.getsockname()[1]),
            LISTENER: str(listener.fileno()),
            "OMP_NUM_THREADS": "1",
        }
        yield environment, listener.fileno()


def _started(command: list[str], environment: dict[str, str], handed: tuple[int, ...]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=handed,
        start_new_session=True,
    )
