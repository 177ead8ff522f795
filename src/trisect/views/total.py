"""All-reduce along the vertex axis: the sum over all rows of each step, of which every part has its own."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from trisect.comm.rows import Shape
from trisect.schedule.action import Action
from trisect.views.door import Door
from trisect.views.exchange import Crossing, Exchange, Place, Work, crossing

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
        return "total", total_bytes(plan.parts, rows, action.width, itemsize)


def sum_over_parts(door: Door, call: Hashable, own: Tensor, *, back: bool) -> Tensor:
    """Return the sum over parts of [steps, channels], added up in the order of parts: the same bits on all of them.

    The gradient of a total that every part reads is the same sum of gradients.
    """
    mesh = door.mesh
    parts, part = mesh.layout.vertex, mesh.part_index
    if parts == 1:
        return own
    own = own.contiguous()
    shapes: Sequence[Shape] = [Shape(0 if q == part else own.shape[0], own.shape[1], own.dtype) for q in range(parts)]
    outgoing = [own[:0] if q == part else own for q in range(parts)]
    received = list(door.swap(Total.name, call, outgoing, shapes, "total", back=back).wait())
    received[part] = own
    return torch.stack(received).sum(0)


def total_bytes(parts: int, steps: int, channels: int, itemsize: int) -> int:
    """Return the bytes that leave all parts each time: every part gives its sums to all others."""
    return parts * (parts - 1) * steps * channels * itemsize
