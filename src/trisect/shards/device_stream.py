"""`DeviceStream`: matrices by step that a source makes on a device, one ahead where cores allow, some of them kept."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from trisect.comm.cores import usable_cores
from trisect.comm.ledger import Ledger
from trisect.graph.adjacency import Adjacency
from trisect.graph.timeline.smoothing import Smoothing
from trisect.graph.timeline.snapshots import OnDemand


@dataclass(frozen=True, eq=False)
class Brought:
    """A matrix on the device, its bytes in the encoding `full`, and the bytes that were sent for it."""

    matrix: Adjacency
    full: int
    sent: int


class Source(ABC):
    """Makes the matrix of one step after the other on a device; called by one thread at a time.

    What is brought is counted where it crosses: a transpose may bring events later, from another thread.
    """

    device: torch.device

    def __init__(self) -> None:
        self._sent, self._counting = 0, threading.Lock()

    def count_sent(self, size: int) -> None:
        """Count bytes that have gone to the device."""
        with self._counting:
            self._sent += size

    def take_sent(self) -> int:
        """Give what was sent since the last call, for matrices and for transposes that were made later."""
        with self._counting:
            sent, self._sent = self._sent, 0
        return sent

    @abstractmethod
    def bring(self, step: int) -> Brought:
        """Make the matrix of a step."""


class DeviceStream(OnDemand):
    """The matrices of a source, read step by step.

    The next step is made in the background where a core (or the device) is free for it. Within `keep_bytes` matrices
    are kept, the first that come, since epochs read them in a circle.

    Args:
        source: makes them.
        steps: how many there are.
        ledger: told the bytes of each matrix that is brought.
        keep_bytes: memory for kept matrices with their transposes.
        prefetch: whether to make the next step in the background; None: where cores allow.
    """

    def __init__(
        self, source: Source, steps: int, ledger: Ledger, *, keep_bytes: int = 0, prefetch: bool | None = None
    ) -> None:
        self.source, self.ledger = source, ledger
        self._steps, self._left = steps, keep_bytes
        self._kept: dict[int, Adjacency] = {}
        self._latest = -1
        self._pool = ThreadPoolExecutor(1, "snapshots") if _may_prefetch(source.device, prefetch) else None
        self._next: tuple[int, Future[Brought]] | None = None

    def __len__(self) -> int:
        return self._steps

    def keeps(self, step: int) -> bool:
        """Say whether the matrix of a step is kept between epochs."""
        return step in self._kept

    def at(self, step: int) -> Adjacency:
        """Give the matrix that is kept, on its way, or brought now."""
        matrix = self._kept.get(step)
        if matrix is None:
            matrix = self._take(step)
            # a transpose that shares the arrays, or is still to come
            size = matrix.memory_bytes * (1 if matrix.has_transpose() else 2)
            if size <= self._left:
                self._left -= size
                self._kept[step] = matrix
        forward, self._latest = step == self._latest + 1, step
        after = step + 1
        if forward and self._pool is not None and after < len(self) and after not in self._kept and self._next is None:
            self._next = after, self._pool.submit(self.source.bring, after)
        return matrix

    def _take(self, step: int) -> Adjacency:
        """Give the matrix that is on its way, or a new one. What was fetched in vain counts as sent too."""
        while self._next is not None:
            (coming, future), self._next = self._next, None
            brought = future.result()
            self.ledger.add_transfer(brought.full if coming == step else 0, brought.sent)
            if coming == step:
                return brought.matrix
        brought = self.source.bring(step)
        self.ledger.add_transfer(brought.full, brought.sent)
        return brought.matrix


class Mover:
    """Copies arrays to a device; to a CUDA device through pinned memory on a stream of its own.

    The reader's stream waits for the copy.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def __call__(self, array: Tensor) -> Tensor:
        """Give a copy of an array on the device."""
        if self._side is None or array.device.type != "cpu":
            return array.to(self._device)
        with torch.cuda.stream(self._side):
            moved = array.pin_memory().to(self._device, non_blocking=True)
        reader = torch.cuda.current_stream(self._device)
        reader.wait_stream(self._side)
        moved.record_stream(reader)
        return moved


def most_bytes(offsets: Tensor, smoothing: Smoothing, steps: range, rows: int, dtype: torch.dtype) -> int:
    """Give the bytes of all matrices and their transposes, if no edge came twice: indices, values and row starts.

    Args:
        offsets: of the raw events, int64 [raw steps + 1].
        steps: raw steps, each of which has a matrix.
    """
    first = torch.tensor([smoothing.first_step(step) for step in steps], dtype=torch.int64)
    events = int((offsets[steps.start + 1 : steps.stop + 1] - offsets[first]).sum())
    entries = events + len(steps) * rows
    return 2 * (entries * (4 + dtype.itemsize) + 8 * len(steps) * (rows + 1))


def _may_prefetch(device: torch.device, asked: bool | None) -> bool:
    """Say whether something is free to work in the background: as many cores again as are used, or a device."""
    if asked is not None or device.type != "cpu":
        return asked is not False
    return usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) >= 2 * torch.get_num_threads()
