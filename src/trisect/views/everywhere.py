"""`Everywhere`: a weight that reads no summary evolves on every rank, from the first step of a block on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from trisect.views.stay import Stay
from trisect.views.turn import State, Turn


class Everywhere(Stay):
    """Nothing crosses: each rank makes the weights of the steps before its own again, and its gradients are its own."""

    name = "everywhere"

    def forward(self, turn: Turn) -> Tensor:
        """Return the weights of the own steps, [own steps, inputs, outputs]."""
        own, steps, summaries = turn.steps, self._evolved(turn), turn.frames[0]
        if summaries.shape[2]:
            raise RuntimeError("internal error: a weight that reads summaries evolves where these are")
        if not steps:
            return self._nothing(turn)
        first = own.start - steps.start

        def evolve(frames: Sequence[Tensor], state: State, first_step: int) -> tuple[Tensor, State]:
            weights, after = turn.module(frames, state, first_step)
            return (weights if len(own) == len(steps) else weights[first : first + len(own)]), after

        frames = [summaries.new_empty(len(steps), *summaries.shape[1:])]
        return self.states.forward(turn, frames, steps.start, hands_on=self._goes_on(turn), run=evolve)

    def backward(self, turn: Turn, d_out: Tensor | None) -> Sequence[Tensor | None]:
        """Go back through all steps; summaries of nothing have no gradient."""
        if turn.pieces:
            self.states.backward(turn, d_out)
            self._end(turn)
        return [None]

    def _evolved(self, turn: Turn) -> range:
        """Return the steps over which the weight evolves: where own steps follow, all of the block."""
        every = turn.cut.steps(turn.block)
        if self._goes_on(turn):
            return every
        return range(every.start, turn.steps.stop) if turn.steps else range(0)

    def _goes_on(self, turn: Turn) -> bool:
        """Whether later blocks have own steps."""
        return any(block[turn.run] for block in turn.cut.runs[turn.block + 1 :])
