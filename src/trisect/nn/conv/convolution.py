"""The work behind a sum over neighbours (bias, norm, activation, dropout and residual), and layers that read none."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from trisect import ops
from trisect.nn.activation import Activation, activate_rows
from trisect.nn.base import Layer
from trisect.nn.initial import fan_in_
from trisect.nn.norm import Norm, norm_of, normalised

if TYPE_CHECKING:
    from trisect.views.view import View


class Convolution(Layer):
    """A spatial layer out = dropout(activation(norm(conv(x) + bias))) [+ x].

    Dropout stands at the end, on the rows that are computed: its mask then needs the ids of those rows alone, the
    aggregation and all that follows fuse into one pass, and the boundary between two layers carries one tensor. (The
    price: the input of the first layer is dropped by a layer of its own, `DropoutLayer`.)

    Args:
        in_channels, out_channels: widths.
        activation: a name; `none` for a last layer.
        dropout: probability.
        norm: `none`, `layer` or `batch`.
        residual: add the input, where both widths are equal.
        bias: whether the layer has one; none before a batch norm, which takes it away again.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        activation: Activation = "none",
        dropout: float = 0.0,
        norm: Norm = "none",
        residual: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.activation: Activation = activation
        self.dropout = dropout
        self.residual = residual and in_channels == out_channels
        self.norm = norm_of(norm, out_channels)
        self.bias = self.drawn("bias", out_channels, start=nn.init.zeros_) if bias and norm != "batch" else None

    @property
    def _fuses(self) -> bool:
        """Whether the kernel of a verb does activation and dropout."""
        return self.norm is None and self.activation in ("relu", "none")

    @property
    def fused(self) -> dict[str, Any]:
        """The part of what follows conv(x) that `View.aggregate` and `View.dense` do themselves."""
        if not self._fuses:
            return {"bias": self.bias}
        return {"bias": self.bias, "relu": self.activation == "relu", "p": self.dropout}

    def after_fused(self, y: Tensor, x: Tensor, g: View) -> Tensor:
        """Return all that follows a verb which was given `fused`; y [..., rows, out_channels], x the layer's input."""
        y = y if self._fuses else self._ended(y, g)
        return ops.add(y, x) if self.residual else y

    def after(self, y: Tensor, x: Tensor, g: View) -> Tensor:
        """Return all that follows conv(x) = y [..., rows, out_channels]; x is the layer's input."""
        if self.bias is not None:
            y = ops.add(y.flatten(0, -2), self.bias).view(y.shape)
        y = self._ended(y, g)
        return ops.add(y, x) if self.residual else y

    def _ended(self, y: Tensor, g: View) -> Tensor:
        """Norm, activation and dropout."""
        if self.norm is not None and self.activation in ("relu", "none"):
            return normalised(y, self.norm, g, relu=self.activation == "relu", p=self.dropout)
        y = normalised(y, self.norm, g)
        return activate_rows(y, self.activation, self.dropout, g)

    def _repr_options(self) -> str:
        return "" if self.activation == "none" else f", activation={self.activation}"


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
        if self.bias is not None:
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
