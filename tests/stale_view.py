"""`StaleView`: GNNPipe's definition of an epoch over chunks, in dense matrices and plain operations of torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from plain_view import PlainView, Then, dense_of
from trisect.graph.adjacency import Adjacency
from trisect.noise import Noise
from trisect.views.view import Neighbours


class StaleView(PlainView):
    """One epoch over chunks of a graph by its definition, literally, on all rows at once.

    A row's message is read fresh by its own chunk and by those after it, and as history, a constant of the epoch
    before, by those before it. The gradient of what another chunk read fresh is scaled. The message is what a verb lets
    others read: the product where that goes before the sum, otherwise x.

    Args:
        matrix: square; row i is vertex i.
        chunks: the vertices of each.
        order: of the chunks.
        history: the messages of the epoch before, by call; zeros where there are none.
        scale: of gradients.
        features: x of the first layer, where its sum over neighbours is kept: it is exact.

    Attributes:
        fresh: the messages of this epoch, by call.
    """

    def __init__(
        self,
        matrix: Adjacency,
        chunks: Sequence[Tensor],
        order: Sequence[int],
        history: Mapping[Hashable, Tensor],
        noise: Noise | None = None,
        *,
        scale: float = 1.0,
        features: Tensor | None = None,
    ) -> None:
        super().__init__([matrix], noise, features=features)
        self._chunks, self._history, self._scale = [chunks[chunk] for chunk in order], history, scale
        self.fresh: dict[Hashable, Tensor] = {}

    def _read(self, message: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows of each chunk, and the messages that they read: both [rows, channels]."""
        self._calls += 1
        call = self.layer, self._calls
        self.fresh[call] = message.detach().clone()
        old = self._history.get(call)
        read = torch.zeros_like(message) if old is None else old
        for rows in self._chunks:
            if len(rows):
                yield rows, read.index_copy(0, rows, message[rows])
                scaled: Tensor = _ScaleGradient.apply(message[rows], self._scale)  # type: ignore[no-untyped-call]
                read = read.index_copy(0, rows, scaled)

    def _in_order(self, made: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return what chunks made in the order of vertices."""
        vertices, rows = (torch.cat(list(parts)) for parts in zip(*made, strict=True))
        return rows[torch.argsort(vertices)]

    def _sums(self, message: Tensor) -> Tensor:
        dense = dense_of(self.block, message.dtype)
        return self._in_order([(rows, dense[rows] @ read) for rows, read in self._read(message[0])])[None]

    def _columns(self, message: Tensor) -> Any:
        raise NotImplementedError("chunks read other rows each; give `then`")

    def _made(self, step: int, message: Tensor, own: Tensor, then: Then, draw: Callable[[], Noise | None]) -> Tensor:
        made = []
        for rows, read in self._read(message):
            others = torch.ones(self.rows, dtype=torch.bool).index_fill(0, rows, value=False)
            columns = torch.cat([rows, torch.nonzero(others)[:, 0]])
            near = Neighbours(block_of(self.block, rows, columns), columns, partial(_of_rows, draw, rows))
            made.append((rows, then(read[columns], own[rows], near)))
        return self._in_order(made)

    def sum(self, x: Tensor, partial: Any = None) -> Tensor:
        """Return for each row the sum over all rows as its chunk reads them, [..., rows, channels]."""
        assert partial is None, "a test's own sums are of rows"
        made = [(rows, read.sum(0).expand(len(rows), -1)) for rows, read in self._read(self.frames(x)[0])]
        return self._in_order(made).view(x.shape)

    @property
    def last_row(self) -> int:
        """A row of the last chunk, which reads all rows fresh."""
        return int(next(rows for rows in reversed(self._chunks) if len(rows))[0])


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.scale, None


def block_of(matrix: Adjacency, rows: Tensor, columns: Tensor) -> Adjacency:
    """Return some rows of a square matrix with all its columns, both in the order given; row i is column i."""
    at = matrix.coordinates()
    row, column = (
        torch.full((matrix.columns,), -1).index_copy(0, ids, torch.arange(len(ids))) for ids in (rows, columns)
    )
    row, column = row[at[0]], column[at[1]]
    kept = torch.nonzero(row >= 0)[:, 0]
    kept = kept[torch.argsort(row[kept] * matrix.columns + column[kept])]
    pointers = torch.zeros(len(rows) + 1, dtype=torch.int64)
    pointers[1:] = torch.cumsum(torch.bincount(row[kept], minlength=len(rows)), 0)
    values, features = matrix.edge_weight(), matrix.edge_attributes()
    block = Adjacency.from_csr(pointers, column[kept], None if values is None else values[kept], matrix.columns)
    return block if features is None else block.with_features(features[kept])


def _of_rows(draw: Callable[[], Noise | None], rows: Tensor) -> Noise | None:
    noise = draw()
    return None if noise is None else noise.at(vertices=rows)
