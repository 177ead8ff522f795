"""A window that slides over the raw snapshots of a timeline: the matrix of each step from that of the one before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Protocol

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.graph.build import Normalisation, inverse_root
from trisect.graph.timeline.events import Allocate, RawEvents, plain_empty
from trisect.graph.timeline.smoothing import Smoothing
from trisect.graph.timeline.window import Form, Window


class Smoothed(Protocol):
    """Events with a smoothing: a timeline, or the part of one."""

    @property
    def weight(self) -> Tensor | None:
        """Give the weight of each event, or None where each counts 1."""

    @property
    def smoothing(self) -> Smoothing:
        """Say how a snapshot gathers the events of the steps before it."""


def slides(events: Smoothed) -> bool:
    """Say whether smoothed snapshots are counts of unweighted events, times one factor."""
    smoothing = events.smoothing
    return events.weight is None and not (smoothing.kind == "m-transform" and smoothing.matrix == "harmonic")


@dataclass(eq=False)
class SlidingWindow:
    """Smoothed snapshots of raw events, one step after the other, forward or backward; a jump starts afresh.

    Args:
        events: of all steps.
        smoothing: not harmonic.
        normalisation, self_loops, dtype: as in `Timeline.snapshot`.
        keep_bytes: sorted lists of raw snapshots are kept from pass to pass within this; those inside the window
            always are.
        column_sums: of a step, float64 [columns], for symmetric normalisation of a matrix that is not square, whose
            rows are its first columns: the sum of each column's vertex in the square matrix, loops included.
        read_columns: of a step, int64 ascending, the columns that its matrix keeps, numbered anew in this order; those
            that have entries must be among them. None: all.
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
    column_sums: Callable[[int], Tensor] | None = None
    read_columns: Callable[[int], Tensor] | None = None
    device: torch.device | str = "cpu"
    lists: Callable[[int], Tensor] | None = None
    brought: Callable[[int], None] | None = None
    allocate: Allocate = plain_empty
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
            matrix = self._move(step, asked)
            if matrix is None:
                matrix = self._window.matrix(asked)
            if form is None:
                matrix = self._narrowed(matrix, step)
                self._give_transpose(matrix, step)
            return matrix

    def _form(self, step: int) -> Form:
        factors = self.smoothing.coefficients(step)
        unit = None if factors is None else float(factors[0].to(self.dtype))
        if self.column_sums is None or self.normalisation != "symmetric":
            return Form(self.normalisation, self.dtype, unit)
        root = inverse_root(self.column_sums(step))
        return Form(self.normalisation, self.dtype, unit, root[: self.events.rows], root)

    def _narrowed(self, matrix: Adjacency, step: int) -> Adjacency:
        """Number the columns that the step reads anew; their order stays, and the values with it."""
        if self.read_columns is None:
            return matrix
        read = self.read_columns(step)
        number = torch.empty(self.events.columns, dtype=torch.int32, device=read.device)
        number[read] = torch.arange(read.numel(), dtype=torch.int32, device=read.device)
        if matrix.device.type == "cpu":
            indices = self.allocate(matrix.indices.shape, torch.int32)
            torch.index_select(number, 0, matrix.indices, out=indices)
        else:
            indices = number.index_select(0, matrix.indices)
        narrow = replace(matrix, indices=indices, columns=read.numel()).vouched()
        return narrow.with_entries(matrix.entries)

    def _move(self, step: int, form: Form) -> Adjacency | None:
        """Slide to a step; the matrix where the last slide made one."""
        held, wanted = self._held, range(self.smoothing.first_step(step), step + 1)
        enter, leave = [k for k in wanted if k not in held], [k for k in held if k not in wanted]
        if max(len(enter), len(leave)) > max(1, len(wanted) // 3):
            enter, leave = self._refill(wanted), []
        self._held = range(0)  # until it is done: a failure must not leave half a window
        matrix = None
        changes = list(zip_longest(enter, leave))
        for number, (comes, goes) in enumerate(changes, start=1):
            none = torch.empty(0, dtype=torch.int64, device=self.device)
            matrix = self._window.slide(
                none if comes is None else self._sorted(comes),
                none if goes is None else self._sorted(goes),
                form if number == len(changes) else None,
            )
        self._held = wanted
        self._forget(wanted)
        return matrix

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
        keys = self._keys.get(step)
        if keys is None:
            native = self._window.native
            if self.lists is None:
                keys = self.events.keys(step, native=native, allocate=self.allocate)
            else:
                keys = self.lists(step)
            self._announce(step)
            self._keys[step] = keys
            self._kept += keys.numel() * keys.element_size()
        return keys

    def _forget(self, window: range) -> None:
        """Drop lists outside the window where they are more than may be kept."""
        # the latest first: passes go in a circle, where keeping the latest would never find one again
        for step in [step for step in reversed(self._keys) if step not in window]:
            if self._kept <= self.keep_bytes:
                break
            keys = self._keys.pop(step)
            self._kept -= keys.numel() * keys.element_size()
        self._there = {step for step in self._there if step in window or step in self._keys}

    def _give_transpose(self, matrix: Adjacency, step: int) -> None:
        """A way to the transpose: itself where it is symmetric, otherwise a second window over turned events."""
        scales = self._window.scales
        if self.events.both and self.normalisation != "row":
            matrix.as_symmetric()
        elif scales is not None:
            matrix.with_transpose(_Turn(self, step, scales))

    def _transposed(self, step: int, scales: tuple[Tensor | None, Tensor | None]) -> Adjacency:
        with self._lock:
            if self._turned is None:
                self._turned = replace(
                    self,
                    events=self.events.turned(),
                    column_sums=None,
                    read_columns=None,
                    lists=None if self.events.bring is None else self._turned_keys,
                    brought=None,
                )
        left, right = scales
        if left is not None and right is None:  # by rows: of the transpose, by columns
            right = torch.ones(self.events.columns, dtype=torch.float64, device=left.device)
        unit = self._form(step).unit
        turned = self._turned.at(step, Form(self.normalisation, self.dtype, unit, right, left))
        if self.read_columns is None:
            return turned
        # the rows that are left out are empty
        read = self.read_columns(step)
        narrow = turned.rows_at(read)
        return narrow.with_entries(turned.entries)

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
