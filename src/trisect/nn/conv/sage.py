"""GraphSAGE, Hamilton et al., "Inductive Representation Learning on Large Graphs" (1706.02216)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from trisect import ops
from trisect.nn.conv.convolution import Convolution

if TYPE_CHECKING:
    from trisect.views.view import Neighbours, View


class SAGELayer(Convolution):
    """out = W·aggregate(x_j) + W_root·x_i + b, then norm, activation, dropout, residual.

    Args:
        in_channels, out_channels: widths.
        reduce: `sum` over the adjacency as it is (row-normalised: the mean of the neighbours, the usual form), or
            `max`.
        root_weight: whether a vertex reads itself through a weight of its own.
        **options: of `Convolution`.

    Shapes: x [..., rows, in_channels] → [..., rows, out_channels]; weight, weight_root [out_channels, in_channels].
    """

    weight_root: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        reduce: Literal["sum", "max"] = "sum",
        root_weight: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, **options)
        self.reduce = reduce
        self.weight = self.drawn("weight", out_channels, in_channels)
        self.weight_root = self.drawn("weight_root", out_channels, in_channels) if root_weight else None

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, in_channels] → [..., rows, out_channels]."""
        if self.reduce == "sum":
            return self.after_fused(g.aggregate(x, self.weight, root=self.weight_root, **self.fused), x, g)

        def largest(near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
            return ops.aggregate(near, at.block, "max")

        root = None if self.weight_root is None else g.dense(x, self.weight_root)
        found = g.gather(x, then=largest, width=self.in_channels)
        return self.after_fused(g.dense(found, self.weight, add=root, **self.fused), x, g)
