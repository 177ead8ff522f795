"""Attention: GAT, Veličković et al., "Graph Attention Networks" (1710.10903), and GATv2, which reads edges, Brody et
al., "How Attentive are Graph Attention Networks?" (2105.14491).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trisect import ops
from trisect.nn.conv.convolution import Convolution
from trisect.nn.initial import glorot_
from trisect.ops.attention import attend
from trisect.ops.edges import attend_edges

if TYPE_CHECKING:
    from trisect.views.view import Neighbours, View


class Attending(Convolution):
    """A layer whose rows weigh what they read, in each head, by a softmax over it. Subclasses compute the scores.

    The adjacency's weights are not used; give it with self-loops.

    Args:
        in_channels: width of x.
        channels: width of one head.
        heads: how many.
        concat: heads side by side (out_channels = heads·channels), or their mean (out_channels = channels).
        negative_slope: of the leaky relu.
        attention_dropout: the probability that a coefficient is dropped; it is drawn for a pair of vertices.
        **options: of `Convolution`.

    Shapes: x [..., rows, in_channels] → [..., rows, out_channels]; weight [heads·channels, in_channels].
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
        self.weight = self.drawn("weight", heads * channels, in_channels, start=glorot_)

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, in_channels] → [..., rows, out_channels]."""

        def mixed(near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
            y = self.attend(near, own, at).view(-1, self.heads, self.channels)
            return y.flatten(1) if self.concat else y.mean(1)

        return self.after(g.gather(x, self.weight, then=mixed, width=self.out_channels), x, g)

    @abstractmethod
    def attend(self, near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
        """Return the weighted sums of what rows read, [rows, heads·channels].

        Args:
            near: the features of all heads, [columns, heads·channels].
            own: the rows' own inputs, [rows, in_channels].
        """

    def dropped(self, at: Neighbours) -> dict[str, Any]:
        """Return the arguments of `ops.attend` and `attend_edges` that say which coefficients are dropped."""
        if self.attention_dropout == 0.0:
            return {}
        return {"dropout": self.attention_dropout, "noise": at.noise, "source_vertices": at.vertices}

    def _repr_options(self) -> str:
        return f", heads={self.heads}, concat={self.concat}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.channels}{self._repr_options()})"


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
        self.att_src = self.drawn("att_src", self.heads, channels, start=glorot_)
        self.att_dst = self.drawn("att_dst", self.heads, channels, start=glorot_)

    def attend(self, near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
        """near [columns, heads·channels] → [rows, heads·channels]."""
        block, drops = at.block, self.dropped(at)
        # ⟨att, h⟩ of each head as one product, with a matrix [heads, heads · channels] that is zero between heads
        one_head = torch.eye(self.heads, dtype=near.dtype, device=near.device)[:, :, None]
        source, target = ((one_head * att).flatten(1) for att in (self.att_src, self.att_dst))
        source_score, target_score = ops.branches(near, source, target, block.self_start, block.rows)
        heads = near.view(-1, self.heads, self.channels)
        return attend(heads, source_score, target_score, block, self.negative_slope, **drops).flatten(1)


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
        self.target_weight = self.drawn("target_weight", width, in_channels, start=glorot_)
        self.target_bias = self.drawn("target_bias", width, start=nn.init.zeros_)
        self.att = self.drawn("att", self.heads, channels, start=glorot_)
        edge_weight = self.drawn("edge_weight", width, edge_channels, start=glorot_) if edge_channels else None
        self.register_parameter("edge_weight", edge_weight)

    def attend(self, near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
        """near [columns, heads·channels], own [rows, in_channels] → [rows, heads·channels]."""
        target, drops = ops.dense(own, self.target_weight, self.target_bias), self.dropped(at)
        return attend_edges(near, target, self.att, at.block, self.edge_weight, self.negative_slope, **drops)

    def _repr_options(self) -> str:
        edges = f", edge_channels={self.edge_channels}" if self.edge_channels else ""
        return f"{edges}{super()._repr_options()}"
