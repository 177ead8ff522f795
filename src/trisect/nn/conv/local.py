"""Layers that read no neighbours: a linear map, and dropout of a model's input."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from trisect.nn.activation import Activation
from trisect.nn.base import Layer
from trisect.nn.conv.convolution import Convolution, Norm
from trisect.nn.initial import fan_in_

if TYPE_CHECKING:
    from trisect.views.view import View


class LinearLayer(Convolution):
    """out = dropout(activation(norm(x·Wᵀ + b))), each row for itself.

    Shapes: x [..., rows, in_channels] → [..., rows, out_channels]; weight [out_channels, in_channels].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        activation: Activation = "none",
        dropout: float = 0.0,
        norm: Norm = "none",
        writes: str | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, activation=activation, dropout=dropout, norm=norm)
        self.weight = self.drawn("weight", out_channels, in_channels)
        self.bias = self.drawn("bias", out_channels, start=partial(fan_in_, fan_in=in_channels))
        self.writes = writes

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, in_channels] → [..., rows, out_channels]."""
        return self.after_fused(g.dense(x, self.weight, **self.fused), x, g)


class DropoutLayer(Layer):
    """Dropout of each row for itself; used for a model's input, and where a shared input must keep all its elements.

    Shapes: x [..., rows, channels] → [..., rows, channels].
    """

    def __init__(self, channels: int, p: float) -> None:
        super().__init__()
        self.in_channels = self.out_channels = channels
        self.p = p

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, channels] → the same."""
        return g.dropout(x, self.p)

    def __repr__(self) -> str:
        return f"DropoutLayer({self.in_channels}, p={self.p})"
