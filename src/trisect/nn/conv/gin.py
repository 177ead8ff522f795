"""GIN, Xu et al., "How Powerful are Graph Neural Networks?" (1810.00826)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trisect import ops
from trisect.nn.conv.convolution import Convolution, Norm
from trisect.nn.initial import fan_in_, fill_

if TYPE_CHECKING:
    from trisect.views.view import View


class GINLayer(Convolution):
    """out = MLP((1+ε)·x_i + Σ_j x_j), then norm, activation, dropout, residual; MLP(s) = W2·relu(norm(W1·s + b1)) + b2.

    The paper puts a batch norm into the MLP. Its statistics run over all vertices, so that a cut would change them:
    here it is a layer norm or none. W1 is linear, so that it may go before the sum where it narrows.

    Args:
        in_channels, out_channels: widths.
        hidden_channels: between W1 and W2; out_channels where None.
        eps: ε, or its initial value.
        train_eps: whether ε is trained.
        mlp_norm: `none` or `layer`, inside the MLP.
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
        self.initial_eps = eps
        if train_eps:
            self.eps = nn.Parameter(torch.empty(1))
        else:
            self.register_buffer("eps", torch.empty(1))
        self.weight1 = nn.Parameter(torch.empty(self.hidden_channels, in_channels))
        self.bias1 = nn.Parameter(torch.empty(self.hidden_channels))
        self.mlp_norm = nn.LayerNorm(self.hidden_channels) if mlp_norm == "layer" else None
        self.weight2 = nn.Parameter(torch.empty(out_channels, self.hidden_channels))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw weights and biases as torch.nn.Linear does, and set ε to its initial value."""
        super().reset_parameters(generator)
        fan_in_(self.weight1, self.in_channels, generator)
        fan_in_(self.bias1, self.in_channels, generator)
        fan_in_(self.weight2, self.hidden_channels, generator)
        if self.bias is not None:
            fan_in_(self.bias, self.hidden_channels, generator)
        fill_(self.eps, self.initial_eps)
        if self.mlp_norm is not None:
            self.mlp_norm.reset_parameters()

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
            hidden = g.normalise(hidden, self.mlp_norm, relu=True)
        return self.after_fused(g.dense(hidden, self.weight2, **self.fused), x, g)
