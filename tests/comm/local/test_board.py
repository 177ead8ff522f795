"""Sums over ranks of one host, here threads of one process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from trisect.comm.local.board import Board
from trisect.comm.local.hub import BUFFER, Hub, buffer_offset
from trisect.comm.local.peer import Peer
from trisect.comm.local.shared import SharedFile
from trisect.train.processes.faults import is_lost

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory without names is Linux's")

WORLD = 3


@pytest.fixture
def boards() -> list[Board]:
    files = [SharedFile.create("trisect-test", buffer_offset(2, 0), reserve=False) for _ in range(WORLD)]
    hubs = []
    for rank in range(WORLD):
        others = [other for other in range(WORLD) if other != rank]
        peers = {other: Peer.of(other, os.getpid(), 2.0, WORLD) for other in others}
        hubs.append(Hub(rank, peers, files[rank], {other: files[other] for other in others}))
    return [Board(hub, 1, range(WORLD)) for hub in hubs]


def together(work: Callable[[int], torch.Tensor | None]) -> list[torch.Tensor | None]:
    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(work, range(WORLD)))


def vector(rank: int, elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(rank))


def test_sums_grow_and_shrink(boards: list[Board]) -> None:
    sizes = [1, BUFFER // 4, BUFFER // 4 + 1, 7, 100_000, 100_000, 30, 300_000, 20_000]

    def work(rank: int) -> torch.Tensor:
        totals = [boards[rank].total([vector(rank, n)[: n // 2], vector(rank, n)[n // 2 :]]) for n in sizes * 5]
        return torch.cat([total for total in totals if total is not None])

    answers = together(work)
    wanted = torch.cat([vector(0, n) + vector(1, n) + vector(2, n) for n in sizes * 5])
    other = torch.cat([vector(0, n) + (vector(1, n) + vector(2, n)) for n in sizes * 5])
    assert all(answer is not None and answer.equal(wanted) for answer in answers)
    assert not other.equal(wanted)


def test_where_one_has_no_room_nobody_has_a_sum(boards: list[Board]) -> None:
    boards[1]._buffer = lambda turn, size: None  # type: ignore[method-assign]
    assert together(lambda rank: boards[rank].total([vector(rank, 5)])) == [None] * WORLD
    del boards[1]._buffer
    answers = together(lambda rank: boards[rank].total([vector(rank, 5)]))
    assert all(answer is not None for answer in answers)


def test_vectors_of_different_sizes_are_refused(boards: list[Board]) -> None:
    with pytest.raises(RuntimeError, match="adds a vector of") as caught:
        together(lambda rank: boards[rank].total([vector(rank, 6 if rank == 1 else 5)]))
    assert not is_lost(caught.value)


def test_a_rank_that_does_not_add_is_lost(boards: list[Board]) -> None:
    with pytest.raises(RuntimeError, match="Timed out") as caught:
        boards[0].total([vector(0, 5)])
    assert is_lost(caught.value)
