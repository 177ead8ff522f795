"""Raw events of a timeline, and their sorted keys: what enters and leaves a window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trisect.errors import TrisectError
from trisect.graph.timeline.timeline import Timeline
from trisect.native.library import INT, INT64, POINTER, Kernel, available, threads

_KEYS = Kernel("trisect_window_keys", POINTER, POINTER, INT, INT64, INT64, INT, INT64, INT, POINTER, INT, returns=INT64)

Allocate = Callable[[Sequence[int], torch.dtype], Tensor]


def plain_empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Allocate a tensor without a pool."""
    return torch.empty(tuple(shape), dtype=dtype)


@dataclass(frozen=True, eq=False)
class RawEvents:
    """Unweighted events by step, and the matrix in which they stand: an event src → dst is the entry (dst, src).

    Attributes:
        src, dst: int32 [events].
        offsets: int64 [steps + 1], on the CPU.
        rows, columns: of the matrix; dst < rows, src < columns.
        both: each event counts in both directions (a loop once).
        self_start: row i itself is the column self_start + i.
        bring: how a stretch of src or dst gets to the device of the window; None where it is there.
    """

    src: Tensor
    dst: Tensor
    offsets: Tensor
    rows: int
    columns: int
    both: bool = False
    self_start: int = 0
    bring: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def of(cls, timeline: Timeline) -> RawEvents:
        """Take all raw steps of a timeline, those before a part that `between` cut out included."""
        n = timeline.vertices
        return cls(timeline.src, timeline.dst, timeline.offsets, n, n, timeline.undirected)

    @property
    def bits(self) -> int:
        """Give the number of bits that a key, row << bits | column, keeps for the column."""
        return max(0, max(self.columns, self.rows if self.both else 0) - 1).bit_length()

    def turned(self) -> RawEvents:
        """Give the events of the transposed matrix."""
        return replace(
            self, src=self.dst, dst=self.src, rows=self.columns, columns=self.rows, self_start=-self.self_start
        )

    def keys(self, step: int, *, native: bool = True, allocate: Allocate = plain_empty) -> Tensor:
        """int64, ascending: the keys of all events of one step, as often as they occur."""
        first, last = int(self.offsets[step]), int(self.offsets[step + 1])
        if native and self.bring is None and available() and self.src.device.type == "cpu":
            source, target = self.src.contiguous(), self.dst.contiguous()
            keys = allocate(((2 if self.both else 1) * (last - first),), torch.int64)
            count = _KEYS(
                *(source.data_ptr(), target.data_ptr(), int(source.dtype == torch.int64), first, last, int(self.both)),
                *(self.rows, self.bits, keys.data_ptr(), threads()),
            )
            if count < 0:
                raise TrisectError(f"There is not enough memory to sort {last - first} events.")
            return keys[:count]
        source, target = self.src[first:last], self.dst[first:last]
        if self.bring is not None:
            source, target = self.bring(source), self.bring(target)
        source, target = source.long(), target.long()
        if self.both:
            back = source != target
            source, target = torch.cat([source, target[back]]), torch.cat([target, source[back]])
        return torch.sort((target << self.bits) | source)[0]
