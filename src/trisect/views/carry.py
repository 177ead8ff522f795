"""`Carry`: the state goes from the rank of the earlier steps to the next, chunk of rows by chunk of rows.

Exact, since rows are independent in the recurrent module; ranks work as a pipeline along time. A weight goes whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat, starmap

from torch import Tensor

from trisect.comm.rows import Shape
from trisect.ops.memory import empty
from trisect.schedule.action import Action, Verb
from trisect.views.door import Arriving, Posted
from trisect.views.exchange import Crossing, Place, Work
from trisect.views.plan import Plan
from trisect.views.rows import required
from trisect.views.states import Form
from trisect.views.stay import Stay
from trisect.views.timecut import equal_shares
from trisect.views.trace import Call
from trisect.views.turn import Turn

BlockOfRun = tuple[int, int]


class Carry(Stay):
    """States that are handed on; the gradients of states are handed back."""

    name = "carry"
    letter = "c"
    option = "carry"
    paired = True

    @staticmethod
    def chunks(plan: Plan, form: Form) -> int:
        """Return in how many chunks of rows a state crosses; a weight has no rows to cut."""
        return 1 if form.kind == "weight" else plan.carry_chunks

    @classmethod
    def expand(cls, at: Place, call: Call, *, back: bool) -> Iterator[Crossing | Work]:
        """Yield chunk by chunk the state that comes, the work and the state that is handed on; gradients in reverse."""
        cut = at.plan.cut(at.run)
        others = (cut.before(at.block, at.run), cut.after(at.block, at.run)) if not at.again or back else (None, None)
        source, target = (
            place if place and place[1] != at.run else None for place in (others[::-1] if back else others)
        )
        count = cls.chunks(at.plan, required(call.form)) if at.steps else 0
        for chunk in reversed(range(count)) if back else range(count):
            if source is not None:
                yield Crossing(Verb.WAIT, 0, at.rank_of_run(source[1]), chunk)
            yield Work(at.layer, "recur", 1.0 / count)
            if target is not None:
                yield Crossing(Verb.POST, 0, at.rank_of_run(target[1]), chunk, target[0])

    @classmethod
    def bytes_of(cls, at: Place, action: Action, fetched: Sequence[int]) -> tuple[str, float]:
        """The state of the chunk's rows, forward and back."""
        form = required(required(action.call).form)
        bounds = equal_shares(at.plan.rows[at.part], cls.chunks(at.plan, form))
        count, width = form.shape(bounds[action.chunk + 1] - bounds[action.chunk])
        return "carry", count * width * at.plan.dtype.itemsize

    def forward(self, turn: Turn) -> Tensor:
        """Begin each chunk with the state that comes, and hand on the one after it."""
        if not turn.steps:
            return self._nothing(turn)
        before, after = self._others(turn)
        rows, out = self._rows(turn), None
        if len(rows) > 1:
            out = empty((len(turn.steps), turn.rows, turn.module.out_channels), turn.dtype, turn.device)
        arriving = self._arriving(turn, list(enumerate(rows)), None if turn.again else before, back=False)
        for chunk, (own, message) in enumerate(zip(rows, arriving, strict=True)):
            if message is not None:
                self.states.before[turn.block, chunk] = self._form.unpack(message, own.stop - own.start)
            result = self.states.forward(
                turn,
                turn.frames if out is None else [frame[:, own] for frame in turn.frames],
                turn.steps.start,
                hands_on=after is not None,
                chunk=chunk,
                out=None if out is None else out[:, own],
            )
            if after is not None and after[1] != turn.run and not turn.again:
                self._send(turn, self._form.pack(self.states.after.pop(chunk)), chunk, after, back=False)
        return result if out is None else out

    def backward(self, turn: Turn, d_out: Tensor) -> Sequence[Tensor | None]:
        """Begin each chunk, the last one first, with the gradient that comes, and hand back that of its state."""
        if not turn.pieces:
            return [None] * len(turn.widths)
        before, after = self._others(turn)
        rows, gradients = self._rows(turn), None
        if len(rows) > 1:
            gradients = [
                empty((len(turn.steps), turn.rows, width), turn.dtype, turn.device) if need else None
                for width, need in zip(turn.widths, turn.needs, strict=True)
            ]
        order = list(enumerate(rows))[::-1]
        for (chunk, own), message in zip(order, self._arriving(turn, order, after, back=True), strict=True):
            if message is not None:
                self.states.wanted[chunk] = self._form.unpack(message, own.stop - own.start)
            if gradients is None:
                result = self.states.backward(turn, d_out)
            else:
                into = [None if gradient is None else gradient[:, own] for gradient in gradients]
                self.states.backward(turn, d_out[:, own], into)
            if before is not None and before[1] != turn.run:
                self._send(turn, self._form.pack(self.states.wanted.pop(chunk)), chunk, before, back=True)
        return result if gradients is None else gradients

    def _others(self, turn: Turn) -> tuple[BlockOfRun | None, BlockOfRun | None]:
        """Return (block, run) of the runs before and after; this rank's own may be among them."""
        return turn.cut.before(turn.block, turn.run), turn.cut.after(turn.block, turn.run)

    def _rows(self, turn: Turn) -> list[slice]:
        """Return the rows of each chunk. The more, the shorter a run waits; a weight has no rows to cut."""
        bounds = equal_shares(turn.rows, 1 if self._form.kind == "weight" else turn.cut.chunks)
        return [slice(low, high) for low, high in pairwise(bounds)]

    # Moving

    def _arriving(
        self, turn: Turn, chunks: Sequence[tuple[int, slice]], other: BlockOfRun | None, *, back: bool
    ) -> Iterator[Tensor | None]:
        """Return what comes for each chunk; None where no other rank sends anything."""
        if other is None or other[1] == turn.run:
            return repeat(None, len(chunks))
        door, peer = self._door, self._rank_of(other[1])

        def message(chunk: int, own: slice) -> Posted:
            shape = Shape(*self._form.shape(own.stop - own.start), turn.dtype)
            return door.receive(self, turn.call, shape, peer, back=back, block=turn.block, chunk=chunk, exact=True)

        return Arriving(starmap(message, chunks))

    def _send(self, turn: Turn, message: Tensor, chunk: int, other: BlockOfRun, *, back: bool) -> None:
        (block, run), mark = other, turn.mark
        peer = self._rank_of(run)
        self._door.send(
            self, turn.call, message, peer, "carry", back=back, block=block, chunk=chunk, exact=True, mark=mark
        )
