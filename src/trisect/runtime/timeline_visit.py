"""`Visit`: a block on its way through a stage, and what the halves of its layers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.nn.base import Context
from trisect.noise import Noise
from trisect.runtime.timeline_part import StepHalo, TimelinePart
from trisect.schedule.timeline import TimelinePlan

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Visit:
    """A block on its way through the stage.

    Attributes:
        run: the own steps.
        grad: whether backward will follow from it.
        noise: of the own rows; None in evaluation.
    """

    plan: TimelinePlan
    part: TimelinePart
    block: int
    moment: int
    grad: bool
    noise: Noise | None

    @property
    def run(self) -> range:
        """The own steps."""
        return self.plan.runs[self.block][self.moment]

    @cached_property
    def snapshots(self) -> Sequence[Adjacency]:
        """Of the own steps, asked for once."""
        return self.part.snapshots(self.run)

    @cached_property
    def halos(self) -> list[StepHalo]:
        """Of the own steps."""
        found = [self.part.halo(step) for step in self.run]
        if any(halo is None for halo in found):
            raise RuntimeError("the part gives no halo, but the layout is cut by vertex")
        return [halo for halo in found if halo is not None]

    def key(self, purpose: str, layer: int) -> int:
        """Where random rounding on the wire begins."""
        return 0 if self.noise is None else self.noise.at(layer=layer, step=self.block).key(purpose)

    def contexts(self, number: int, *, columns: bool = False) -> list[Context]:
        """For the spatial half of a layer at each own step; with `columns` also of the rows that were received."""
        if self.noise is None:
            return [Context() for _ in self.run]
        result = []
        for t, step in enumerate(self.run):
            noise = self.noise.at(layer=number, step=step)
            others = self.halos[t].vertices if columns else None
            if others is None or noise.vertices is None:
                result.append(Context(noise))
            else:
                result.append(Context(noise, columns=replace(noise, vertices=torch.cat([noise.vertices, others]))))
        return result


def go_back(root: Tensor | None, gradient: Tensor | None) -> None:
    """Backward from a root whose gradient is known; nothing where either is missing."""
    if root is not None and gradient is not None and root.requires_grad:
        torch.autograd.backward([root], [gradient])


def known(tensor: T | None) -> T:
    """What a half before this one has left."""
    if tensor is None:
        raise RuntimeError("a half of a layer was asked for before the one that it follows")
    return tensor
