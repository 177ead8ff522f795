"""`SnapshotStream`: brings the snapshots of a timeline from host memory to the device, one step after the other.

On a CPU the device's memory is the host's: the same code runs, and what counts as sent is what the kernels that build a
snapshot read of the timeline.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trisect.comm.ledger import Ledger
from trisect.errors import DataError
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import Normalisation
from trisect.graph.difference import ENCODINGS, Encoding, apply, difference, full_bytes
from trisect.graph.events import RawEvents
from trisect.graph.sliding import SlidingWindow, slides
from trisect.graph.snapshots import OnDemand
from trisect.graph.timeline import Timeline
from trisect.ops.memory import empty


@dataclass(frozen=True, eq=False)
class _Brought:
    """A snapshot on the device, its size as a whole, and what was sent for it."""

    matrix: Adjacency
    full: int
    sent: int


class SnapshotStream(OnDemand):
    """Prepared snapshots of a timeline on a device; stands wherever `Timeline.snapshots` stands.

    Read step by step it sends what changes; a jump sends the snapshot anew. The next step is made in the background
    where a core (or the device) is free for it. Within `keep_bytes` snapshots are kept, the first that come, since
    epochs read them in a circle.

    Args:
        timeline: in host memory (or on the device already).
        normalisation, self_loops, dtype: as in `Timeline.snapshot`.
        device: where the snapshots are read.
        encoding: `full`, `difference` (of normalised matrices) or `compact` (raw events; the device smooths and
            normalises). All give the same matrices.
        ledger: told the bytes of each snapshot that is brought.
        keep_bytes: memory for kept snapshots (with their transposes) and, where not all fit, for sorted raw events.
        prefetch: whether to make the next step in the background; None: where cores allow.
    """

    def __init__(
        self,
        timeline: Timeline,
        normalisation: Normalisation = "none",
        *,
        self_loops: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        encoding: Encoding = "compact",
        ledger: Ledger | None = None,
        keep_bytes: int = 0,
        prefetch: bool | None = None,
    ) -> None:
        if encoding not in ENCODINGS:
            raise DataError(f"encoding is {encoding!r}; choose one of {', '.join(ENCODINGS)}.")
        self.timeline = timeline
        self.device = torch.device(timeline.device if device is None else device)
        self.ledger = Ledger() if ledger is None else ledger
        reserved = min(keep_bytes // 4, _list_bytes(timeline)) if _most_bytes(timeline, dtype) > keep_bytes else 0
        self._left = keep_bytes - reserved
        make = _Compact if encoding == "compact" else _Encoded
        self._source: _Source = make(timeline, normalisation, self_loops, dtype, self.device, encoding, reserved)
        self._kept: dict[int, Adjacency] = {}
        self._latest = -1
        self._pool = ThreadPoolExecutor(1, "snapshots") if _may_prefetch(self.device, prefetch) else None
        self._next: tuple[int, Future[_Brought]] | None = None

    def __len__(self) -> int:
        return self.timeline.steps

    def at(self, step: int) -> Adjacency:
        """What is kept, on its way, or brought now."""
        found = self._kept.get(step)
        if found is None:
            found = self._take(step)
            # a transpose that shares the arrays, or is still to come
            size = found.memory_bytes * (1 if found.has_transpose() else 2)
            if size <= self._left:
                self._left -= size
                self._kept[step] = found
        forward, self._latest = step == self._latest + 1, step
        after = step + 1
        if forward and self._pool is not None and after < len(self) and after not in self._kept and self._next is None:
            self._next = after, self._pool.submit(self._source.bring, after)
        return found

    def _take(self, step: int) -> Adjacency:
        """The snapshot that is on its way, or a new one. What was fetched in vain counts as sent too."""
        while self._next is not None:
            (coming, future), self._next = self._next, None
            found = future.result()
            self.ledger.add_transfer(found.full if coming == step else 0, found.sent)
            if coming == step:
                return found.matrix
        found = self._source.bring(step)
        self.ledger.add_transfer(found.full, found.sent)
        return found.matrix


class _Source(ABC):
    """Makes one snapshot after the other on the device; called by one thread at a time."""

    def __init__(
        self,
        timeline: Timeline,
        normalisation: Normalisation,
        self_loops: bool,
        dtype: torch.dtype,
        device: torch.device,
        encoding: Encoding,
        keep_bytes: int,
    ) -> None:
        self.timeline, self.device, self.encoding = timeline, device, encoding
        self.normalisation: Normalisation = normalisation
        self.self_loops, self.dtype = self_loops, dtype
        self._sent, self._counting = 0, threading.Lock()
        self._mover = _Mover(device) if device.type == "cuda" else None
        self._window: SlidingWindow | None = None
        if slides(timeline):
            # events cross to the device where they are what is sent; otherwise the host makes the matrix
            here = device if encoding == "compact" else timeline.device
            self._window = SlidingWindow(
                replace(RawEvents.of(timeline), bring=None if here == timeline.device else self._move),
                timeline.smoothing,
                normalisation,
                self_loops,
                dtype,
                keep_bytes,
                device=here,
                brought=self._note,
                allocate=empty,
            )

    @abstractmethod
    def bring(self, step: int) -> _Brought:
        """The snapshot of a step."""

    def _matrix(self, timeline: Timeline, step: int) -> Adjacency:
        """From the window, or assembled where events have weights of their own."""
        if self._window is not None:
            return self._window.at(timeline.first + step)
        return timeline.snapshot(step, self.normalisation, self_loops=self.self_loops, dtype=self.dtype)

    def _move(self, array: Tensor) -> Tensor:
        return array.to(self.device) if self._mover is None else self._mover(array)

    def _note(self, step: int) -> None:
        """Count the events of a raw step."""
        events = int(self.timeline.offsets[step + 1] - self.timeline.offsets[step])
        with self._counting:
            self._sent += events * event_bytes(self.timeline)

    def _take_sent(self) -> int:
        """Give what was sent since the last call, for snapshots and for transposes that were made later."""
        with self._counting:
            sent, self._sent = self._sent, 0
        return sent


class _Compact(_Source):
    """Raw events go to the device, each once while they are in the window; it smooths and normalises."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._held = range(0)
        self._there: dict[int, tuple[Tensor, ...]] = {}

    def bring(self, step: int) -> _Brought:
        """Send the events that are not there yet."""
        matrix = self._matrix(self.timeline if self._window is not None else self._gathered(step), step)
        return _Brought(matrix, full_bytes(matrix), self._take_sent())

    def _gathered(self, step: int) -> Timeline:
        """The timeline, as far as the step needs it, on the device."""
        timeline, now = self.timeline, self.timeline.first + step
        wanted = range(timeline.smoothing.first_step(now), now + 1)
        fresh = [k for k in wanted if k not in self._held]
        for k in fresh:
            self._note(k)
        self._held = wanted
        if timeline.device == self.device:
            return timeline
        arrays = [array for array in (timeline.src, timeline.dst, timeline.weight) if array is not None]
        for k in fresh:
            stretch = slice(int(timeline.offsets[k]), int(timeline.offsets[k + 1]))
            self._there[k] = tuple(self._move(array[stretch]) for array in arrays)
        self._there = {k: self._there[k] for k in wanted}
        joined = [torch.cat(parts) for parts in zip(*self._there.values(), strict=True)]
        offsets = (timeline.offsets - timeline.offsets[wanted.start]).clamp(min=0)
        return replace(
            timeline, src=joined[0], dst=joined[1], weight=joined[2] if len(joined) > 2 else None, offsets=offsets
        )


class _Encoded(_Source):
    """The host makes the normalised matrix and sends it, whole or as a difference to the one before."""

    _latest: tuple[int, Adjacency, Adjacency] | None = None

    def bring(self, step: int) -> _Brought:
        """Send the step's matrix."""
        matrix = self._matrix(self.timeline, step)
        before = self._latest if self._latest is not None and self._latest[0] == step - 1 else None
        message = difference(None if before is None else before[1], matrix, self.encoding)
        sent = message.bytes
        if self.device != self.timeline.device:
            message = replace(message, tensors={name: self._move(array) for name, array in message.tensors.items()})
        result = apply(message, None if before is None else before[2])
        self._latest = (step, matrix, result) if self.encoding == "difference" else None
        return _Brought(result, full_bytes(result), sent)


class _Mover:
    """Copies to a CUDA device through pinned memory on a stream of its own, which the reader's stream waits for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, array: Tensor) -> Tensor:
        if array.device.type != "cpu":
            return array.to(self._device)
        with torch.cuda.stream(self._side):
            moved = array.pin_memory().to(self._device, non_blocking=True)
        reader = torch.cuda.current_stream(self._device)
        reader.wait_stream(self._side)
        moved.record_stream(reader)
        return moved


def event_bytes(timeline: Timeline) -> int:
    """What one raw event takes: both ends as int32, and the weight where there is one."""
    arrays = (timeline.src, timeline.dst, timeline.weight)
    return sum(array.element_size() for array in arrays if array is not None)


def _most_bytes(timeline: Timeline, dtype: torch.dtype) -> int:
    """Of all snapshots and their transposes, if no edge came twice: indices, values and the starts of rows."""
    offsets, steps = timeline.offsets, range(timeline.first, timeline.first + timeline.steps)
    first = torch.tensor([timeline.smoothing.first_step(step) for step in steps], dtype=torch.int64)
    events = int((offsets[steps.start + 1 : steps.stop + 1] - offsets[first]).sum())
    entries = events * (2 if timeline.undirected else 1) + timeline.steps * timeline.vertices
    return 2 * (entries * (4 + dtype.itemsize) + 8 * timeline.steps * (timeline.vertices + 1))


def _list_bytes(timeline: Timeline) -> int:
    """Of the sorted events of all steps, those of the transpose included."""
    return 2 * 8 * timeline.total_events if slides(timeline) else 0


def _may_prefetch(device: torch.device, asked: bool | None) -> bool:
    """Whether there is someone to work in the background: as many cores again as this process uses, or a device."""
    if asked is not None or device.type != "cpu":
        return asked is not False
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) >= 2 * torch.get_num_threads()
