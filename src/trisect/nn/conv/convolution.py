"""What all spatial layers share: bias, norm, activation, dropout and residual after the aggregation, in this order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from trisect import ops
from trisect.graph.adjacency import Adjacency
from trisect.nn.activation import Activation, activate, activate_rows
from trisect.nn.base import Context, Layer
from trisect.nn.initial import fill_
from trisect.noise import Noise
from trisect.ops.message import Message

if TYPE_CHECKING:
    from trisect.views.view import View

Norm = Literal["none", "layer"]


class Convolution(Layer):
    """A spatial layer out = dropout(activation(norm(conv(x) + bias))) [+ x].

    Dropout stands at the end, on the rows that are computed: its mask then needs the ids of those rows alone, the
    aggregation and all that follows fuse into one pass, and the boundary between two layers carries one tensor. (The
    price: the input of the first layer is dropped by a layer of its own, `DropoutLayer`.)

    Args:
        in_channels, out_channels: widths.
        activation: a name; `none` for a last layer.
        dropout: probability.
        norm: `none` or `layer`. (Statistics over vertices, as in a batch norm, would differ between cuts.)
        residual: add the input, where both widths are equal.
        bias: whether the layer has one.
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
        self.norm = nn.LayerNorm(out_channels) if norm == "layer" else None
        self.register_parameter("bias", nn.Parameter(torch.empty(out_channels)) if bias else None)

    @property
    def transform_first(self) -> bool:
        """Tell whether Â(XW) is cheaper than (ÂX)W; for equal widths it also stores one tensor less for backward."""
        return self.out_channels <= self.in_channels

    @property
    def message_channels(self) -> int:
        """Give the narrower of the two widths."""
        return self.out_channels if self.transform_first else self.in_channels

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Set the bias to zero and the norm to the identity; layers draw their weights on top."""
        fill_(self.bias, 0.0)
        if self.norm is not None:
            self.norm.reset_parameters()

    def finish(self, y: Tensor, x: Tensor, context: Context) -> Tensor:
        """Do all that follows conv(x) = y [rows, out_channels]; x [rows, in_channels] are the rows' own inputs."""
        return self._rest(y if self.bias is None else ops.add(y, self.bias), x, context, done=False)

    def finish_sum(
        self, message: Message, adjacency: Adjacency, x: Tensor, context: Context, add: Tensor | None = None
    ) -> Tensor:
        """Do all that follows conv(x) = Â·message + add; x [rows, in_channels] are the rows' own inputs.

        Shapes: message [columns, out_channels], add [rows, out_channels] → [rows, out_channels].
        """
        relu, p, noise = self._ending(context)
        y = ops.convolve(
            message, adjacency, add=add, bias=self.bias, relu=relu, p=p, noise=noise, into=self._into(context)
        )
        return self._rest(y, x, context, done=self._fuses)

    def finish_product(
        self,
        source: Tensor,
        weight: Tensor,
        x: Tensor,
        context: Context,
        add: Tensor | None = None,
        theta: float = 1.0,
    ) -> Tensor:
        """Do all that follows conv(x) = source·(theta·weight + (1-theta)·I)ᵀ + add.

        Shapes: source [rows, …], weight [out_channels, …], add [rows, out_channels] → [rows, out_channels].
        """
        relu, p, noise = self._ending(context)
        into = self._into(context)
        y = ops.dense(source, weight, self.bias, add=add, relu=relu, p=p, noise=noise, into=into, theta=theta)
        return self._rest(y, x, context, done=self._fuses)

    def finish_sum_product(
        self,
        message: Message,
        adjacency: Adjacency,
        weight: Tensor,
        x: Tensor,
        context: Context,
        add: Tensor | None = None,
        alpha: float = 0.0,
        theta: float = 1.0,
    ) -> Tensor:
        """Do all that follows conv(x) = ((1-alpha)·Â·message + alpha·add)·(theta·weight + (1-theta)·I)ᵀ.

        Shapes: message [columns, …], weight [out_channels, …], add [rows, …] → [rows, out_channels].
        """
        relu, p, noise = self._ending(context)
        y = ops.convolve_dense(
            message,
            adjacency,
            weight,
            self.bias,
            add=add,
            alpha=alpha,
            relu=relu,
            p=p,
            noise=noise,
            into=self._into(context),
            theta=theta,
        )
        return self._rest(y, x, context, done=self._fuses)

    def draws(self, contexts: Sequence[Context]) -> bool:
        """Tell whether the layer draws random numbers in these contexts."""
        noisy = self.dropout > 0.0 or self.activation == "rrelu"
        return noisy and any(context.noise is not None for context in contexts)

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
            return g.normalise(y, self.norm, relu=self.activation == "relu", p=self.dropout)
        y = y if self.norm is None else g.normalise(y, self.norm)
        return activate_rows(y, self.activation, self.dropout, g)

    @property
    def _fuses(self) -> bool:
        """Tell whether the kernel before them can do activation and dropout."""
        return self.norm is None and self.activation in ("relu", "none")

    def _ending(self, context: Context) -> tuple[bool, float, Noise | None]:
        """Say what the kernel is to do after the bias: relu, dropout and its noise."""
        return (self.activation == "relu", self.dropout, context.noise) if self._fuses else (False, 0.0, None)

    def _into(self, context: Context) -> Tensor | None:
        """Give the kernel the context's memory where nothing follows the kernel."""
        return context.into if self._fuses and not self.residual else None

    def _rest(self, y: Tensor, x: Tensor, context: Context, done: bool) -> Tensor:
        """Do what comes after the bias; norm, activation and dropout only where they are not done."""
        if not done:
            y = self._normalised(y, context)
        return ops.add(y, x) if self.residual else y

    def _normalised(self, y: Tensor, context: Context) -> Tensor:
        """Norm, activation and dropout."""
        if self.norm is not None and self.activation in ("relu", "none"):
            relu, p = self.activation == "relu", self.dropout
            return ops.normalise(y, self.norm, relu=relu, p=p, noise=context.noise)
        y = y if self.norm is None else ops.normalise(y, self.norm)
        return ops.dropout(activate(y, self.activation, context.noise), self.dropout, context.noise)

    def _repr_options(self) -> str:
        return "" if self.activation == "none" else f", activation={self.activation}"
