"""The graph convolution of Kipf & Welling, "Semi-Supervised Classification with Graph Convolutional Networks"
(1609.02907), and GCNII, Chen et al., "Simple and Deep Graph Convolutional Networks" (2007.02133).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

from trisect.nn.conv.convolution import Convolution
from trisect.nn.initial import glorot_

if TYPE_CHECKING:
    from trisect.views.view import View


class GCNLayer(Convolution):
    """out = Â·x·Wᵀ [+ x·W_rootᵀ] + b, then norm, activation, dropout, residual.

    The adjacency is taken as it is: normalise it once, outside (symmetric, with self-loops).

    Args:
        in_channels, out_channels: widths.
        root_weight: whether a vertex has a weight for itself: a residual before the norm, of any width.
        **options: of `Convolution`.

    Shapes: x [..., rows, in_channels] → [..., rows, out_channels]; weight, weight_root [out_channels, in_channels].
    """

    def __init__(self, in_channels: int, out_channels: int, *, root_weight: bool = False, **options: Any) -> None:
        super().__init__(in_channels, out_channels, **options)
        self.weight = self.drawn("weight", out_channels, in_channels, start=glorot_)
        self.weight_root = self.drawn("weight_root", out_channels, in_channels) if root_weight else None

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, in_channels] → [..., rows, out_channels]."""
        return self.after_fused(g.aggregate(x, self.weight, root=self.weight_root, **self.fused), x, g)


class GCN2Layer(Convolution):
    """out = S·((1-θ)·I + θ·Wᵀ) with S = (1-α)·Â·x + α·h0 and θ = ln(λ/l + 1), then norm, activation, dropout, residual.

    h0, the output of the model's first linear layer, is a shared input: it is read as `g.shared["h0"]`.

    Args:
        channels: width, in and out.
        alpha: share of h0.
        lam, layer: λ and l (from 1), which give θ.
        **options: of `Convolution`.

    Shapes: x, h0 [..., rows, channels] → [..., rows, channels]; weight [channels, channels].
    """

    reads = ("h0",)

    def __init__(self, channels: int, *, alpha: float = 0.1, lam: float = 0.5, layer: int = 1, **options: Any) -> None:
        super().__init__(channels, channels, bias=False, **options)
        self.alpha = alpha
        self.theta = math.log(lam / layer + 1.0)
        self.weight = self.drawn("weight", channels, channels)

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, channels] → the same."""
        h0 = g.shared["h0"] if self.alpha else None
        y = g.aggregate(x, self.weight, add=h0, alpha=self.alpha, theta=self.theta, **self.fused)
        return self.after_fused(y, x, g)

    def __repr__(self) -> str:
        return f"GCN2Layer({self.in_channels}, alpha={self.alpha}, theta={self.theta:.4g})"
