"""R-GCN, Schlichtkrull et al., "Modeling Relational Data with Graph Convolutional Networks" (1703.06103)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trisect import ops
from trisect.graph.relations import interleaved_relations, mean_relations
from trisect.nn.conv.convolution import Convolution
from trisect.nn.initial import glorot_

if TYPE_CHECKING:
    from trisect.views.view import Neighbours, View


class RGCNLayer(Convolution):
    """out_i = Σ_r W_r·mean_{j ∈ N_r(i)} x_j + W_root·x_i + b, then norm, activation, dropout, residual.

    With bases, W_r = Σ_b coefficient[r, b]·V_b. Rows cross ranks once for all relations: x itself, or where that is
    narrower, x times the matrices of all relations (or bases) side by side. The sums of all relations are one sparse
    product.

    Args:
        in_channels, out_channels: widths.
        relations: how many the data have.
        bases: how many matrices V_b; None: each relation has one of its own.
        root_weight: whether a vertex reads itself through a weight of its own.
        **options: of `Convolution`.

    Shapes: x [..., rows, in_channels] → [..., rows, out_channels]; weight [relations or bases, out_channels,
    in_channels], coefficient [relations, bases], weight_root [out_channels, in_channels].
    """

    weight_root: nn.Parameter | None
    coefficient: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        relations: int,
        *,
        bases: int | None = None,
        root_weight: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, **options)
        self.edge_channels, self.bases = relations, bases
        self.reads_all_relations = True
        self.weight = self.drawn("weight", bases or relations, out_channels, in_channels, start=glorot_)
        self.coefficient = self.drawn("coefficient", relations, bases, start=glorot_) if bases else None
        self.weight_root = self.drawn("weight_root", out_channels, in_channels, start=glorot_) if root_weight else None

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, in_channels] → [..., rows, out_channels]."""
        crossing = self.weight.flatten(0, 1) if self._narrows else None
        sums = g.gather(x, crossing, then=self._products if self._narrows else self._sums, width=self.out_channels)
        if self.weight_root is None:
            return self.after(sums, x, g)
        return self.after_fused(g.dense(x, self.weight_root, add=sums, **self.fused), x, g)

    @property
    def _narrows(self) -> bool:
        """Whether rows are multiplied by the matrices before they cross."""
        return len(self.weight) * self.out_channels < self.in_channels

    def _sums(self, near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
        """near [columns, in_channels]: the mean of each relation, all of them times all matrices."""
        means = ops.aggregate(near, mean_relations(at.block)).view(own.shape[0], -1)
        weight: Tensor = self.weight
        if self.coefficient is not None:
            weight = torch.einsum("rb,boi->roi", self.coefficient, weight)
        return ops.dense(means, weight.transpose(0, 1).flatten(1))

    def _products(self, near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
        """near [columns, matrices·out_channels]: what each column gives in each relation is summed at once."""
        if self.coefficient is not None:
            products = near.view(near.shape[0], -1, self.out_channels)
            near = torch.einsum("rb,cbo->cro", self.coefficient, products)
        return ops.aggregate(near.reshape(-1, self.out_channels), interleaved_relations(at.block))

    def _repr_options(self) -> str:
        bases = "" if self.bases is None else f", bases={self.bases}"
        return f", relations={self.edge_channels}{bases}{super()._repr_options()}"
