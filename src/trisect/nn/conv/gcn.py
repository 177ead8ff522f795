"""The graph convolution of Kipf & Welling, "Semi-Supervised Classification with Graph Convolutional Networks"
(1609.02907).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trisect.nn.conv.convolution import Convolution
from trisect.nn.initial import glorot_

if TYPE_CHECKING:
    from trisect.views.view import View


class GCNLayer(Convolution):
    """out = Â·x·Wᵀ + b, then norm, activation, dropout, residual.

    The adjacency is taken as it is: normalise it once, outside (symmetric, with self-loops).

    Args:
        in_channels, out_channels: widths.
        **options: of `Convolution`.

    Shapes: x [..., rows, in_channels] → [..., rows, out_channels]; weight [out_channels, in_channels].
    """

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__(in_channels, out_channels, **options)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weight by Glorot's rule, and set the bias to zero."""
        super().reset_parameters(generator)
        glorot_(self.weight, generator)

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, in_channels] → [..., rows, out_channels]."""
        return self.after_fused(g.aggregate(x, self.weight, **self.fused), x, g)
