"""A window that slides over raw snapshots, kept as a matrix of counts.

From one step to the next only the raw snapshot that enters and the one that leaves are merged into sorted rows, where
assembling would sort all events of the window again. Counts are integers, so that nothing drifts: each matrix equals
`Timeline.snapshot` to the bit. The native path is one pass that counts and one that writes; the torch path is its
oracle and serves other devices.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from trisect.errors import DataError, TrisectError
from trisect.graph.adjacency import Adjacency
from trisect.graph.assemble import Edges, assemble
from trisect.graph.build import Normalisation, normalise, row_sums, self_loops
from trisect.graph.smoothing import Smoothing
from trisect.graph.timeline import Timeline
from trisect.native.library import DOUBLE, INT, INT64, POINTER, Kernel, available, threads

_KEYS = Kernel("trisect_window_keys", POINTER, POINTER, INT, INT64, INT64, INT, INT64, INT, POINTER, INT, returns=INT64)
_MERGE = (POINTER, POINTER, POINTER, INT64, POINTER, INT64, POINTER, INT64, INT)
_COUNT = Kernel("trisect_window_count", *_MERGE, INT, INT64, *[POINTER] * 5, INT, returns=INT)
_WRITE = Kernel("trisect_window_write", *_MERGE, *[POINTER] * 7, DOUBLE, POINTER, INT, INT)
_VALUES = Kernel("trisect_window_values", *_MERGE[:4], POINTER, POINTER, DOUBLE, POINTER, INT, INT)
_SCALE = Kernel("trisect_window_scale", POINTER, INT64, INT, POINTER, INT)

Allocate = Callable[[Sequence[int], torch.dtype], Tensor]


def _plain_empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
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
        """All raw steps of a timeline, those before a part that `between` cut out included."""
        n = timeline.vertices
        return cls(timeline.src, timeline.dst, timeline.offsets, n, n, timeline.undirected)

    @property
    def bits(self) -> int:
        """Of a key row << bits | column."""
        return max(0, max(self.columns, self.rows if self.both else 0) - 1).bit_length()

    def turned(self) -> RawEvents:
        """Of the transposed matrix."""
        return replace(
            self, src=self.dst, dst=self.src, rows=self.columns, columns=self.rows, self_start=-self.self_start
        )

    def keys(self, step: int, *, native: bool = True, allocate: Allocate = _plain_empty) -> Tensor:
        """int64, ascending: the keys of all events of one step, as often as they occur."""
        first, last = int(self.offsets[step]), int(self.offsets[step + 1])
        if native and self.bring is None and available() and self.src.device.type == "cpu":
            source, target = self.src.contiguous(), self.dst.contiguous()
            found = allocate(((2 if self.both else 1) * (last - first),), torch.int64)
            count = _KEYS(
                *(source.data_ptr(), target.data_ptr(), int(source.dtype == torch.int64), first, last, int(self.both)),
                *(self.rows, self.bits, found.data_ptr(), threads()),
            )
            if count < 0:
                raise TrisectError(f"There is not enough memory to sort {last - first} events.")
            return found[:count]
        source, target = self.src[first:last], self.dst[first:last]
        if self.bring is not None:
            source, target = self.bring(source), self.bring(target)
        source, target = source.long(), target.long()
        if self.both:
            back = source != target
            source, target = torch.cat([source, target[back]]), torch.cat([target, source[back]])
        return torch.sort((target << self.bits) | source)[0]


@dataclass(frozen=True, eq=False)
class Form:
    """How counts become values.

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
        allocate: Allocate = _plain_empty,
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
        """Forget all events."""
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
        whole = not self.self_loops or (first >= 0 and last <= self.columns)
        return self.native and events.bring is None and whole

    def fill(self, events: RawEvents, steps: range) -> None:
        """The events of consecutive steps instead of all that was: one sort, where sliding them in would take many."""
        stretch = int(events.offsets[steps.start]), int(events.offsets[steps.stop])
        edges = Edges(events.src, events.dst, None, *stretch, both=events.both)
        matrix = Adjacency.from_csr(*assemble(edges, self.rows, self.columns), self.columns, self.self_start)
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
        found = (self._changes.data_ptr(), made.data_ptr())
        pointers = self._allocate((self.rows + 1,), torch.int64)
        pointers[0] = 0
        repeated = ctypes.c_int64(self.repeated)
        lengths = pointers.data_ptr() + pointers.element_size()
        kept = (int(self.self_loops), self.self_start, lengths, self.degrees.data_ptr(), ctypes.addressof(repeated))
        if _COUNT(*state, *kept, *found, threads()):
            self.clear()
            raise TrisectError("An edge leaves a window that does not hold it.")
        torch.cumsum(pointers, 0, out=pointers)
        entries = int(pointers[-1])
        self.repeated = repeated.value
        indices, counts = self._allocate((entries,), torch.int32), self._room(entries)
        left, right = (None, None) if form is None else self._scales(form)
        fused = form is not None and not self._scaled_later(form) and self._valued(form)
        values = self._allocate((entries,), form.dtype) if form is not None and fused else None
        _WRITE(
            *(*state, *found),
            *(pointers.data_ptr(), indices.data_ptr(), counts.data_ptr(), _pointer(left), _pointer(right)),
            1.0 if form is None or form.unit is None else form.unit,
            _pointer(values),
            int(values is not None and values.dtype == torch.float64),
            threads(),
        )
        self._spare, self.counts = self.counts, counts
        self.pointers, self.indices = pointers, indices
        if form is None:
            return None
        return self._adjacency(values, (left, right)) if fused else self.matrix(form)

    def matrix(self, form: Form) -> Adjacency:
        """The window as it is."""
        if self._scaled_later(form):
            raw = self._adjacency(self._values(None, None, form), None)
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
                *(_pointer(left), _pointer(right), 1.0 if form.unit is None else form.unit, values.data_ptr()),
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
        found = Adjacency(
            self.pointers[:-1], self.pointers[1:], self.indices, values, self.columns, self_start=self.self_start
        )
        found._cache["entries"] = self.indices.numel()
        self.scales = scales
        return found

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
            raise TrisectError("An edge leaves a window that does not hold it.")
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


def slides(timeline: Timeline) -> bool:
    """Whether the timeline's snapshots are counts of unweighted events, times one factor."""
    smoothing = timeline.smoothing
    return timeline.weight is None and not (smoothing.kind == "m-transform" and smoothing.matrix == "harmonic")


@dataclass(eq=False)
class SlidingWindow:
    """Smoothed snapshots of raw events, one step after the other, forward or backward; a jump starts afresh.

    Args:
        events: of all steps.
        smoothing: not harmonic.
        normalisation, self_loops, dtype: as in `Timeline.snapshot`.
        keep_bytes: sorted lists of raw snapshots are kept from pass to pass within this; those inside the window
            always are.
        column_factors: of a step, float64 [columns], for symmetric normalisation of a matrix that is not square.
        device: of the window.
        lists: the sorted keys of a step, where they come from elsewhere than `events`.
        brought: told each step whose events are read.
        allocate, native: as in `Window`.
    """

    events: RawEvents
    smoothing: Smoothing
    normalisation: Normalisation = "none"
    self_loops: bool = False
    dtype: torch.dtype = torch.float32
    keep_bytes: int = 0
    column_factors: Callable[[int], Tensor] | None = None
    device: torch.device | str = "cpu"
    lists: Callable[[int], Tensor] | None = None
    brought: Callable[[int], None] | None = None
    allocate: Allocate = _plain_empty
    native: bool | None = None

    def __post_init__(self) -> None:
        events = self.events
        self._window = Window(
            *(events.rows, events.columns, events.bits),
            self_loops=self.self_loops,
            self_start=events.self_start,
            device=self.device,
            allocate=self.allocate,
            native=self.native,
        )
        self._keys: dict[int, Tensor] = {}
        self._kept = 0
        self._held = range(0)
        self._there: set[int] = set()
        self._turned: SlidingWindow | None = None
        self._lock = threading.RLock()

    def at(self, step: int, form: Form | None = None) -> Adjacency:
        """The matrix of a step (counted over all raw steps), with its own values or in a form that is given."""
        with self._lock:
            asked = self._form(step) if form is None else form
            found = self._move(step, asked)
            if found is None:
                found = self._window.matrix(asked)
            if form is None:
                self._give_transpose(found, step)
            return found

    def _form(self, step: int) -> Form:
        factors = self.smoothing.coefficients(step)
        unit = None if factors is None else float(factors[0].to(self.dtype))
        right = self.column_factors(step) if self.column_factors is not None else None
        return Form(self.normalisation, self.dtype, unit, None, right)

    def _move(self, step: int, form: Form) -> Adjacency | None:
        """Slide to a step; the matrix where the last slide made one."""
        held, wanted = self._held, range(self.smoothing.first_step(step), step + 1)
        enter, leave = [k for k in wanted if k not in held], [k for k in held if k not in wanted]
        if max(len(enter), len(leave)) > max(1, len(wanted) // 3):
            enter, leave = self._refill(wanted), []
        self._held = range(0)  # until it is done: a failure must not leave half a window
        found = None
        changes = list(zip_longest(enter, leave))
        for number, (comes, goes) in enumerate(changes, start=1):
            none = torch.empty(0, dtype=torch.int64, device=self.device)
            found = self._window.slide(
                none if comes is None else self._sorted(comes),
                none if goes is None else self._sorted(goes),
                form if number == len(changes) else None,
            )
        self._held = wanted
        self._forget(wanted)
        return found

    def _refill(self, wanted: range) -> list[int]:
        """Start afresh, from all events at once where their matrix can be assembled; the steps that are left to add."""
        self._window.clear()
        if not self._window.fills(self.events):
            return list(wanted)
        for step in wanted:
            self._announce(step)
        self._window.fill(self.events, wanted)
        return []

    def _announce(self, step: int) -> None:
        """Say that a step's events are read, unless the window or a kept list has them already."""
        if self.brought is not None and step not in self._there:
            self.brought(step)
        self._there.add(step)

    def _sorted(self, step: int) -> Tensor:
        found = self._keys.get(step)
        if found is None:
            native = self._window.native
            if self.lists is None:
                found = self.events.keys(step, native=native, allocate=self.allocate)
            else:
                found = self.lists(step)
            self._announce(step)
            self._keys[step] = found
            self._kept += found.numel() * found.element_size()
        return found

    def _forget(self, window: range) -> None:
        """Drop lists outside the window where they are more than may be kept."""
        # the latest first: passes go in a circle, where keeping the latest would never find one again
        for step in [step for step in reversed(self._keys) if step not in window]:
            if self._kept <= self.keep_bytes:
                break
            found = self._keys.pop(step)
            self._kept -= found.numel() * found.element_size()
        self._there = {step for step in self._there if step in window or step in self._keys}

    def _give_transpose(self, found: Adjacency, step: int) -> None:
        """A way to the transpose: itself where it is symmetric, otherwise a second window over turned events."""
        scales = self._window.scales
        if self.events.both and self.normalisation != "row":
            found.as_symmetric()
        elif scales is not None:
            found.with_transpose(_Turn(self, step, scales))

    def _transposed(self, step: int, scales: tuple[Tensor | None, Tensor | None]) -> Adjacency:
        with self._lock:
            if self._turned is None:
                self._turned = replace(
                    self,
                    events=self.events.turned(),
                    column_factors=None,
                    lists=None if self.events.bring is None else self._turned_keys,
                    brought=None,
                )
        left, right = scales
        if left is not None and right is None:  # by rows: of the transpose, by columns
            right = torch.ones(self.events.columns, dtype=torch.float64, device=left.device)
        unit = self._form(step).unit
        return self._turned.at(step, Form(self.normalisation, self.dtype, unit, right, left))

    def _turned_keys(self, step: int) -> Tensor:
        """From the list that is here, so that no event is brought to the device twice."""
        with self._lock:
            keys, bits = self._sorted(step), self.events.bits
        row, column = keys >> bits, keys & ((1 << bits) - 1)
        return torch.sort((column << self.events.turned().bits) | row)[0]


@dataclass(frozen=True, eq=False)
class _Turn:
    """Makes the transpose of one step's matrix; holds the factors of its values, and no cycle to it."""

    window: SlidingWindow
    step: int
    scales: tuple[Tensor | None, Tensor | None]

    def __call__(self) -> Adjacency:
        return self.window._transposed(self.step, self.scales)


def _pointer(array: Tensor | None) -> int | None:
    return None if array is None else array.data_ptr()
