"""Gradients of rows that chunks read, summed up for one chunk at a time.

When backward comes to a chunk, all that read it fresh are done. Their gradients, kept by the rows that they belong to,
are then read through the transposed adjacency: each row of the chunk is written once, where adding to the rows of other
chunks would go over most of the memory again for every chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.ops.aggregate import Collector, aggregate_into
from trisect.ops.memory import empty


class Pulled(Collector):
    """What the chunks of one segment have given so far, for a part without halo.

    Args:
        adjacency: [rows, rows] of the part.
        features, dtype: of a gradient row.
    """

    def __init__(self, adjacency: Adjacency, features: int, dtype: torch.dtype) -> None:
        super().__init__((adjacency.rows, features), dtype, adjacency.device)
        self._adjacency = adjacency
        self._given: set[int] = set()
        self._own: dict[int, Tensor] = {}
        self._rest: Tensor | None = None

    def reset(self) -> None:
        """Nothing is given."""
        super().reset()
        self._given.clear()
        self._own.clear()
        self._rest = None

    @torch.no_grad()
    def add(
        self,
        gradient: Tensor,
        block: Adjacency,
        *,
        alpha: float = 1.0,
        row_scale: Tensor | None = None,
        column_scale: Tensor | None = None,
    ) -> None:
        """Keep alpha · diag(row_scale) · gradient as that of the block's rows."""
        if column_scale is not None:
            raise RuntimeError("the gradient of scaled columns cannot be kept by rows")
        first = block.self_start
        place = self.rows()[first : first + block.rows]
        if row_scale is not None:
            gradient = gradient * row_scale[:, None]
        if first in self._given:
            place.add_(gradient, alpha=alpha)
        elif alpha == 1.0:
            place.copy_(gradient)
        else:
            torch.mul(gradient, alpha, out=place)
        self._given.add(first)

    def add_own(self, rows: slice, gradient: Tensor) -> None:
        """A gradient of the rows themselves, which came another way."""
        self._own[rows.start] = gradient

    def add_rest(self, gradient: Tensor) -> None:
        """A gradient of all rows that autograd found."""
        self._rest = gradient if self._rest is None else self._rest + gradient

    @torch.no_grad()
    def of_rows(self, rows: slice, scale: float = 1.0) -> Tensor:
        """The gradient of a chunk's rows, [rows, features]; what other chunks gave is multiplied by `scale`."""
        given = self.rows()
        turned = self._turned(rows)
        result = empty((rows.stop - rows.start, given.shape[1]), given.dtype, given.device)
        aggregate_into(result, given, turned, alpha=scale, add=self._own.pop(rows.start, None))
        if scale != 1.0:
            own = turned.columns_between(rows.start, rows.stop)
            aggregate_into(result, given[rows], own, alpha=1.0 - scale, add=result)
        if self._rest is not None:
            result += self._rest[rows]
        return result

    def _turned(self, rows: slice) -> Adjacency:
        return self._adjacency.transpose().rows_between(rows.start, rows.stop)
