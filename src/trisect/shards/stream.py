"""`SnapshotStream`: brings the snapshots of a timeline from host memory to the device, one step after the other.

On a CPU the device's memory is the host's: the same code runs, and what counts as sent is what the kernels that build a
snapshot read of the timeline.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trisect.comm.ledger import Ledger
from trisect.errors import DataError
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import Normalisation
from trisect.graph.edge_features import with_entry_features
from trisect.graph.timeline.difference import ENCODINGS, Encoding, apply, difference, full_bytes
from trisect.graph.timeline.events import RawEvents
from trisect.graph.timeline.sliding import SlidingWindow, slides
from trisect.graph.timeline.timeline import Timeline
from trisect.ops.memory import empty
from trisect.shards.device_stream import Brought, DeviceStream, Mover, Source, most_bytes

EVENT_ARRAYS = ("src", "dst", "weight", "edge_x")
"""The arrays of a timeline of which a snapshot is made."""


class SnapshotStream(DeviceStream):
    """Prepared snapshots of a timeline on a device; stands wherever `Timeline.snapshots` stands.

    Read step by step it sends what changes; a jump sends the snapshot anew.

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
        lists = min(keep_bytes // 4, _list_bytes(timeline)) if _most_bytes(timeline, dtype) > keep_bytes else 0
        make = _Compact if encoding == "compact" else _Encoded
        super().__init__(
            make(timeline, normalisation, self_loops, dtype, self.device, encoding, lists),
            timeline.steps,
            Ledger() if ledger is None else ledger,
            keep_bytes=keep_bytes - lists,
            prefetch=prefetch,
        )


class _TimelineSource(Source):
    """Makes one snapshot of a timeline after the other."""

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
        super().__init__()
        self.timeline, self.device, self.encoding = timeline, device, encoding
        self.normalisation: Normalisation = normalisation
        self.self_loops, self.dtype = self_loops, dtype
        self._move = Mover(device)
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
    def bring(self, step: int) -> Brought:
        """The snapshot of a step."""

    def _matrix(self, timeline: Timeline, step: int) -> Adjacency:
        """From the window, or assembled where events have weights of their own; with the features of its edges."""
        if self._window is not None:
            return self._with_features(self._window.at(timeline.first + step), step)
        return timeline.snapshot(step, self.normalisation, self_loops=self.self_loops, dtype=self.dtype)

    def _with_features(self, matrix: Adjacency, step: int) -> Adjacency:
        """Put the features of edges beside the values; a window counts events and knows none of their features."""
        timeline = self.timeline
        if timeline.edge_x is None or matrix.device == timeline.device:
            return timeline.with_edge_features(matrix, step)
        stretch = timeline.window(step)
        ends = (self._move(timeline.src[stretch]), self._move(timeline.dst[stretch]))
        edge_x = self._move(timeline.edge_x[stretch])
        return with_entry_features(matrix, edge_x, *ends, timeline.merge, both=timeline.undirected)

    def _note(self, step: int) -> None:
        """Count the events of a raw step."""
        events = int(self.timeline.offsets[step + 1] - self.timeline.offsets[step])
        self.count_sent(events * event_bytes(self.timeline))


class _Compact(_TimelineSource):
    """Raw events go to the device, each once while they are in the window; it smooths and normalises."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._held = range(0)
        self._there: dict[int, tuple[Tensor, ...]] = {}

    def bring(self, step: int) -> Brought:
        """Send the events that are not there yet."""
        matrix = self._matrix(self.timeline if self._window is not None else self._gathered(step), step)
        return Brought(matrix, full_bytes(matrix), self.take_sent())

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
        names = [name for name in EVENT_ARRAYS if getattr(timeline, name) is not None]
        for k in fresh:
            stretch = slice(int(timeline.offsets[k]), int(timeline.offsets[k + 1]))
            self._there[k] = tuple(self._move(getattr(timeline, name)[stretch]) for name in names)
        self._there = {k: self._there[k] for k in wanted}
        joined = [torch.cat(parts) for parts in zip(*self._there.values(), strict=True)]
        offsets = (timeline.offsets - timeline.offsets[wanted.start]).clamp(min=0)
        there: dict[str, Any] = dict(zip(names, joined, strict=True))
        return replace(timeline, offsets=offsets, **there)


class _Encoded(_TimelineSource):
    """The host makes the normalised matrix and sends it, whole or as a difference to the one before."""

    _latest: tuple[int, Adjacency, Adjacency] | None = None

    def bring(self, step: int) -> Brought:
        """Send the step's matrix, or how it differs from the one before."""
        matrix = self._matrix(self.timeline, step)
        before = self._latest if self._latest is not None and self._latest[0] == step - 1 else None
        message = difference(None if before is None else before[1], matrix, self.encoding)
        sent = message.bytes
        if self.device != self.timeline.device:
            message = replace(message, tensors={name: self._move(array) for name, array in message.tensors.items()})
        result = apply(message, None if before is None else before[2])
        if matrix.features is not None:
            features = matrix.compact().features
            result = result.with_features(None if features is None else self._move(features))
            sent += matrix.entries * matrix.edge_channels * matrix.features.element_size()
        self._latest = (step, matrix, result) if self.encoding == "difference" else None
        return Brought(result, full_bytes(result), sent)


def event_bytes(timeline: Timeline) -> int:
    """What one raw event takes: both ends as int32, and the weight and the features where there are any."""
    arrays = [array for name in EVENT_ARRAYS if (array := getattr(timeline, name)) is not None]
    return sum(array.element_size() * array[:1].numel() for array in arrays) if timeline.src.numel() else 0


def _most_bytes(timeline: Timeline, dtype: torch.dtype) -> int:
    """Give the bytes of all snapshots and their transposes, if no edge came twice."""
    steps = range(timeline.first, timeline.first + timeline.steps)
    offsets = timeline.offsets * (2 if timeline.undirected else 1)
    return most_bytes(offsets, timeline.smoothing, steps, timeline.vertices, dtype)


def _list_bytes(timeline: Timeline) -> int:
    """Of the sorted events of all steps, those of the transpose included."""
    return 2 * 8 * timeline.total_events if slides(timeline) else 0
