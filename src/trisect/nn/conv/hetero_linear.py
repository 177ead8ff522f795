"""A linear map with a weight for each type of vertices; the first layer of a model on data of several types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trisect.errors import ConfigError
from trisect.nn.conv.convolution import Convolution
from trisect.nn.initial import uniform_

if TYPE_CHECKING:
    from trisect.views.view import View


class HeteroLinearLayer(Convolution):
    """out = dropout(activation(norm(x·W_tᵀ + b_t))), with t the type of each row.

    Rows are in the form of `Graph.from_pyg` of a `HeteroData`: the features of the row's type, zeros up to the widest
    type, and a column for each type that is 1 for the row's own. A type without features has b_t alone.

    Args:
        widths: the number of features of each type.
        out_channels: width of the output, the same for all types.
        types: whether the columns of types are passed on behind the output, for a `HeteroLayer` with types.
        **options: of `Convolution`.

    Shapes: x [..., rows, max(widths) + types] → [..., rows, out_channels]; weight_t [out_channels, widths[t]],
    biases [types, out_channels].
    """

    def __init__(self, widths: Sequence[int], out_channels: int, *, types: bool = False, **options: Any) -> None:
        if not widths or min(widths) < 0:
            raise ConfigError(f"widths is {list(widths)}; give the number of features of each type of vertices.")
        super().__init__(max(widths) + len(widths), out_channels, **{"bias": False, **options})
        self.widths, self.types = tuple(widths), types
        for number, width in enumerate(widths):
            setattr(self, f"weight_{number}", self.drawn(f"weight_{number}", out_channels, width))
        self.out_channels += len(widths) if types else 0
        self.biases = self.drawn("biases", len(widths), out_channels, start=self._begin_biases)

    def _begin_biases(self, biases: Tensor) -> None:
        """Fill with zeros; draw those of types without features, whose vertices are told by them alone."""
        with torch.no_grad():
            biases.zero_()
        for number, width in enumerate(self.widths):
            if width == 0:
                uniform_(biases[number], 1.0)

    @property
    def weights(self) -> list[Tensor]:
        """The weight of each type, [out_channels, its features]."""
        return [getattr(self, f"weight_{number}") for number in range(len(self.widths))]

    def forward(self, x: Tensor, g: View) -> Tensor:
        """x [..., rows, max(widths) + types] → [..., rows, out_channels]."""
        first = self.in_channels - len(self.widths)
        y = x[..., first:] @ self.biases
        for number, weight in enumerate(self.weights):
            rows = x[..., first + number] != 0
            if self.widths[number]:
                y = y.index_put(
                    torch.nonzero(rows, as_tuple=True), x[rows][:, : self.widths[number]] @ weight.t(), True
                )
        y = self.after(y, x, g)
        return torch.cat([y, x[..., first:]], -1) if self.types else y

    def _repr_options(self) -> str:
        return f", widths={list(self.widths)}{super()._repr_options()}"
