"""Attention that reads edges, Brody et al., "How Attentive are Graph Attention Networks?" (2105.14491)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trisect import ops
from trisect.nn.conv.attending import Attending
from trisect.nn.initial import fill_, glorot_
from trisect.ops.edges import attend_edges

if TYPE_CHECKING:
    from trisect.views.view import Neighbours


class GATv2Layer(Attending):
    """out_i = Σ_j a_ij·h_j + b, a_ij = softmax_j(att·leaky_relu(h_j + t_i + W_e·e_ij)), h = W·x, t = W_t·x + b_t.

    In each head. e_ij are the features of the edge j → i; those of self-loops are the mean of those of the row's other
    edges.

    Args:
        in_channels, channels: width of x, and of one head.
        edge_channels: features of an edge; 0: edges have none, or they are not read.
        **options: of `Attending` (heads, concat, …) and `Convolution`.

    Shapes: x [..., rows, in_channels] → [..., rows, out_channels]; weight and target_weight [heads·channels,
    in_channels], edge_weight [heads·channels, edge_channels], att [heads, channels].
    """

    edge_weight: nn.Parameter | None

    def __init__(self, in_channels: int, channels: int, edge_channels: int = 0, **options: Any) -> None:
        super().__init__(in_channels, channels, **options)
        self.edge_channels = edge_channels
        width = self.heads * channels
        self.target_weight = nn.Parameter(torch.empty(width, in_channels))
        self.target_bias = nn.Parameter(torch.empty(width))
        self.att = nn.Parameter(torch.empty(self.heads, channels))
        edge_weight = nn.Parameter(torch.empty(width, edge_channels)) if edge_channels else None
        self.register_parameter("edge_weight", edge_weight)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw weights and attention vectors by Glorot's rule, and set biases to zero."""
        super().reset_parameters(generator)
        glorot_(self.target_weight, generator)
        fill_(self.target_bias, 0.0)
        glorot_(self.att, generator)
        if self.edge_weight is not None:
            glorot_(self.edge_weight, generator)

    def attend(self, near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
        """near [columns, heads·channels], own [rows, in_channels] → [rows, heads·channels]."""
        target, drops = ops.dense(own, self.target_weight, self.target_bias), self.dropped(at)
        return attend_edges(near, target, self.att, at.block, self.edge_weight, self.negative_slope, **drops)

    def _repr_options(self) -> str:
        edges = f", edge_channels={self.edge_channels}" if self.edge_channels else ""
        return f"{edges}{super()._repr_options()}"
