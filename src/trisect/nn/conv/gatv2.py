"""Attention that reads edges, Brody et al., "How Attentive are Graph Attention Networks?" (2105.14491)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trisect import ops
from trisect.graph.adjacency import Adjacency
from trisect.nn.base import Context
from trisect.nn.conv.convolution import Convolution
from trisect.nn.initial import fill_, glorot_
from trisect.ops.edges import attend_edges
from trisect.ops.message import Message


class GATv2Layer(Convolution):
    """out_i = Σ_j a_ij·h_j + b, a_ij = softmax_j(att·leaky_relu(h_j + t_i + W_e·e_ij)), h = W·x, t = W_t·x + b_t.

    In each head. e_ij are the features of the edge j → i. The adjacency's weights are not used; give it with
    self-loops, whose features are then the mean of those of the row's other edges.

    Args:
        in_channels: width of x.
        channels: width of one head.
        edge_channels: features of an edge; 0: edges have none, or they are not read.
        heads: how many.
        concat: heads side by side (out_channels = heads·channels), or their mean (out_channels = channels).
        negative_slope: of the leaky relu.
        attention_dropout: the probability that a coefficient is dropped. It is drawn for a pair of vertices, so that
            on a block that is not square `Context.columns` must be given.
        **options: of `Convolution`.

    Shapes: x [columns, in_channels] → [rows, out_channels]; weight and target_weight [heads·channels, in_channels],
    edge_weight [heads·channels, edge_channels], att [heads, channels].
    """

    edge_weight: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        channels: int,
        edge_channels: int = 0,
        *,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        attention_dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, heads * channels if concat else channels, **options)
        self.channels = channels
        self.edge_channels = edge_channels
        self.heads = heads
        self.concat = concat
        self.negative_slope = negative_slope
        self.attention_dropout = attention_dropout
        width = heads * channels
        self.weight = nn.Parameter(torch.empty(width, in_channels))
        self.target_weight = nn.Parameter(torch.empty(width, in_channels))
        self.target_bias = nn.Parameter(torch.empty(width))
        self.att = nn.Parameter(torch.empty(heads, channels))
        edge_weight = nn.Parameter(torch.empty(width, edge_channels)) if edge_channels else None
        self.register_parameter("edge_weight", edge_weight)
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
        """Draw weights and attention vectors by Glorot's rule, and set biases to zero."""
        super().reset_parameters(generator)
        glorot_(self.weight, generator)
        glorot_(self.target_weight, generator)
        fill_(self.target_bias, 0.0)
        glorot_(self.att, generator)
        if self.edge_weight is not None:
            glorot_(self.edge_weight, generator)

    def prepare(self, x: Tensor, context: Context) -> Tensor:
        """Compute the features W·x of all heads, [rows, heads·channels]."""
        return ops.dense(x, self.weight, into=context.into)

    def combine(self, message: Message, x: Tensor, adjacency: Adjacency, context: Context) -> Tensor:
        """Compute the scores of edges, their softmax over what a row reads, and the weighted sum."""
        columns = None if context.columns is None else context.columns.vertex_ids(adjacency.columns, x.device)
        y = attend_edges(
            message.rows,
            ops.dense(x, self.target_weight, self.target_bias),
            self.att,
            adjacency,
            self.edge_weight,
            self.negative_slope,
            dropout=self.attention_dropout,
            noise=context.noise,
            source_vertices=columns,
        )
        return self.finish(y if self.concat else y.view(-1, self.heads, self.channels).mean(1), x, context)

    def __repr__(self) -> str:
        edges = f", edge_channels={self.edge_channels}" if self.edge_channels else ""
        return f"GATv2Layer({self.in_channels}, {self.channels}{edges}, heads={self.heads}, concat={self.concat})"
