"""Graph attention, Veličković et al., "Graph Attention Networks" (1710.10903)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trisect.graph.adjacency import Adjacency
from trisect.nn.base import Context, own_rows
from trisect.nn.conv.convolution import Convolution
from trisect.nn.initial import glorot_
from trisect.ops.attention import attend
from trisect.ops.message import Message


class GATLayer(Convolution):
    """out_i = Σ_j softmax_j(leaky_relu(a_src·h_j + a_dst·h_i))·h_j + b with h = W·x, in each head.

    The adjacency's weights are not used; give it with self-loops.

    Args:
        in_channels: width of x.
        channels: width of one head.
        heads: how many.
        concat: heads side by side (out_channels = heads·channels), or their mean (out_channels = channels).
        negative_slope: of the leaky relu.
        attention_dropout: the probability that a coefficient is dropped. It is drawn for a pair of vertices, so that
            on a block that is not square `Context.columns` must be given.
        **options: of `Convolution`.

    Shapes: x [columns, in_channels] → [rows, out_channels]; weight [heads·channels, in_channels], att_src and att_dst
    [heads, channels].
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        *,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        attention_dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, heads * channels if concat else channels, **options)
        self.channels = channels
        self.heads = heads
        self.concat = concat
        self.negative_slope = negative_slope
        self.attention_dropout = attention_dropout
        self.weight = nn.Parameter(torch.empty(heads * channels, in_channels))
        self.att_src = nn.Parameter(torch.empty(heads, channels))
        self.att_dst = nn.Parameter(torch.empty(heads, channels))
        self.reset_parameters()

    @property
    def transform_first(self) -> bool:
        """W always goes first, since the scores need W·x."""
        return True

    @property
    def message_channels(self) -> int:
        """All heads are read, even where they are averaged afterwards."""
        return self.heads * self.channels

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw weight and attention vectors by Glorot's rule, and set the bias to zero."""
        super().reset_parameters(generator)
        glorot_(self.weight, generator)
        glorot_(self.att_src, generator)
        glorot_(self.att_dst, generator)

    def prepare(self, x: Tensor, context: Context) -> Tensor:
        """Compute the features W·x of all heads, [rows, heads·channels]."""
        return functional.linear(x, self.weight)

    def combine(self, message: Message, x: Tensor, adjacency: Adjacency, context: Context) -> Tensor:
        """Compute the scores, their softmax over what a row reads, and the weighted sum."""
        h = message.rows.view(-1, self.heads, self.channels)
        source_score = torch.einsum("nhc,hc->nh", h, self.att_src)
        target_score = torch.einsum("nhc,hc->nh", own_rows(h, adjacency), self.att_dst)
        columns = None if context.columns is None else context.columns.vertex_ids(adjacency.columns, x.device)
        y = attend(
            h,
            source_score,
            target_score,
            adjacency,
            self.negative_slope,
            dropout=self.attention_dropout,
            noise=context.noise,
            source_vertices=columns,
        )
        return self.finish(y.flatten(1) if self.concat else y.mean(1), x, context)

    def __repr__(self) -> str:
        return f"GATLayer({self.in_channels}, {self.channels}, heads={self.heads}, concat={self.concat})"
