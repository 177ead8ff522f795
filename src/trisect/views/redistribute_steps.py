"""`RedistributeSteps`: rows by steps become steps by rows before a recurrent module, and again rows by steps behind it.

(Own steps × all rows) become (all steps of a block × an own share of the rows), and back; gradients the other way. It
fits every module whose rows are independent. It moves again where a block is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from trisect.comm.wire import encoded_bytes
from trisect.layout import Wire
from trisect.ops.memory import empty
from trisect.schedule.action import Action
from trisect.views.exchange import Crossing, Place, Work, crossing
from trisect.views.stay import Stay
from trisect.views.timecut import TimeCut, equal_shares
from trisect.views.trace import Call, LayerTrace
from trisect.views.turn import Turn


class RedistributeSteps(Stay):
    """Two all-to-alls along time. A rank without steps does its rows of the steps of all others."""

    name = "redistribute steps"
    letter = "t"
    option = "redistribute"

    @classmethod
    def refusal(cls, layer: LayerTrace) -> str | None:
        """A weight has no rows that could be dealt out."""
        return "its state is a weight matrix, which has no vertices to deal out" if layer.state == "weight" else None

    @classmethod
    def expand(cls, at: Place, call: Call, *, back: bool) -> Iterator[Crossing | Work]:
        """Yield rows that are dealt out, the work, and rows that come back; fixed features are everywhere."""
        fixed = at.layer == 0 and at.plan.fixed
        frames = zip(call.widths, call.inputs, call.needs, strict=True)
        if back:
            reads = at.plan.reads_trained(at.layer)
            width = sum(width for width, _, needs in frames if needs or reads)
            yield from (*crossing(call.out), Work(at.layer, "recur"), *(crossing(width) if width else ()))
            return
        width = sum(width for width, features, _ in frames if not (fixed and features))
        yield from (*(crossing(width) if width else ()), Work(at.layer, "recur"))
        if not at.ends:
            yield from crossing(call.out)

    @classmethod
    def bytes_of(cls, at: Place, action: Action, fetched: Sequence[int]) -> tuple[str, float]:
        """Rows of the part that other runs do, times what crosses."""
        rows, wire = [at.plan.rows[at.part]], at.plan.layout.wire
        return "redistribute", cls.bytes(at.plan.cut(), rows, action.width, at.plan.dtype, wire, at.block)

    def forward(self, turn: Turn) -> Tensor:
        """Return the output of the own steps, whose rows other ranks made."""
        crossing = [frame for frame, fixed in zip(turn.frames, turn.fixed, strict=True) if fixed is None]
        crossed = iter(self._by_rows(turn, crossing, back=False) if crossing else ())
        (low, high), steps = self._share(turn), turn.cut.steps(turn.block)
        frames = [next(crossed) if one is None else one[low:high].expand(len(steps), -1, -1) for one in turn.fixed]
        out = self.states.forward(turn, frames, steps.start, hands_on=not turn.is_last)
        return out if turn.ends else self._by_steps(turn, [out], back=False)[0]

    def backward(self, turn: Turn, d_out: Tensor) -> Sequence[Tensor | None]:
        """Return the gradients of own frames, found by other ranks."""
        gradients = self.states.backward(turn, self._by_rows(turn, [d_out], back=True)[0])
        self._end(turn)
        low, high = self._share(turn)
        shape = len(turn.cut.steps(turn.block)), high - low
        crossing = [
            turn.zeros(*shape, width) if gradient is None else gradient
            for gradient, width, need in zip(gradients, turn.widths, turn.needs, strict=True)
            if need
        ]
        crossed = iter(self._by_steps(turn, crossing, back=True) if crossing else ())
        return [next(crossed) if need else None for need in turn.needs]

    def _bounds(self, turn: Turn) -> list[int]:
        return equal_shares(turn.rows, turn.cut.times)

    def _share(self, turn: Turn) -> list[int]:
        return self._bounds(turn)[turn.run : turn.run + 2]

    def _by_rows(self, turn: Turn, tensors: Sequence[Tensor], *, back: bool) -> Sequence[Tensor]:
        """Return [all steps of the block, share, width] each, from [own steps, rows, width] each."""
        widths, (low, high) = [tensor.shape[2] for tensor in tensors], self._share(turn)
        joined = empty((len(turn.cut.steps(turn.block)), high - low, sum(widths)), turn.dtype, turn.device)
        pieces = [[tensor[:, low:high] for tensor in tensors] for low, high in pairwise(self._bounds(turn))]
        self._trade(turn, pieces, [[joined[steps]] for steps in self._steps(turn)], "rows", back=back)
        return [joined] if len(tensors) == 1 else torch.split(joined, widths, 2)

    def _by_steps(self, turn: Turn, tensors: Sequence[Tensor], *, back: bool) -> Sequence[Tensor]:
        """Return [own steps, rows, width] each, from [all steps of the block, share, width] each."""
        shape = len(turn.steps), turn.rows
        results = [empty((*shape, tensor.shape[2]), turn.dtype, turn.device) for tensor in tensors]
        pieces = [[tensor[steps] for tensor in tensors] for steps in self._steps(turn)]
        places = [[result[:, low:high] for result in results] for low, high in pairwise(self._bounds(turn))]
        self._trade(turn, pieces, places, "steps", back=back)
        return results

    def _trade(self, turn: Turn, pieces: Any, places: Any, into: str, *, back: bool) -> None:
        key, crossing = f"{'redistribute-back' if back else 'redistribute'} {into}", into == "steps"
        kind = "redistribute"
        self._door.trade(self, turn.call, turn.run, pieces, places, kind, back=back, key=key, crossing=crossing)

    @staticmethod
    def _steps(turn: Turn) -> list[slice]:
        """Return where the steps of each run are among those of the block."""
        first = turn.cut.steps(turn.block).start
        return [slice(own.start - first, own.stop - first) for own in turn.cut.runs[turn.block]]

    @staticmethod
    def bytes(
        cut: TimeCut, rows: Sequence[int], width: int, dtype: torch.dtype, wire: Wire = "float32", block: int = 0
    ) -> int:
        """Return the bytes that leave all ranks at one crossing of a block: steps · rows that other runs do.

        Args:
            rows: of each part.
            width: of all that crosses: the frames that are not fixed, or the outputs, or the gradients of either.
        """
        crossing = 0
        for part in rows:
            bounds = equal_shares(part, cut.times)
            shares = [high - low for low, high in pairwise(bounds)]
            crossing += sum(len(steps) * (part - share) for steps, share in zip(cut.runs[block], shares, strict=True))
        return encoded_bytes(crossing, width, wire, dtype)
