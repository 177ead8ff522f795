"""Start a world of ranks for a test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_ranks(
    world: int, cases: list[dict[str, Any]], folder: Path, timeout: float = 600
) -> list[list[dict[str, Any]]]:
    """What each rank found for each case: results[case][rank]."""
    command, meeting = _prepared(cases, folder)
    ranks = []
    for rank in range(world):
        environment = {**meeting, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
        ranks.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
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
    command, environment = _prepared(cases, folder)
    parent = subprocess.Popen(
        [*command, str(world)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
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


def _prepared(cases: list[dict[str, Any]], folder: Path) -> tuple[list[str], dict[str, str]]:
    """The worker's command for these cases, and the environment in which its ranks meet."""
    (folder / "cases.json").write_text(json.dumps(cases))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), str(folder / "cases.json"), str(folder)]
    return command, {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
