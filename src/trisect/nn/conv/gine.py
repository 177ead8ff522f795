"""GIN with edge features, Hu et al., "Strategies for Pre-training Graph Neural Networks" (1905.12265)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trisect import ops
from trisect.nn.conv.gin import GINLayer
from trisect.nn.initial import fan_in_
from trisect.ops.edges import relu_edges

if TYPE_CHECKING:
    from trisect.views.view import Neighbours, View


class GINELayer(GINLayer):
    """out = MLP((1+ε)·x_i + Σ_j relu(x_j + W_e·e_ij + b_e)), where e_ij are the features of the edge j → i.

    The MLP is that of `GINLayer`. The adjacency's weights are not used.

    Args:
        in_channels, out_channels: widths.
        edge_channels: features of an edge.
        **options: of `GINLayer`.

    Shapes: x [..., rows, in_channels] → [..., rows, out_channels]; edge_weight [in_channels, edge_channels].
    """

    def __init__(self, in_channels: int, out_channels: int, edge_channels: int, **options: Any) -> None:
        super().__init__(in_channels, out_channels, **options)
        self.edge_channels = edge_channels
        self.edge_weight = nn.Parameter(torch.empty(in_channels, edge_channels))
        self.edge_bias = nn.Parameter(torch.empty(in_channels))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw weights and biases as torch.nn.Linear does, and set ε to its initial value."""
        super().reset_parameters(generator)
        if self.edge_channels:  # the parent's constructor draws before there are any
            fan_in_(self.edge_weight, self.edge_channels, generator)
            fan_in_(self.edge_bias, self.edge_channels, generator)

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, in_channels] → [..., rows, out_channels]."""

        def messages(near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
            return relu_edges(near, self.edge_bias, at.block, self.edge_weight)

        total = g.gather(x, then=messages, width=self.in_channels)
        return self.mlp(ops.add(total, ops.scale(x, 1.0 + self.eps)), x, g)

    def _repr_options(self) -> str:
        return f", edge_channels={self.edge_channels}"
