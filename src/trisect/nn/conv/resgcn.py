"""ResGCN+, Li et al., "DeeperGCN: All You Need to Train Deeper GCNs" (2006.07739), with a graph convolution inside."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn

from trisect.nn.base import Layer
from trisect.nn.initial import fan_in_
from trisect.nn.norm import Norm, norm_of, normalised

if TYPE_CHECKING:
    from trisect.views.view import View


class ResGCNLayer(Layer):
    """out = x + W_root·z + W·(Â·z) + b with z = dropout(relu(norm(x))).

    z is what other rows read, so that norm, activation and dropout go before the sum.

    Args:
        channels: width, in and out.
        dropout: probability.
        norm: `layer`, `batch` or `none`.

    Shapes: x [..., rows, channels] → [..., rows, channels]; weight, weight_root [channels, channels].
    """

    def __init__(self, channels: int, *, dropout: float = 0.0, norm: Norm = "layer") -> None:
        super().__init__()
        self.in_channels = self.out_channels = channels
        self.dropout = dropout
        self.norm = norm_of(norm, channels)
        self.weight = self.drawn("weight", channels, channels)
        self.weight_root = self.drawn("weight_root", channels, channels)
        self.bias = self.drawn("bias", channels, start=nn.init.zeros_)

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, channels] → the same."""
        z = normalised(x, self.norm, g, relu=True, p=self.dropout)
        return g.aggregate(z, self.weight, root=self.weight_root, bias=self.bias, add=x)


class ReadoutLayer(Layer):
    """out = W·dropout(relu(norm(x))) + b: how a stack of residual blocks is read out, each row for itself.

    Shapes: x [..., rows, in_channels] → [..., rows, out_channels]; weight [out_channels, in_channels].
    """

    def __init__(self, in_channels: int, out_channels: int, *, dropout: float = 0.0, norm: Norm = "layer") -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.dropout = dropout
        self.norm = norm_of(norm, in_channels)
        self.weight = self.drawn("weight", out_channels, in_channels)
        self.bias = self.drawn("bias", out_channels, start=partial(fan_in_, fan_in=in_channels))

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, in_channels] → [..., rows, out_channels]."""
        return g.dense(normalised(x, self.norm, g, relu=True, p=self.dropout), self.weight, self.bias)
