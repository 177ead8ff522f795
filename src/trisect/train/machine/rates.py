"""How fast one process gathers rows, multiplies matrices and goes over memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from trisect.graph.adjacency import Adjacency
from trisect.ops.fused import dense
from trisect.ops.memory import empty
from trisect.ops.spmm.aggregate import aggregate
from trisect.train.machine.timed import Measurement, Name, Timed

WIDTHS = (4, 16, 64, 128)  # numbers of a row
# bytes of a table that lies in the last cache, of one that lies in memory, and of one that lies in both
_NEAR, _FAR, _BETWEEN_BOTH = 2 << 20, 96 << 20, 24 << 20
_DEGREE = 20
_TRAFFIC = 24 << 20  # bytes that one measurement of a gather reads
_HIDDEN, _ROWS = 64, 20_000  # of a product
_CALLS = 6


def rate_measurements() -> dict[Name, Measurement]:
    """Give what to measure: gathers by width from memory and from the cache, products, elementwise work."""
    gathers = {
        ("gather", width, size): partial(_timed, partial(_gathering, width, size))
        for width in WIDTHS
        for size in (_NEAR, _FAR, _BETWEEN_BOTH)
    }
    return {**gathers, ("product",): partial(_timed, _multiplying), ("elementwise",): partial(_timed, _doubling)}


def rates_of(times: Mapping[Name, Timed]) -> dict[str, Any]:
    """Give the rates that follow, as a device has them."""
    near, far, both = (
        {4 * width: _TRAFFIC / times["gather", width, size].epoch for width in WIDTHS}
        for size in (_NEAR, _FAR, _BETWEEN_BOTH)
    )
    return {
        "flops": 2.0 * _ROWS * _HIDDEN * _HIDDEN / times["product",].epoch,
        "elementwise": 2.0 * _FAR / times["elementwise",].epoch,
        "gather": far,
        "gather_cached": near,
        "cache": _cache_of(near, far, both),
    }


def _timed(make: Callable[[], Callable[[], object]]) -> Sequence[Timed]:
    """The least seconds of some calls, after one that is not counted."""
    call, times = make(), []
    for _ in range(1 + _CALLS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return [Timed([min(times[1:])])]


def _gathering(width: int, size: int) -> Callable[[], object]:
    """A sum over neighbours that lie anywhere in a table of so many bytes, on buffers as runs have them."""
    generator = torch.Generator().manual_seed(0)
    columns, rows = size // (4 * width), _TRAFFIC // (4 * width * _DEGREE)
    indices = torch.randint(columns, (rows, _DEGREE), generator=generator).sort(1).values.flatten().to(torch.int32)
    pointers = torch.arange(0, rows * _DEGREE + 1, _DEGREE)
    adjacency = Adjacency.from_csr(pointers, indices, torch.ones(rows * _DEGREE), columns)
    x = empty((columns, width)).fill_(1.0)
    return lambda: aggregate(x, adjacency)


def _multiplying() -> Callable[[], object]:
    x, weight = torch.ones(_ROWS, _HIDDEN), torch.ones(_HIDDEN, _HIDDEN)
    return lambda: dense(x, weight)


def _doubling() -> Callable[[], object]:
    x, out = empty((_FAR // 4,)).fill_(1.0), empty((_FAR // 4,))
    return lambda: torch.mul(x, 2.0, out=out)


def _cache_of(near: Mapping[int, float], far: Mapping[int, float], both: Mapping[int, float]) -> int:
    """Give the bytes of the last cache that a process has for itself, by the share of a table that it seems to hold."""
    shares = []
    for width in near:
        slow, fast = 1.0 / far[width], 1.0 / near[width]
        if slow > fast:
            shares.append(min(1.0, max(0.0, (slow - 1.0 / both[width]) / (slow - fast))))
    share = sorted(shares)[len(shares) // 2] if shares else 0.5
    return max(1 << 20, int(share * _BETWEEN_BOTH))
