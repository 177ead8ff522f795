"""`Carry`: the state goes from the rank of the earlier steps to the next, chunk of rows by chunk of rows.

Exact, since rows are independent in the recurrent module; ranks work as a pipeline along time. A weight goes whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, starmap

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
        out, hands_on = None, turn.cut.after(turn.block, turn.run) is not None
        chunks = self._chunks(turn)
        if len(chunks) > 1:
            out = empty((len(turn.steps), turn.rows, turn.module.out_channels), turn.dtype, turn.device)
        for chunk, own in self._handed(turn, chunks, back=False):
            frames = turn.frames if out is None else [frame[:, own] for frame in turn.frames]
            into = None if out is None else out[:, own]
            result = self.states.forward(turn, frames, turn.steps.start, hands_on=hands_on, chunk=chunk, out=into)
        return result if out is None else out

    def backward(self, turn: Turn, d_out: Tensor) -> Sequence[Tensor | None]:
        """Begin each chunk, the last one first, with the gradient that comes, and hand back that of its state."""
        if not turn.pieces:
            return [None] * len(turn.widths)
        chunks, gradients = self._chunks(turn)[::-1], None
        if len(chunks) > 1:
            gradients = [
                empty((len(turn.steps), turn.rows, width), turn.dtype, turn.device) if need else None
                for width, need in zip(turn.widths, turn.needs, strict=True)
            ]
        for _, own in self._handed(turn, chunks, back=True):
            into = None if gradients is None else [None if g is None else g[:, own] for g in gradients]
            result = self.states.backward(turn, d_out if into is None else d_out[:, own], into)
        self._end(turn)
        return result if gradients is None else gradients

    def _chunks(self, turn: Turn) -> list[tuple[int, slice]]:
        """Return the rows of each chunk. The more, the shorter a run waits; a weight has no rows to cut."""
        bounds = equal_shares(turn.rows, 1 if self._form.kind == "weight" else turn.cut.chunks)
        return [(chunk, slice(low, high)) for chunk, (low, high) in enumerate(pairwise(bounds))]

    def _handed(self, turn: Turn, chunks: Sequence[tuple[int, slice]], *, back: bool) -> Iterator[tuple[int, slice]]:
        """Yield each chunk when its state, or the gradient of it, is there, and hand on what was made of it."""
        # (block, run) of the runs before and after; this rank's own may be among them, and keeps its states
        places = turn.cut.before(turn.block, turn.run), turn.cut.after(turn.block, turn.run)
        source, target = (
            place if place and place[1] != turn.run and (back or not turn.again) else None
            for place in (places[::-1] if back else places)
        )
        if back and turn.truncated:
            source, target = (place if place and place[0] == turn.block else None for place in (source, target))
        door, made = self._door, self.states.wanted if back else self.states.after

        def message(chunk: int, own: slice) -> Posted:
            shape, peer = Shape(*self._form.shape(own.stop - own.start), turn.dtype), self._rank_of(required(source)[1])
            return door.receive(self, turn.call, shape, peer, back=back, block=turn.block, chunk=chunk, exact=True)

        arriving = Arriving(starmap(message, chunks if source else ()))
        for chunk, own in chunks:
            if source:
                state = self._form.unpack(next(arriving), own.stop - own.start)
                if back:
                    self.states.wanted[chunk] = state
                else:
                    self.states.before[turn.block, chunk] = state
            yield chunk, own
            if target:
                left, (block, run) = self._form.pack(made.pop(chunk)), target
                peer, mark = self._rank_of(run), turn.mark
                door.send(
                    self, turn.call, left, peer, "carry", back=back, block=block, chunk=chunk, exact=True, mark=mark
                )
