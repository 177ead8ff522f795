"""`top`: the best rows of each step (EvolveGCN-H); under a vertex cut all parts swap their candidates.

Every part evolves the same weights from the same candidates, which cross as they are, in the order of parts. It has its
own share of their gradient, which goes back to the owners of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from trisect.schedule.action import Action
from trisect.views.exchange import Crossing, Exchange, Place, Work, crossing
from trisect.views.rows import required
from trisect.views.spatial import Spatial
from trisect.views.verbs import Asked

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
        given = sum(min(count, own) for own in plan.rows) * (len(plan.rows) - 1)
        return "summary", given * steps * action.width * plan.dtype.itemsize

    def __init__(self, spatial: Spatial, call: Asked, chosen: Tensor, counts: Sequence[int]) -> None:
        self._door, self._call, self._chosen, self._counts = required(spatial.door), call, chosen, counts
        if len(counts) != self._door.mesh.layout.vertex:
            raise RuntimeError("internal error: the rows of all parts are not known where candidates of all cross")

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the candidates of all parts, [steps, candidates, channels]."""
        self._shape, own, counts = x.shape, picked(x, self._chosen), self._counts
        received = self._dealt([own] * len(counts), [len(x) * count for count in counts], back=False)
        parts = [rows.view(len(x), count, x.shape[2]) for rows, count in zip(received, counts, strict=True)]
        return [torch.cat(parts, 1)]

    def backward(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the gradients of own rows: what all parts found of them, in the order of parts."""
        pieces = torch.split(gradients[0], list(self._counts), 1)
        received = self._dealt(pieces, [self._chosen.numel()] * len(pieces), back=True)
        total = torch.stack(received).sum(0).view(*self._chosen.shape, self._shape[2])
        gx = total.new_zeros(self._shape)
        return gx.scatter_(1, self._chosen[:, :, None].expand(total.shape), total)

    def _dealt(self, pieces: Sequence[Tensor], rows: Sequence[int], *, back: bool) -> list[Tensor]:
        flat = [piece.flatten(0, 1) for piece in pieces]
        return self._door.deal(self, self._call, flat, rows, "summary", back=back)


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


def picked(x: Tensor, chosen: Tensor) -> Tensor:
    """Return the rows [steps, k, channels] of x at the positions [steps, k]."""
    return x.gather(1, chosen[:, :, None].expand(-1, -1, x.shape[2]))
