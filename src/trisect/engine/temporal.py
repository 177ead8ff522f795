"""A temporal half whose state crosses ranks: done apart, vertex chunk by vertex chunk, over the own run of a block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trisect.engine.cell import Cell
from trisect.engine.recurrence import Recurrence
from trisect.engine.units import Ref, Step
from trisect.engine.values import Value, require, require_kind
from trisect.exchanges.facts import Facts, LayerFacts, equal_shares
from trisect.nn.temporal.evolving import Evolving
from trisect.ops.memory import empty


class TemporalHalf:
    """The temporal half of one layer, for each exchange along time.

    Attributes:
        current: the cell at work.
    """

    def __init__(self, step: Step, facts: Facts, recurrence: Recurrence, part: int, run: int) -> None:
        self.step, self.facts, self.recurrence, self._part, self._run = step, facts, recurrence, part, run
        self.layer: LayerFacts = facts.layers[step.layer]
        self.chunks = facts.chunks_of(step.layer)
        self.current: Cell | None = None
        self._received: dict[int, Tensor] = {}
        self._past: dict[int, Tensor] = {}
        self._frame_gradients: dict[int, Tensor] = {}
        self._window_gradient: Tensor | None = None
        self._frames: Tensor | None = None
        self._cell: Cell | None = None
        self._out: Tensor | None = None
        self._d_x: Tensor | None = None
        self._d_beside: Tensor | None = None

    def clear(self, facts: Facts) -> None:
        """Forget all states, since another pass begins or one has ended."""
        self.facts, self.chunks = facts, facts.chunks_of(self.step.layer)
        self._received.clear()
        self._past.clear()
        self._frame_gradients.clear()
        self._window_gradient = self._frames = self._out = self._d_x = self._d_beside = None
        self._cell = None

    def _rows(self, chunk: int) -> slice:
        bounds = equal_shares(self.facts.rows[self._part], self.chunks)
        return slice(bounds[chunk], bounds[chunk + 1])

    def _inputs(self, cell: Cell) -> tuple[list[Tensor], list[bool]]:
        """What the recurrent part reads, [steps, rows, channels] each, and which of it gets a gradient."""
        step, refs = self.step, [self.step.x]
        refs += [] if step.beside is None else [step.beside]
        steps = len(self.facts.steps(cell.block)) if self.layer.along == "redistribute" else len(cell.steps)
        frames = []
        for ref in refs:
            rows = cell.values[ref].require(ref)
            fixed = cell._is_fixed(ref)
            frames.append(rows.expand(steps, *rows.shape) if fixed else rows.view(steps, -1, rows.shape[-1]))
        return frames, [cell.values[ref].trained or self._by_hand(ref) for ref in refs]

    def _by_hand(self, ref: Ref) -> bool:
        return ref == self.step.x

    # Forward

    def forward(self, cell: Cell, chunk: int, *, again: bool) -> None:
        """Do a chunk of the rows; the last one hands the output on."""
        if isinstance(self.recurrence.layer, Evolving):
            self._evolve(cell)
            return
        frames, needs = self._inputs(cell)
        if self.layer.along == "redistribute":
            rows, first = frames[0].shape[1], self.facts.steps(cell.block).start
            out = self.recurrence.forward(cell.block, 0, frames, needs, rows, first)
            self._made(cell, out)
            return
        if self.layer.along == "window":
            self._begin_window(cell, frames, again=again)
            frames, needs = [self._own_frames(cell)], [True]
        first, rows_of = cell.steps.start, self._rows(chunk)
        if self.chunks == 1:
            out = self.recurrence.forward(cell.block, 0, frames, needs, cell.count, first)
            self._made(cell, out)
            if self.layer.along == "window" and not again:
                self._remember(cell)
            return
        if chunk == 0:
            shape = (len(cell.steps), cell.count, self.layer.out_channels)
            self._out = empty(shape, self.recurrence.dtype, self.recurrence.device)
        out = require(self._out, "the output of a temporal half")
        part = [frame.detach()[:, rows_of] for frame in frames]
        size = rows_of.stop - rows_of.start
        self.recurrence.forward(cell.block, chunk, part, needs, size, first, out[:, rows_of])
        if chunk == self.chunks - 1:
            self._made(cell, out)
            self._out = None

    def _made(self, cell: Cell, out: Tensor) -> None:
        value = cell.values.get(self.step.out)
        if value is None:
            value = cell.values[self.step.out] = Value(None)
        value.rows, value.trained = out.flatten(0, 1), not cell.evaluates

    def _evolve(self, cell: Cell) -> None:
        """The weights of the own steps, from the summaries of their snapshots."""
        layer, step = require_kind(self.recurrence.layer, Evolving), self.step
        message = require(step.message, "a summary")
        rows = cell.values[message].require(message)
        steps = len(cell.steps)
        grad = torch.is_grad_enabled()
        leaf = rows.detach().requires_grad_(grad)
        self._frames = leaf
        if self.facts.parts == 1:
            summaries = leaf
        else:
            merge = require(layer.summary, "a layer's summary").merge
            summaries = torch.stack([merge(one) for one in leaf.view(steps, -1, layer.in_channels).unbind()])
        state = self.recurrence.enter(cell.block, 0, cell.count)
        weights, after = layer.recur([summaries], tuple(state), cell.steps.start)
        self.recurrence.leave(0, after)
        self._out = weights
        value = cell.values.get(step.out)
        if value is None:
            value = cell.values[step.out] = Value(None)
        value.rows, value.trained = weights.detach(), not cell.evaluates

    # Backward

    def backward(self, cell: Cell, chunk: int) -> None:
        """Back through a chunk; the last one hands the gradients of the input on."""
        d_out = cell.values[self.step.out].reading.gradient
        if isinstance(self.recurrence.layer, Evolving):
            self._evolve_back(cell, d_out)
            return
        count = self.facts.rows[self._part]
        if self.layer.along == "redistribute":
            steps = len(self.facts.steps(cell.block))
            shaped = None if d_out is None else d_out.view(steps, -1, d_out.shape[-1])
            gradients = self.recurrence.backward(cell.block, 0, shaped)
            self._give(cell, gradients[0], gradients[1] if len(gradients) > 1 else None)
            return
        shaped = None if d_out is None else d_out.view(len(cell.steps), count, d_out.shape[-1])
        if self.chunks == 1:
            gradients = self.recurrence.backward(cell.block, 0, shaped)
            if self.layer.along == "window":
                self._window_back(cell, gradients[0])
            else:
                self._give(cell, gradients[0], gradients[1] if len(gradients) > 1 else None)
            return
        rows = self._rows(chunk)
        if chunk == self.chunks - 1:
            self._d_x = self._empty(cell, self.layer.inside_channels)
            beside = self.step.beside
            wanted = beside is not None and cell.values[beside].trained
            self._d_beside = self._empty(cell, self.layer.in_channels) if wanted else None
        into: list[Tensor | None] = [require(self._d_x, "room for a gradient")[:, rows]]
        if self.step.beside is not None:
            into.append(None if self._d_beside is None else self._d_beside[:, rows])
        self.recurrence.backward(cell.block, chunk, None if shaped is None else shaped[:, rows], into)
        if chunk == 0:
            self._give(cell, self._d_x, self._d_beside)
            self._d_x = self._d_beside = None

    def _empty(self, cell: Cell, channels: int) -> Tensor:
        return empty((len(cell.steps), cell.count, channels), self.recurrence.dtype, self.recurrence.device)

    def _give(self, cell: Cell, d_x: Tensor | None, d_beside: Tensor | None) -> None:
        """Hand the gradients of the input to the values that it is."""
        if d_x is not None:
            cell.values[self.step.x].reading.add(d_x.flatten(0, 1))
        if d_beside is not None and self.step.beside is not None:
            cell.values[self.step.beside].reading.add(d_beside.flatten(0, 1))

    def _evolve_back(self, cell: Cell, d_weights: Tensor | None) -> None:
        roots = self.recurrence.roots(0)
        out, self._out = self._out, None
        if out is not None and d_weights is not None and out.requires_grad:
            roots.append((out, d_weights))
        if roots:
            torch.autograd.backward([root for root, _ in roots], [gradient for _, gradient in roots])
        self.recurrence.finish(cell.block, 0)
        leaf, self._frames = self._frames, None
        if leaf is not None and self.step.message is not None:
            cell.values[self.step.message].reading.add(leaf.grad)

    # Frames of a window, read by the runs after this one

    def _own_frames(self, cell: Cell) -> Tensor:
        """The own frames as other runs read them: [steps, rows, channels]."""
        if self._frames is None or self._cell is not cell:
            frames, _ = self._inputs(cell)
            self._frames = frames[0] if len(frames) == 1 else torch.cat(frames, 2)
            self._cell = cell
        return self._frames

    def frames_for(self, steps: Sequence[int]) -> list[Tensor]:
        """Own frames that another run reads, [rows, channels] each."""
        return [self._frame(step) for step in steps]

    def _frame(self, step: int) -> Tensor:
        if step in self._past:
            return self._past[step]
        cell = require(self.current, "the cell of a block")
        return self._own_frames(cell).detach()[step - cell.steps.start]

    def _begin_window(self, cell: Cell, frames: Sequence[Tensor], *, again: bool) -> None:
        """The state that the own run begins with: what other runs gave, and own frames of earlier blocks."""
        self._own_frames(cell)
        if again:
            return
        size, rows = self.layer.state_frames, cell.count
        first = cell.steps.start - size
        like = self.recurrence
        state = torch.zeros(size, rows, self.layer.state_widths[0], dtype=like.dtype, device=like.device)
        for step, frame in self._received.items():
            state[step - first] = frame
        self._received.clear()
        for step in self.facts.read_before(cell.block, self._run, self._run, size + 1):
            state[step - first] = self._past[step]
        self.recurrence.before[cell.block, 0] = (state,)

    def _remember(self, cell: Cell) -> None:
        """Keep the own frames that later blocks read, drop those that nobody will."""
        stop = self.facts.steps(cell.block).stop
        oldest = stop - (self.layer.window - 1)
        self._past = {step: frame for step, frame in self._past.items() if step >= oldest}
        for step in cell.steps:
            if step >= oldest:
                self._past[step] = self._own_frames(cell).detach()[step - cell.steps.start].clone()
        self.recurrence.after.pop(0, None)

    def _window_back(self, cell: Cell, d_frames: Tensor | None) -> None:
        """Note what is wanted of the frames before the run, and add what later runs want of the own ones."""
        wanted = self.recurrence.wanted.pop(0, None)
        self._window_gradient = None if wanted is None else wanted[0]
        if wanted is not None:
            first = cell.steps.start - wanted[0].shape[0]
            for step in self.facts.read_before(cell.block, self._run, self._run, self.layer.window):
                self.add_frame_gradient(step, wanted[0][step - first])
        self._d_x = d_frames

    def window_gradients(self, steps: Sequence[int]) -> list[Tensor]:
        """The gradients of frames of another run that the own one read."""
        cell = require(self.current, "the cell of a block")
        gradient = require(self._window_gradient, "the gradient of a window")
        first = cell.steps.start - gradient.shape[0]
        return [gradient[step - first] for step in steps]

    def add_frame(self, step: int, frame: Tensor) -> None:
        """Take a frame of another run that the own one reads."""
        self._received[step] = frame

    def add_frame_gradient(self, step: int, gradient: Tensor) -> None:
        """Take the gradient of an own frame that a later run read."""
        total = self._frame_gradients.get(step)
        self._frame_gradients[step] = gradient.clone() if total is None else total + gradient

    def finish_inputs(self, cell: Cell) -> None:
        """Backward comes to what the half reads: hand on what later runs found of the frames' gradients.

        Only a window has such gradients; every other half handed on all there is in its own backward.
        """
        if self.layer.along != "window":
            return
        d_frames, self._d_x = self._d_x, None
        if d_frames is None:
            d_frames = torch.zeros_like(self._own_frames(cell))
        for step in cell.steps:
            if step in self._frame_gradients:
                d_frames[step - cell.steps.start] += self._frame_gradients.pop(step)
        if self.step.beside is None:
            self._give(cell, d_frames, None)
            return
        d_x, d_beside = torch.split(d_frames, [self.layer.inside_channels, self.layer.in_channels], 2)
        wanted = cell.values[self.step.beside].trained
        self._give(cell, d_x.contiguous(), d_beside.contiguous() if wanted else None)
