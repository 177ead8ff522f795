"""Graph attention, Veličković et al., "Graph Attention Networks" (1710.10903)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trisect import ops
from trisect.nn.conv.attending import Attending
from trisect.nn.initial import glorot_
from trisect.ops.attention import attend

if TYPE_CHECKING:
    from trisect.views.view import Neighbours


class GATLayer(Attending):
    """out_i = Σ_j softmax_j(leaky_relu(a_src·h_j + a_dst·h_i))·h_j + b with h = W·x, in each head.

    Args:
        in_channels, channels: width of x, and of one head.
        **options: of `Attending` (heads, concat, …) and `Convolution`.

    Shapes: x [..., rows, in_channels] → [..., rows, out_channels]; weight [heads·channels, in_channels], att_src and
    att_dst [heads, channels].
    """

    def __init__(self, in_channels: int, channels: int, **options: Any) -> None:
        super().__init__(in_channels, channels, **options)
        self.att_src = nn.Parameter(torch.empty(self.heads, channels))
        self.att_dst = nn.Parameter(torch.empty(self.heads, channels))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw weight and attention vectors by Glorot's rule, and set the bias to zero."""
        super().reset_parameters(generator)
        glorot_(self.att_src, generator)
        glorot_(self.att_dst, generator)

    def attend(self, near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
        """near [columns, heads·channels] → [rows, heads·channels]."""
        block, drops = at.block, self.dropped(at)
        # ⟨att, h⟩ of each head as one product, with a matrix [heads, heads · channels] that is zero between heads
        one_head = torch.eye(self.heads, dtype=near.dtype, device=near.device)[:, :, None]
        source, target = ((one_head * att).flatten(1) for att in (self.att_src, self.att_dst))
        source_score, target_score = ops.branches(near, source, target, block.self_start, block.rows)
        heads = near.view(-1, self.heads, self.channels)
        return attend(heads, source_score, target_score, block, self.negative_slope, **drops).flatten(1)
