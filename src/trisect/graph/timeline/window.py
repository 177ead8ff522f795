"""A window over raw snapshots, kept as a matrix of counts.

From one step to the next only the raw snapshot that enters and the one that leaves are merged into sorted rows, where
assembling would sort all events of the window again. Counts are integers, so that nothing drifts: each matrix equals
`Timeline.snapshot` to the bit. The native path is one pass that counts and one that writes; the torch path is its
oracle and serves other devices.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trisect.errors import DataError, TrisectError
from trisect.graph.adjacency import Adjacency
from trisect.graph.assemble import Edges, assemble
from trisect.graph.build import Normalisation, normalise, row_sums, scale, self_loops
from trisect.graph.timeline.events import Allocate, RawEvents, plain_empty
from trisect.native.library import DOUBLE, INT, INT64, POINTER, Kernel, available, pointer, threads

_MERGE = (POINTER, POINTER, POINTER, INT64, POINTER, INT64, POINTER, INT64, INT)
_COUNT = Kernel("trisect_window_count", *_MERGE, INT, INT64, *[POINTER] * 5, INT, returns=INT)
_WRITE = Kernel("trisect_window_write", *_MERGE, *[POINTER] * 7, DOUBLE, POINTER, INT, INT)
_VALUES = Kernel("trisect_window_values", *_MERGE[:4], POINTER, POINTER, DOUBLE, POINTER, INT, INT)
_SCALE = Kernel("trisect_window_scale", POINTER, INT64, INT, POINTER, INT)


@dataclass(frozen=True, eq=False)
class Form:
    """A form says how counts become values.

    Attributes:
        normalisation, dtype: as in `Timeline.snapshot`.
        unit: what one occurrence counts before normalisation; None where that is 1 by nature.
        left, right: float64 [rows], [columns]: factors that are given instead of the degrees' own.
    """

    normalisation: Normalisation = "none"
    dtype: torch.dtype = torch.float32
    unit: float | None = None
    left: Tensor | None = None
    right: Tensor | None = None


class Window:
    """A matrix of counts, into which lists of keys enter and from which they leave.

    Args:
        rows, columns, bits: of the keys, see `RawEvents`.
        self_loops: each row has a loop, which counts 1 where no event is one.
        self_start: row i itself is the column self_start + i.
        allocate: where large arrays come from.
        native: whether to use the kernels; by default where that is possible.

    Attributes:
        scales: the factors of rows and columns in the latest matrix; None where they are in its values alone.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        bits: int,
        *,
        self_loops: bool = False,
        self_start: int = 0,
        device: torch.device | str = "cpu",
        allocate: Allocate = plain_empty,
        native: bool | None = None,
    ) -> None:
        self.rows, self.columns, self.bits = rows, columns, bits
        self.self_loops, self.self_start = self_loops, self_start
        self.device = torch.device(device)
        self.native = (available() if native is None else native) and self.device.type == "cpu"
        self._allocate = allocate
        self._spare = torch.empty(0, dtype=torch.int32)
        self._changes = torch.empty(0, dtype=torch.int64)
        self.scales: tuple[Tensor | None, Tensor | None] | None = None
        self.clear()

    def clear(self) -> None:
        """Forget all events of the window."""
        row = torch.arange(self.rows, device=self.device)
        own = row + self.self_start
        has = (own >= 0) & (own < self.columns) if self.self_loops else torch.zeros_like(row, dtype=torch.bool)
        self.pointers = torch.zeros(self.rows + 1, dtype=torch.int64, device=self.device)
        torch.cumsum(has, 0, out=self.pointers[1:])
        self.indices = own[has].to(torch.int32)
        self.counts = torch.zeros_like(self.indices)
        self.degrees = has.double()
        self.repeated = 0

    def fills(self, events: RawEvents) -> bool:
        """Whether `fill` can be used; it needs the kernels, and loops in all rows or none."""
        first, last = self.self_start, self.self_start + self.rows
        loops_fit = not self.self_loops or (first >= 0 and last <= self.columns)
        return self.native and events.bring is None and loops_fit

    def fill(self, events: RawEvents, steps: range) -> None:
        """The events of consecutive steps instead of all that was: one sort, where sliding them in would take many."""
        stretch = int(events.offsets[steps.start]), int(events.offsets[steps.stop])
        edges = Edges(events.src, events.dst, None, *stretch, both=events.both)
        matrix = Adjacency.from_csr(*assemble(edges, self.rows, self.columns), self.columns, self.self_start).vouched()
        if self.self_loops:
            matrix = self_loops(matrix, 0.0)
        self.pointers = matrix.pointers()
        self.indices = matrix.indices
        if matrix.values is None:
            self.counts = torch.ones(matrix.indices.numel(), dtype=torch.int32)
            self.degrees = row_sums(matrix)
        else:
            self.counts = matrix.values.to(torch.int32)
            self.degrees = row_sums(matrix.with_values(matrix.values.clamp(min=1.0)))
        self.repeated = int((self.counts > 1).sum())

    def slide(self, enter: Tensor, leave: Tensor, form: Form | None = None) -> Adjacency | None:
        """Take keys in and others out, both ascending; with a form also the matrix, made in the same pass."""
        if not self.native:
            self._slide_torch(enter, leave)
            return None if form is None else self.matrix(form)
        state: tuple[Any, ...] = (
            *(self.pointers.data_ptr(), self.indices.data_ptr(), self.counts.data_ptr(), self.rows),
            *(enter.data_ptr(), enter.numel(), leave.data_ptr(), leave.numel()),
            self.bits,
        )
        # of each change a place, a column and a count; of each chunk of rows (fewer than rows) how many
        room = 2 * (enter.numel() + leave.numel())
        if self._changes.numel() < room:
            self._changes = torch.empty(room + room // 8, dtype=torch.int64)
        made = torch.empty(self.rows // 1024 + 1, dtype=torch.int64)
        changes = (self._changes.data_ptr(), made.data_ptr())
        pointers = self._allocate((self.rows + 1,), torch.int64)
        pointers[0] = 0
        repeated = ctypes.c_int64(self.repeated)
        lengths = pointers.data_ptr() + pointers.element_size()
        kept = (int(self.self_loops), self.self_start, lengths, self.degrees.data_ptr(), ctypes.addressof(repeated))
        if _COUNT(*state, *kept, *changes, threads()):
            self.clear()
            raise TrisectError(
                "An edge leaves a window that does not hold it; slide the window over consecutive steps."
            )
        torch.cumsum(pointers, 0, out=pointers)
        entries = int(pointers[-1])
        self.repeated = repeated.value
        indices, counts = self._allocate((entries,), torch.int32), self._room(entries)
        left, right = (None, None) if form is None else self._scales(form)
        fused = form is not None and not self._scaled_later(form) and self._valued(form)
        values = self._allocate((entries,), form.dtype) if form is not None and fused else None
        _WRITE(
            *(*state, *changes),
            *(pointers.data_ptr(), indices.data_ptr(), counts.data_ptr(), pointer(left), pointer(right)),
            1.0 if form is None or form.unit is None else form.unit,
            pointer(values),
            int(values is not None and values.dtype == torch.float64),
            threads(),
        )
        self._spare, self.counts = self.counts, counts
        self.pointers, self.indices = pointers, indices
        if form is None:
            return None
        return self._adjacency(values, (left, right)) if fused else self.matrix(form)

    def matrix(self, form: Form) -> Adjacency:
        """Give the matrix of the window as it stands."""
        if self._scaled_later(form):
            raw = self._adjacency(self._values(None, None, form), None)
            if form.left is not None:
                return scale(raw, form.left, form.right)
            return normalise(raw, form.normalisation, False)
        left, right = self._scales(form)
        return self._adjacency(self._values(left, right, form) if self._valued(form) else None, (left, right))

    def _scaled_later(self, form: Form) -> bool:
        """Whether degrees are sums of rounded values, which only the values themselves give to the bit."""
        return form.unit is not None and form.normalisation != "none"

    def _valued(self, form: Form) -> bool:
        plain = form.normalisation == "none" and form.unit is None and form.dtype == torch.float32
        return not plain or self.repeated > 0

    def _scales(self, form: Form) -> tuple[Tensor | None, Tensor | None]:
        if form.normalisation == "none" or self._scaled_later(form):
            return None, None
        if form.left is not None:
            return form.left, form.right
        plain = form.normalisation == "row"
        if self.native:
            own = self._allocate((self.rows,), torch.float64)
            _SCALE(self.degrees.data_ptr(), self.rows, int(plain), own.data_ptr(), threads())
        else:
            own = self.degrees.reciprocal() if plain else self.degrees.rsqrt()
            own = own.masked_fill(self.degrees == 0, 0.0)
        if plain:
            return own, None
        if form.right is None and self.rows != self.columns:
            raise DataError(
                f"Symmetric normalisation of {self.rows} x {self.columns} entries needs the factors of the columns."
            )
        return own, own if form.right is None else form.right

    def _values(self, left: Tensor | None, right: Tensor | None, form: Form) -> Tensor:
        if self.native:
            values = self._allocate((self.indices.numel(),), form.dtype)
            _VALUES(
                *(self.pointers.data_ptr(), self.indices.data_ptr(), self.counts.data_ptr(), self.rows),
                *(pointer(left), pointer(right), 1.0 if form.unit is None else form.unit, values.data_ptr()),
                *(int(form.dtype == torch.float64), threads()),
            )
            return values
        counts = self.counts.double()
        if left is None:
            return torch.where(counts == 0, 1.0, counts * (1.0 if form.unit is None else form.unit)).to(form.dtype)
        scale = left[self._row_of()]
        if right is not None:
            scale = scale * right[self.indices.long()]
        return (scale * (counts + (counts == 0))).to(form.dtype)

    def _adjacency(self, values: Tensor | None, scales: tuple[Tensor | None, Tensor | None] | None) -> Adjacency:
        self.scales = scales
        matrix = Adjacency(
            self.pointers[:-1], self.pointers[1:], self.indices, values, self.columns, self_start=self.self_start
        )
        return matrix.vouched().with_entries(self.indices.numel())

    def _room(self, entries: int) -> Tensor:
        """The counts of the window before, or more where that is too small; nobody else reads them."""
        if self._spare.numel() < entries:
            self._spare = torch.empty(entries + entries // 8, dtype=torch.int32)
        return self._spare

    def _row_of(self) -> Tensor:
        return torch.repeat_interleave(torch.arange(self.rows, device=self.device), self.pointers.diff())

    def _slide_torch(self, enter: Tensor, leave: Tensor) -> None:
        held = (self._row_of() << self.bits) | self.indices.long()
        change = [self.counts.long(), torch.ones_like(enter), -torch.ones_like(leave)]
        keys, which = torch.unique(torch.cat([held, enter, leave]), return_inverse=True)
        counts = torch.zeros_like(keys).index_add_(0, which, torch.cat(change))
        if bool((counts < 0).any()):
            self.clear()
            raise TrisectError(
                "An edge leaves a window that does not hold it; slide the window over consecutive steps."
            )
        row, column = keys >> self.bits, keys & ((1 << self.bits) - 1)
        keep = counts > 0
        if self.self_loops:
            keep = keep | (column == row + self.self_start)
        row, counts = row[keep], counts[keep]
        self.pointers = torch.zeros(self.rows + 1, dtype=torch.int64, device=self.device)
        torch.cumsum(torch.bincount(row, minlength=self.rows), 0, out=self.pointers[1:])
        self.indices, self.counts = column[keep].to(torch.int32), counts.to(torch.int32)
        self.degrees = torch.zeros(self.rows, dtype=torch.float64, device=self.device)
        self.degrees.index_add_(0, row, (counts + (counts == 0)).double())
        self.repeated = int((counts > 1).sum())
