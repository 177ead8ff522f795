"""A temporal half whose state crosses ranks: done apart, chunk of rows by chunk of rows, over the steps of a block.

The exchange says which steps and rows of a block a rank does, in how many chunks, and what the half begins with:
`TemporalHalf` begins with a state that was handed over or with none, `trisect.engine.frames` with frames of other runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trisect.engine.cell import Cell
from trisect.engine.recurrence import Recurrence
from trisect.engine.units import Ref, Step
from trisect.engine.values import Value, require, require_kind
from trisect.exchanges.catalogue import sets_apart
from trisect.exchanges.facts import Facts, equal_shares
from trisect.nn.temporal.evolving import Evolving
from trisect.ops.backward import run_backward
from trisect.ops.memory import empty


class TemporalHalf:
    """The temporal half of one layer on one rank.

    Attributes:
        current: the cell at work.
    """

    def __init__(self, step: Step, facts: Facts, recurrence: Recurrence, part: int, run: int) -> None:
        self.step, self.recurrence, self._part, self._run = step, recurrence, part, run
        self.layer = facts.layers[step.layer]
        self.current: Cell | None = None
        self.clear(facts)

    def clear(self, facts: Facts) -> None:
        """Forget everything, since another pass begins or one has ended."""
        exchange = require(sets_apart(facts, self.step.half), "the exchange of a temporal half")
        self.facts, self._exchange = facts, exchange
        self.chunks = exchange.half_chunks(facts, self.step.layer)
        rows = exchange.half_rows(facts, self._part, self._run)
        self._count = rows.stop - rows.start
        self._out: Tensor | None = None
        self._gradients: list[Tensor | None] = []

    def _steps(self, cell: Cell) -> range:
        return self._exchange.half_steps(self.facts, cell.block, self._run)

    def _rows(self, chunk: int) -> slice:
        bounds = equal_shares(self._count, self.chunks)
        return slice(bounds[chunk], bounds[chunk + 1])

    def _refs(self) -> list[Ref]:
        return [self.step.x] if self.step.beside is None else [self.step.x, self.step.beside]

    def _widths(self) -> list[int]:
        return [self.layer.inside_channels, self.layer.in_channels][: len(self._refs())]

    def _inputs(self, cell: Cell) -> tuple[list[Tensor], list[bool]]:
        """What the recurrent part reads, [steps, rows, channels] each, and which of it gets a gradient."""
        steps, frames = len(self._steps(cell)), []
        for ref in self._refs():
            rows = cell.values[ref].require(ref)
            fixed = cell._is_fixed(ref)
            frames.append(rows.expand(steps, *rows.shape) if fixed else rows.view(steps, self._count, rows.shape[-1]))
        return frames, self._needs(cell)

    def _needs(self, cell: Cell) -> list[bool]:
        return [ref == self.step.x or cell.values[ref].trained for ref in self._refs()]

    def _empty(self, cell: Cell, channels: int) -> Tensor:
        return empty((len(self._steps(cell)), self._count, channels), self.recurrence.dtype, self.recurrence.device)

    # Forward

    def forward(self, cell: Cell, chunk: int, *, again: bool) -> None:
        """Do a chunk of the rows; the last one hands the output on."""
        frames, needs = self._inputs(cell)
        first, rows = self._steps(cell).start, self._rows(chunk)
        if self.chunks == 1:
            self._made(cell, self.recurrence.forward(cell.block, 0, frames, needs, self._count, first))
            return
        if chunk == 0:
            self._out = self._empty(cell, self.layer.out_channels)
        out = require(self._out, "the output of a temporal half")
        part = [frame.detach()[:, rows] for frame in frames]
        self.recurrence.forward(cell.block, chunk, part, needs, rows.stop - rows.start, first, out[:, rows])
        if chunk == self.chunks - 1:
            self._made(cell, out)
            self._out = None

    def _made(self, cell: Cell, out: Tensor) -> None:
        value = cell.values.setdefault(self.step.out, Value(None))
        value.rows, value.trained = out.flatten(0, 1), not cell.evaluates

    # Backward

    def backward(self, cell: Cell, chunk: int) -> None:
        """Back through a chunk; the last one hands the gradients of the input on."""
        d_out = cell.values[self.step.out].reading.gradient
        if d_out is not None:
            d_out = d_out.view(len(self._steps(cell)), self._count, d_out.shape[-1])
        if self.chunks == 1:
            self._give(cell, self.recurrence.backward(cell.block, 0, d_out))
            return
        rows = self._rows(chunk)
        if chunk == self.chunks - 1:
            needs = zip(self._widths(), self._needs(cell), strict=True)
            self._gradients = [self._empty(cell, width) if need else None for width, need in needs]
        into = [None if gradient is None else gradient[:, rows] for gradient in self._gradients]
        self.recurrence.backward(cell.block, chunk, None if d_out is None else d_out[:, rows], into)
        if chunk == 0:
            self._give(cell, self._gradients)
            self._gradients = []

    def _give(self, cell: Cell, gradients: Sequence[Tensor | None]) -> None:
        """Hand the gradients of the input to the values that it is."""
        for ref, gradient in zip(self._refs(), gradients, strict=True):
            if gradient is not None:
                cell.values[ref].reading.add(gradient.flatten(0, 1))

    def finish_inputs(self, cell: Cell) -> None:
        """Backward comes to what the half reads; all gradients of that were handed on already."""


class WeightHalf(TemporalHalf):
    """The half of a layer whose weight evolves, from the summaries of the snapshots of the own steps."""

    def clear(self, facts: Facts) -> None:
        """Forget everything, since another pass begins or one has ended."""
        super().clear(facts)
        self._leaf: Tensor | None = None

    def forward(self, cell: Cell, chunk: int, *, again: bool) -> None:
        """Give the weights of the own steps."""
        layer, message = require_kind(self.recurrence.layer, Evolving), require(self.step.message, "a summary")
        leaf = cell.values[message].require(message).detach().requires_grad_(torch.is_grad_enabled())
        self._leaf = leaf
        if self.facts.parts == 1:
            summaries = leaf
        else:
            merge = require(layer.summary, "a layer's summary").merge
            frames = leaf.view(len(self._steps(cell)), -1, layer.in_channels)
            summaries = torch.stack([merge(one) for one in frames.unbind()])
        state = self.recurrence.enter(cell.block, 0, self._count)
        weights, after = layer.recur([summaries], tuple(state), self._steps(cell).start)
        self.recurrence.leave(0, after)
        self._out = weights
        value = cell.values.setdefault(self.step.out, Value(None))
        value.rows, value.trained = weights.detach(), not cell.evaluates

    def backward(self, cell: Cell, chunk: int) -> None:
        """Back from the weights of the own steps, and the one after them, to the summaries."""
        d_weights = cell.values[self.step.out].reading.gradient
        roots = self.recurrence.roots(0)
        out, self._out = self._out, None
        if out is not None and d_weights is not None and out.requires_grad:
            roots.append((out, d_weights))
        if roots:
            run_backward(roots)
        self.recurrence.finish(cell.block, 0)
        leaf, self._leaf = self._leaf, None
        if leaf is not None and self.step.message is not None:
            cell.values[self.step.message].reading.add(leaf.grad)
