"""One rank of `trisect bench exchange`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trisect.comm.ledger import Ledger
from trisect.comm.mesh import connect, disconnect
from trisect.comm.transport import Transport
from trisect.comm.world import world_from_environment
from trisect.errors import RunError
from trisect.layout import Layout
from trisect.train.processes.faults import reporting_failures
from trisect_bench._harness import Timing, interleave

_TRANSPORTS = ("auto", "network")
_TIMEOUT = 120.0


def measure(sizes: list[int], rounds: int, exchanges: int, world: int, rank: int) -> list[dict[str, Any]]:
    """Seconds of an exchange of each size, with both transports; every rank of the world calls it."""
    device = torch.device("cpu")
    ends = {
        name: Transport(connect(Layout(vertex=world, transport=name), device, _TIMEOUT), Ledger())  # type: ignore[arg-type]
        for name in _TRANSPORTS
    }
    timings_by_size = []
    for size in sizes:
        outgoing = [torch.full((0 if peer == rank else 1, size // 4), float(rank)) for peer in range(world)]
        received = [torch.empty_like(rows) for rows in outgoing]
        seconds: dict[str, list[float]] = {name: [] for name in ends}
        for turn in range(rounds + 1):
            for name, end in ends.items():
                exchange: Callable[[], object] = partial(_exchange, end, outgoing, received)
                timing: Timing = interleave({name: exchange}, exchanges, warmup=5)[name]
                if turn:
                    seconds[name] += timing.seconds
        if any(float(rows.sum()) != peer * rows.numel() for peer, rows in enumerate(received)):
            raise RunError("bench exchange received other rows than were sent")
        timings = {name: Timing(tuple(values)) for name, values in seconds.items()}
        timings_by_size.append(
            {"bytes": size} | {name: {"median": t.median, "best": t.best} for name, t in timings.items()}
        )
    return timings_by_size


def _exchange(end: Transport, outgoing: list[torch.Tensor], received: list[torch.Tensor]) -> None:
    end.begin_swap(outgoing, received, "halo", 0).wait()


def main() -> None:
    """Be the rank that the environment names; rank 0 writes what it measured."""
    asked = json.loads(sys.argv[1])
    world = world_from_environment()
    if world is None:
        raise RunError("trisect_bench._exchange_rank is started by trisect bench exchange alone.")
    with reporting_failures(world):
        timings_by_size = measure(asked["sizes"], asked["rounds"], asked["exchanges"], world.size, world.rank)
        if world.rank == 0:
            Path(asked["out"]).write_text(json.dumps(timings_by_size))
        disconnect()


if __name__ == "__main__":
    main()
