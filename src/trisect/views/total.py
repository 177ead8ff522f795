"""All-reduce along the vertex axis: the sum over all rows of each step, of which every part has its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from trisect.schedule.action import Action
from trisect.views.door import Door
from trisect.views.exchange import Crossing, Exchange, Place, Work, crossing
from trisect.views.verbs import Asked

if TYPE_CHECKING:
    from trisect.views.trace import Call


class Total(Exchange):
    """Every part has the sums of all."""

    name: ClassVar[str] = "total"
    letter: ClassVar[str] = "s"

    @classmethod
    def expand(cls, at: Place, call: Call, *, back: bool) -> Iterator[Crossing | Work]:
        """Yield the crossing, in backward too whatever is trained."""
        yield from crossing(call.width)

    @classmethod
    def bytes_of(cls, at: Place, action: Action, fetched: Sequence[int]) -> tuple[str, float]:
        """Every part gives its sums to all others; of a pass that becomes history those of each chunk."""
        plan, rows = at.plan, len(at.steps)
        if plan.stale and not plan.timeline and plan.layout.chunks == 1 and not action.back:
            rows = len(plan.chunk_rows[0]) - 1
        itemsize = 8 if action.call is not None and action.call.double else plan.dtype.itemsize
        return "total", plan.parts * (plan.parts - 1) * rows * action.width * itemsize


def sum_over_parts(door: Door, call: Asked, own: Tensor, *, back: bool) -> Tensor:
    """Return the sum over parts of [steps, channels], added up in the order of parts: the same bits on all of them.

    The gradient of a total that every part reads is the same sum of gradients.
    """
    parts, own = door.mesh.layout.vertex, own.contiguous()
    if parts == 1:
        return own
    return torch.stack(door.deal(Total, call, [own] * parts, [len(own)] * parts, "total", back=back)).sum(0)
