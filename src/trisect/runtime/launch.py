"""Start the local ranks of a run, watch them, and end all when one ends badly, naming the first that did."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trisect.errors import RunError

FAILURES = "TRISECT_FAILURES"
_POLL = 0.05
_GRACE = 5.0


@dataclass(frozen=True)
class World:
    """What the environment says about the ranks that were started (by us or by torchrun)."""

    rank: int
    size: int
    local_rank: int
    local_size: int


def world_from_environment(environment: Mapping[str, str] | None = None) -> World | None:
    """The world that this process was started in, or None where it stands alone."""
    found = os.environ if environment is None else environment
    if "RANK" not in found or "WORLD_SIZE" not in found:
        return None
    rank, size = int(found["RANK"]), int(found["WORLD_SIZE"])
    return World(rank, size, int(found.get("LOCAL_RANK", rank)), int(found.get("LOCAL_WORLD_SIZE", size)))


def tell_failure(rank: int, message: str, *, of_peer: bool) -> None:
    """Leave word for the launcher of why this rank ends. `of_peer`: it only lost another one."""
    folder = os.environ.get(FAILURES)
    if folder is not None:
        note = {"rank": rank, "time": time.time(), "message": message, "of_peer": of_peer}
        with suppress(OSError):
            Path(folder, f"rank-{rank}.json").write_text(json.dumps(note))


def launch(
    command: Sequence[str], world: int, *, threads: int | None = None, environment: Mapping[str, str] | None = None
) -> None:
    """Run `command` once a rank on this machine, with the variables that torchrun would set.

    Rank 0 keeps the terminal; what the others print on standard error is shown if they fail.

    Args:
        threads: for each rank; cores / ranks by default.

    Raises:
        RunError: names the first rank that ended badly, and why.
    """
    share = max(1, (os.cpu_count() or 1) // world) if threads is None else threads
    with tempfile.TemporaryDirectory(prefix="trisect-ranks-") as folder:
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            port = _free_port()
            for rank in range(world):
                variables = {
                    **os.environ,
                    "OMP_NUM_THREADS": str(share),
                    **(environment or {}),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(world),
                    "LOCAL_WORLD_SIZE": str(world),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    FAILURES: folder,
                }
                with open(Path(folder, f"rank-{rank}.err"), "wb") as errors:
                    ranks.append(
                        subprocess.Popen(  # noqa: S603
                            list(command),
                            env=variables,
                            stdin=subprocess.DEVNULL,
                            stdout=None if rank == 0 else subprocess.DEVNULL,
                            stderr=None if rank == 0 else errors,
                        )
                    )
            first = _watch(ranks)
        finally:
            _end(ranks)
        if first is not None:
            raise RunError(_reason(Path(folder), first, ranks[first].returncode))


def _watch(ranks: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all ranks; the first that ends badly, or None."""
    running = set(range(len(ranks)))
    while running:
        for rank in sorted(running):
            code = ranks[rank].poll()
            if code is not None:
                running.discard(rank)
                if code != 0:
                    return rank
        time.sleep(_POLL)
    return None


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask those that still run to end, and kill those that do not."""
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    deadline = time.monotonic() + _GRACE
    for rank in ranks:
        with suppress(subprocess.TimeoutExpired):
            rank.wait(max(0.0, deadline - time.monotonic()))
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
            rank.wait()


def _reason(folder: Path, first: int, code: int) -> str:
    """What to tell: the earliest word that a rank left about itself, else how the first one ended."""
    notes = []
    for path in folder.glob("rank-*.json"):
        with suppress(OSError, ValueError):
            notes.append(json.loads(path.read_text()))
    own = sorted((note for note in notes if not note["of_peer"]), key=lambda note: note["time"])
    if own:
        return f"rank {own[0]['rank']}: {own[0]['message']}"
    if code < 0:
        with suppress(ValueError):
            return f"rank {first} was ended by signal {-code} ({signal.Signals(-code).name}); the run is stopped."
    errors = folder / f"rank-{first}.err"
    lines = errors.read_text(errors="replace").strip().splitlines() if errors.exists() else []
    if lines:
        sys.stderr.write("\n".join(lines[-30:]) + "\n")
    return f"rank {first} ended with exit code {code}; the run is stopped."


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
