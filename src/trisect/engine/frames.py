"""A temporal half that begins with frames: its state is a window of input frames, some of them of other runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trisect.engine.cell import Cell
from trisect.engine.temporal import TemporalHalf
from trisect.engine.values import require
from trisect.exchanges.facts import Facts


class FrameHalf(TemporalHalf):
    """A half with a window. Later runs read own frames, and send their gradients when backward comes to them.

    An exchange takes own frames (`frames_for`) to the runs that read them and puts received ones here (`add_frame`);
    the same with `window_gradients` and `add_frame_gradient` for gradients.
    """

    def clear(self, facts: Facts) -> None:
        """Forget everything, since another pass begins or one has ended."""
        super().clear(facts)
        self._received: dict[int, Tensor] = {}
        self._past: dict[int, Tensor] = {}
        self._frame_gradients: dict[int, Tensor] = {}
        self._window_gradient: Tensor | None = None
        self._frames: Tensor | None = None
        self._d_frames: Tensor | None = None
        self._cell: Cell | None = None

    def _own_frames(self, cell: Cell) -> Tensor:
        """The own frames as other runs read them: [steps, rows, channels]."""
        if self._frames is None or self._cell is not cell:
            frames, _ = self._inputs(cell)
            self._frames = frames[0] if len(frames) == 1 else torch.cat(frames, 2)
            self._cell = cell
        return self._frames

    # Forward

    def forward(self, cell: Cell, chunk: int, *, again: bool) -> None:
        """Do all rows at once, from the frames before the own run."""
        if not again:
            self._begin(cell)
        frames, first = [self._own_frames(cell)], cell.steps.start
        self._made(cell, self.recurrence.forward(cell.block, 0, frames, [True], self._count, first))
        if not again:
            self._remember(cell)

    def _begin(self, cell: Cell) -> None:
        """Make the state that the own run begins with: what other runs gave, and own frames of earlier blocks."""
        size = self.layer.state_frames
        first = cell.steps.start - size
        like = self.recurrence
        state = torch.zeros(size, self._count, self.layer.state_widths[0], dtype=like.dtype, device=like.device)
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

    def frames_for(self, steps: Sequence[int]) -> list[Tensor]:
        """Own frames that another run reads, [rows, channels] each."""
        return [self._frame(step) for step in steps]

    def _frame(self, step: int) -> Tensor:
        if step in self._past:
            return self._past[step]
        cell = require(self.current, "the cell of a block")
        return self._own_frames(cell).detach()[step - cell.steps.start]

    def add_frame(self, step: int, frame: Tensor) -> None:
        """Take a frame of another run that the own one reads."""
        self._received[step] = frame

    # Backward

    def _give(self, cell: Cell, gradients: Sequence[Tensor | None]) -> None:
        """Note what is wanted of the frames before the run; the own frames wait for what later runs want of them."""
        wanted = self.recurrence.wanted.pop(0, None)
        self._window_gradient = None if wanted is None else wanted[0]
        if wanted is not None:
            first = cell.steps.start - wanted[0].shape[0]
            for step in self.facts.read_before(cell.block, self._run, self._run, self.layer.window):
                self.add_frame_gradient(step, wanted[0][step - first])
        self._d_frames = gradients[0]

    def window_gradients(self, steps: Sequence[int]) -> list[Tensor]:
        """The gradients of frames of another run that the own one read."""
        cell = require(self.current, "the cell of a block")
        gradient = require(self._window_gradient, "the gradient of a window")
        first = cell.steps.start - gradient.shape[0]
        return [gradient[step - first] for step in steps]

    def add_frame_gradient(self, step: int, gradient: Tensor) -> None:
        """Take the gradient of an own frame that a later run read."""
        total = self._frame_gradients.get(step)
        self._frame_gradients[step] = gradient.clone() if total is None else total + gradient

    def finish_inputs(self, cell: Cell) -> None:
        """Backward comes to what the half reads: hand on the gradients of the frames, those of later runs included."""
        d_frames, self._d_frames = self._d_frames, None
        if d_frames is None:
            d_frames = torch.zeros_like(self._own_frames(cell))
        for step in cell.steps:
            if step in self._frame_gradients:
                d_frames[step - cell.steps.start] += self._frame_gradients.pop(step)
        parts = zip(torch.split(d_frames, self._widths(), 2), self._needs(cell), strict=True)
        super()._give(cell, [part.contiguous() if need else None for part, need in parts])
