"""`top`: the best rows of each step (EvolveGCN-H); under a vertex cut all parts swap their candidates.

Every part evolves the same weights from the same candidates, which cross as they are, in the order of parts. It has its
own share of their gradient, which goes back to the owners of the rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.comm.rows import Shape
from trisect.schedule.action import Action
from trisect.views.door import Door
from trisect.views.exchange import Crossing, Exchange, Place, Work, crossing
from trisect.views.rows import required
from trisect.views.spatial import Spatial

if TYPE_CHECKING:
    from trisect.views.trace import Call


class Top(Exchange):
    """All parts have the candidates of all."""

    name: ClassVar[str] = "summary"
    letter: ClassVar[str] = "m"

    @classmethod
    def expand(cls, at: Place, call: Call, *, back: bool) -> Iterator[Crossing | Work]:
        """Yield the crossing; gradients cross where the rows are trained."""
        if not back or at.trained(call):
            yield from crossing(call.width)

    @classmethod
    def bytes_of(cls, at: Place, action: Action, fetched: Sequence[int]) -> tuple[str, float]:
        """Each part's candidates to all others, of each step; features that are the same in all steps count once."""
        plan, count = at.plan, required(action.call).count
        steps = min(1, len(at.steps)) if at.layer == 0 and plan.fixed else len(at.steps)
        return "summary", top_bytes(plan.rows, count, steps, action.width, plan.dtype.itemsize)


def top_rows(
    spatial: Spatial, call: Hashable, token: Tensor, x: Tensor, scores: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Return the best min(k, rows) rows of each step and part, best first, parts in order, and the next token.

    The best k of these are the best of all rows, in the same order where scores are equal.

    Args:
        x: [steps, rows, channels].
        scores: [steps, rows], which get no gradient.

    Returns: [steps, sum over parts of min(k, rows of the part), channels].
    """
    chosen = best(scores.detach(), min(k, x.shape[1]))
    if not spatial.moves:
        return _picked(x, chosen), token
    door, counts = required(spatial.door), [min(k, rows) for rows in spatial.part_rows]
    if len(counts) != door.mesh.layout.vertex:
        raise RuntimeError("internal error: the rows of all parts are not known where candidates of all cross")
    both: tuple[Tensor, Tensor] = _Top.apply(door, call, token, x, chosen, counts)  # type: ignore[no-untyped-call]
    return both


def top_bytes(rows: Sequence[int], k: int, steps: int, channels: int, itemsize: int) -> int:
    """Return the bytes that leave all parts each time: every part gives its candidates to all others.

    As many leave in backward, where x needs a gradient.
    """
    return sum(min(k, own) for own in rows) * (len(rows) - 1) * steps * channels * itemsize


def best(scores: Tensor, k: int) -> Tensor:
    """Return the positions of the k highest scores of each step, highest first, ties in order of position: [steps, k].

    A score that is no number is above all others.
    """
    chosen = torch.empty(len(scores), k, dtype=torch.int64, device=scores.device)
    if k == 0:
        return chosen
    for step, score in enumerate(scores.unbind()):
        # topk leaves ties open
        bound = torch.topk(score, k).values[-1]
        able = torch.nonzero(~(score < bound)).flatten()
        order = torch.sort(score[able], descending=True, stable=True).indices
        chosen[step] = able[order[:k]]
    return chosen


def _picked(x: Tensor, chosen: Tensor) -> Tensor:
    return x.gather(1, chosen[:, :, None].expand(-1, -1, x.shape[2]))


class _Top(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, door: Door, call: Hashable, token: Tensor, x: Tensor, chosen: Tensor, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        ctx.door, ctx.call, ctx.counts, ctx.shape = door, call, counts, x.shape
        ctx.save_for_backward(chosen)
        steps, part = len(x), door.mesh.part_index
        own = _picked(x, chosen)
        received = _swapped(door, call, [own] * len(counts), [steps * count for count in counts], back=False)
        received[part] = own
        parts = [rows.view(steps, count, x.shape[2]) for rows, count in zip(received, counts, strict=True)]
        return torch.cat(parts, 1), torch.zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, token: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.needs_input_grad[3]:
            return None, None, token, None, None, None
        (chosen,) = ctx.saved_tensors
        pieces, part = torch.split(gradient, ctx.counts, 1), ctx.door.mesh.part_index
        own = pieces[part]
        received = _swapped(ctx.door, ctx.call, pieces, [chosen.numel()] * len(pieces), back=True)
        received[part] = own
        # in the order of parts
        total = torch.stack([rows.reshape(own.shape) for rows in received]).sum(0)
        gx = gradient.new_zeros(ctx.shape)
        gx.scatter_(1, chosen[:, :, None].expand(total.shape), total)
        return None, None, token, gx, None, None


def _swapped(door: Door, call: Hashable, pieces: Sequence[Tensor], rows: Sequence[int], *, back: bool) -> list[Tensor]:
    """Return what each part gives to this one, [rows, channels] each, exact; nothing of its own.

    Args:
        pieces: for each part, [steps, candidates, channels].
        rows: that come from each part.
    """
    part = door.mesh.part_index
    outgoing = [piece.flatten(0, 1)[: 0 if q == part else None] for q, piece in enumerate(pieces)]
    width, dtype = pieces[0].shape[2], pieces[0].dtype
    shapes = [Shape(0 if q == part else count, width, dtype) for q, count in enumerate(rows)]
    return list(door.swap(Top.name, call, outgoing, shapes, "summary", back=back).wait())
