"""`Local`: all rows that own rows read are here."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.ops.memory import empty
from trisect.ops.spmm.grouping import Snapshots, fits, grouped
from trisect.ops.spmm.several import Group, aggregate_group_into, side_by_side
from trisect.ops.spmm.sums import aggregate_into
from trisect.views.door import Door
from trisect.views.ending import Ending
from trisect.views.rows import required
from trisect.views.spatial import Spatial
from trisect.views.total import sum_over_parts


class Local(Spatial):
    """Sums over the matrices of one process.

    Args:
        blocks: the matrix of each step, square; they may be made when asked for, and are asked for in order.
        door, part_rows: where vertices are cut all the same, since no layer sums up over neighbours.
    """

    def __init__(self, blocks: Snapshots, rows: int, door: Door | None = None, part_rows: Sequence[int] = ()) -> None:
        self._blocks, self.rows, self.steps = blocks, rows, len(blocks)
        self.door, self.part_rows = door, part_rows
        self.moves = len(part_rows) > 1

    @property
    def blocks(self) -> Sequence[Adjacency]:
        """Return the matrix of each step."""
        return self._blocks  # type: ignore[return-value]

    def sum(
        self,
        call: Hashable,
        x: Tensor,
        out: Tensor,
        *,
        alpha: float = 1.0,
        add: Tensor | None = None,
        beta: float = 1.0,
        bias: Tensor | None = None,
        ending: Ending = Ending.NONE,
        trained: bool = False,
    ) -> Any:
        """Write the sums; return the matrices, where a backward will follow."""
        kept: list[Adjacency | Group] = []
        plain = alpha == 1.0 and add is None and ending.noises is None and x.stride(0) != 0
        if self.steps > 1 and plain and fits(x):
            step = 0
            for group in grouped(self._blocks, x.shape[2], x.dtype):
                steps = slice(step, step + group.steps)
                slope = ending.slope if ending.relu else None
                aggregate_group_into(out[steps].unbind(), side_by_side(x[steps].unbind()), group, bias, slope)
                step += group.steps
                if trained:
                    kept.append(group)
            return kept
        for step in range(self.steps):
            matrix = self._blocks[step]
            aggregate_into(
                out[step],
                x[step],
                matrix,
                alpha=alpha,
                add=None if add is None else add[step],
                beta=beta,
                bias=bias,
                relu=ending.plain_relu,
                slope=ending.slope,
                p=ending.p,
                noise=ending.noise(step),
            )
            if trained:
                kept.append(matrix)
        return kept

    def sum_gradient(self, call: Hashable, gradient: Tensor, trail: Any, *, alpha: float = 1.0) -> Tensor:
        """Return the sums with the transposed matrices."""
        out = empty((self.steps, self.rows, gradient.shape[2]), gradient.dtype, gradient.device)
        step = 0
        for kept in trail:
            if isinstance(kept, Group):
                steps = slice(step, step + kept.steps)
                packed = side_by_side(gradient[steps].unbind())
                aggregate_group_into(out[steps].unbind(), packed, kept.transpose())
                step += kept.steps
                continue
            aggregate_into(out[step], gradient[step], kept.transpose(), alpha=alpha)
            step += 1
        return out

    def ended_gradient(
        self, gradient: Tensor, trail: Any, ending: Ending, out: Tensor, *, want_bias: bool
    ) -> tuple[Tensor, Tensor | None] | None:
        """Return them where all steps are in groups, whose gradients are packed anyway."""
        if not trail or not all(isinstance(kept, Group) for kept in trail):
            return None
        width, gbias = gradient.shape[2], gradient.new_zeros(gradient.shape[2]) if want_bias else None
        back, step = empty((self.steps, self.rows, gradient.shape[2]), gradient.dtype, gradient.device), 0
        for group in trail:
            steps = slice(step, step + group.steps)
            packed = side_by_side(gradient[steps].unbind(), sign=out[steps].unbind(), slope=ending.slope)
            for index in range(group.steps if gbias is not None else 0):
                gbias = required(gbias) + packed[:, index, :width].sum(0)
            aggregate_group_into(back[steps].unbind(), packed, group.transpose())
            step += group.steps
        return back, gbias

    def gather(self, call: Hashable, x: Tensor) -> list[Tensor]:
        """Return the rows themselves."""
        return list(x.unbind())

    def gather_gradient(self, call: Hashable, gradients: Sequence[Tensor]) -> Tensor:
        """Return the gradients themselves."""
        return torch.stack(list(gradients))

    def total(self, call: Hashable, sums: Tensor) -> Tensor:
        """Return the sum over all parts."""
        return sums[:, 0] if self.door is None else sum_over_parts(self.door, call, sums[:, 0], back=False)

    def total_gradient(self, call: Hashable, gradient: Tensor) -> Tensor:
        """Return the sum of what all parts want of the total."""
        return gradient if self.door is None else sum_over_parts(self.door, call, gradient, back=True)
