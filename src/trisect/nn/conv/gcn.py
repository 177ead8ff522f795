"""The graph convolution of Kipf & Welling, "Semi-Supervised Classification with Graph Convolutional Networks"
(1609.02907).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trisect import ops
from trisect.graph.adjacency import Adjacency
from trisect.nn.base import Context
from trisect.nn.conv.convolution import Convolution
from trisect.nn.initial import glorot_
from trisect.ops.message import Message
from trisect.ops.spmm.steps import Snapshots

if TYPE_CHECKING:
    from trisect.views.view import View


class GCNLayer(Convolution):
    """out = Â·x·Wᵀ + b, then norm, activation, dropout, residual.

    The adjacency is taken as it is: normalise it once, outside (symmetric, with self-loops).

    Args:
        in_channels, out_channels: widths.
        **options: of `Convolution`.

    Shapes: x [columns, in_channels] → [rows, out_channels]; weight [out_channels, in_channels].
    """

    preaggregates = True
    collects = True

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__(in_channels, out_channels, **options)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weight by Glorot's rule, and set the bias to zero."""
        super().reset_parameters(generator)
        glorot_(self.weight, generator)

    def ask(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, in_channels] → [..., rows, out_channels]."""
        return self.after_fused(g.aggregate(x, self.weight, **self.fused), x, g)

    def prepare(self, x: Tensor, context: Context) -> Tensor:
        """Compute x·Wᵀ where that is not wider than x."""
        return ops.dense(x, self.weight, into=context.into) if self.transform_first else x

    def combine(self, message: Message, x: Tensor, adjacency: Adjacency, context: Context) -> Tensor:
        """Sum over neighbours, and apply W if it is still to come."""
        if self.transform_first:
            return self.finish_sum(message, adjacency, x, context)
        return self.finish_sum_product(message, adjacency, self.weight, x, context)

    def combine_aggregated(self, aggregated: Tensor, x: Tensor, context: Context) -> Tensor:
        """Finish the rows from Â·x, which was computed before."""
        return self.finish_product(aggregated, self.weight, x, context)

    def over_steps(
        self, xs: Tensor, snapshots: Snapshots, contexts: Sequence[Context], aggregated: Tensor | None = None
    ) -> Tensor:
        """Compute all steps at once, where no random numbers tell them apart."""
        if len(contexts) == 1 or xs.dim() == 2 or self.draws(contexts) or not (self._fuses and not self.residual):
            return super().over_steps(xs, snapshots, contexts, aggregated)
        steps, vertices = xs.shape[:2]
        context = Context()
        if aggregated is None and self.transform_first:
            message = self.prepare(xs.flatten(0, 1), context).view(steps, vertices, -1)
            return ops.aggregate_steps(message, snapshots, self.bias, slope=0.0 if self.activation == "relu" else None)
        if aggregated is None:
            aggregated = ops.aggregate_steps(xs, snapshots)
        return self.combine_aggregated(aggregated.flatten(0, 1), xs, context).view(steps, vertices, -1)
