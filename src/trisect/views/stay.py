"""`Stay`: states stay on their rank, which has all steps. The exchanges between runs are its subclasses.

`Everywhere`: a weight that reads no summary evolves on every rank, from the first step of a block on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from torch import Tensor

from trisect.views.door import Door
from trisect.views.exchange import Crossing, Exchange, Place, Work
from trisect.views.states import Form, States
from trisect.views.trace import Call
from trisect.views.turn import State, Turn


class Stay(Exchange):
    """How one recurrent module goes over the blocks and runs of a timeline; a rank keeps one for each call.

    `forward` and `backward` are outside of autograd; the blocks go back in the reverse order.

    """

    name: ClassVar[str] = "stay"
    axis: ClassVar[str] = "time"

    @classmethod
    def expand(cls, at: Place, call: Call, *, back: bool) -> Iterator[Crossing | Work]:
        """Yield the work alone: nothing crosses."""
        yield Work(at.layer, "recur")

    def __init__(self, door: Door, form: Form) -> None:
        self._door, self._form, self.states = door, form, States()

    def clear(self, *, keeps: bool) -> None:
        """Forget everything, since another pass begins or one has ended."""
        self.states.clear(keeps=keeps)

    def meet(self, turn: Turn, *, back: bool) -> None:
        """Note that the module is asked for, which all runs do in the same order."""
        if turn.cut.times > 1:
            self._door.meet(turn.call, sum(turn.widths), turn.dtype, back=back)

    def forward(self, turn: Turn) -> Tensor:
        """Return the output of the own steps of a block, [own steps, rows, channels]."""
        return self.states.forward(turn, turn.frames, turn.steps.start, hands_on=not turn.is_last)

    def backward(self, turn: Turn, d_out: Tensor) -> Sequence[Tensor | None]:
        """Return the gradients of the frames, from that of the output and of what was handed on."""
        found = self.states.backward(turn, d_out)
        self._end(turn)
        return found

    def _end(self, turn: Turn) -> None:
        """End the backward of a block that has no gradient for the one before."""
        if turn.truncated:
            self.states.wanted.clear()

    def _rank_of(self, run: int) -> int:
        """Return the rank of the same part and stage that has another run."""
        return self._door.mesh.rank_at(run_index=run)

    def _nothing(self, turn: Turn) -> Tensor:
        """Return the output of no steps."""
        if self._form.kind == "weight":
            return turn.zeros(0, *self._form.shape(1))
        return turn.zeros(0, turn.rows, turn.module.out_channels)


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

    def backward(self, turn: Turn, d_out: Tensor) -> Sequence[Tensor | None]:
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
