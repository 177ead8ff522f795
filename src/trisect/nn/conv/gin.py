"""GIN, Xu et al., "How Powerful are Graph Neural Networks?" (1810.00826), and GINE, which reads edges, Hu et al.,
"Strategies for Pre-training Graph Neural Networks" (1905.12265).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trisect import ops
from trisect.nn.conv.convolution import Convolution
from trisect.nn.initial import fan_in_
from trisect.nn.norm import Norm, norm_of, normalised
from trisect.ops.edges import relu_edges

if TYPE_CHECKING:
    from trisect.views.view import Neighbours, View


class GINLayer(Convolution):
    """out = MLP((1+ε)·x_i + Σ_j x_j), then norm, activation, dropout, residual; MLP(s) = W2·relu(norm(W1·s + b1)) + b2.

    The paper's norm inside the MLP is a batch norm. W1 is linear, so that it may go before the sum where it narrows.

    Args:
        in_channels, out_channels: widths.
        hidden_channels: between W1 and W2; out_channels where None.
        eps: ε, or its initial value.
        train_eps: whether ε is trained.
        mlp_norm: `none`, `layer` or `batch`, inside the MLP.
        **options: of `Convolution`.

    Shapes: x [..., rows, in_channels] → [..., rows, out_channels]; weight1 [hidden, in], weight2 [out, hidden].
    """

    eps: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        hidden_channels: int | None = None,
        eps: float = 0.0,
        train_eps: bool = False,
        mlp_norm: Norm = "none",
        **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, **options)
        self.hidden_channels = out_channels if hidden_channels is None else hidden_channels
        if train_eps:
            self.eps = self.drawn("eps", 1, start=partial(nn.init.constant_, val=eps))
        else:
            self.register_buffer("eps", torch.full((1,), eps))
        self.weight1 = self.drawn("weight1", self.hidden_channels, in_channels)
        self.bias1 = None
        if mlp_norm != "batch":  # which takes a bias away again
            self.bias1 = self.drawn("bias1", self.hidden_channels, start=partial(fan_in_, fan_in=in_channels))
        self.mlp_norm = norm_of(mlp_norm, self.hidden_channels)
        self.weight2 = self.drawn("weight2", out_channels, self.hidden_channels)
        if self.bias is not None:
            self.bias = self.drawn("bias", out_channels, start=partial(fan_in_, fan_in=self.hidden_channels))

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, in_channels] → [..., rows, out_channels]."""
        factor = 1.0 + self.eps
        if self.hidden_channels > self.in_channels or g.keeps(x):
            return self.mlp(g.aggregate(x, add=ops.scale(x, factor)), x, g)
        message = g.dense(x, self.weight1)
        own = ops.scale(message, factor)
        return self._second(g.aggregate(message, add=own, bias=self.bias1, relu=self.mlp_norm is None), x, g)

    def mlp(self, total: Tensor, x: Tensor, g: View) -> Tensor:
        """Return the layer's output from the sum that the MLP reads, [..., rows, in_channels]."""
        return self._second(g.dense(total, self.weight1, self.bias1, relu=self.mlp_norm is None), x, g)

    def _second(self, hidden: Tensor, x: Tensor, g: View) -> Tensor:
        if self.mlp_norm is not None:
            hidden = normalised(hidden, self.mlp_norm, g, relu=True)
        return self.after_fused(g.dense(hidden, self.weight2, **self.fused), x, g)


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
        self.edge_weight = self.drawn("edge_weight", in_channels, edge_channels)
        self.edge_bias = self.drawn("edge_bias", in_channels, start=partial(fan_in_, fan_in=edge_channels))

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, in_channels] → [..., rows, out_channels]."""

        def messages(near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
            return relu_edges(near, self.edge_bias, at.block, self.edge_weight)

        total = g.gather(x, then=messages, width=self.in_channels)
        return self.mlp(ops.add(total, ops.scale(x, 1.0 + self.eps)), x, g)

    def _repr_options(self) -> str:
        return f", edge_channels={self.edge_channels}"
