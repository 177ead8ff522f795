"""`BatchView`: what a step over a batch of vertices is, in dense matrices and plain operations of torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from functools import partial

import torch
from torch import Tensor

from plain_view import PlainView, Then, dense_of
from stale_view import block_of
from trisect.graph.adjacency import Adjacency
from trisect.noise import Noise
from trisect.views.view import Neighbours


class BatchView(PlainView):
    """All rows at once, of which those of a batch alone count: they read each other's messages fresh, and those of all
    other rows from history, a constant. What the batch makes is pushed to history.

    Args:
        matrix: square; row i is vertex i.
        rows: of the batch.
        history: the messages that are read of other rows, by call; None: nobody reads any (edges to them are gone).
        blend: the weight of what history was where fresh rows are pushed; None: they are not.
        features: x of the first layer, where its sum over neighbours is kept: it is exact.
    """

    def __init__(
        self,
        matrix: Adjacency,
        rows: Tensor,
        history: MutableMapping[Hashable, Tensor] | None,
        noise: Noise | None = None,
        *,
        blend: float | None = 0.0,
        features: Tensor | None = None,
    ) -> None:
        super().__init__([matrix], noise, features=features)
        self._rows, self._history, self._blend = rows, history, blend

    def _read(self, message: Tensor) -> Tensor:
        """Return the messages that the batch reads, [rows, channels]."""
        self._calls += 1
        call = self.layer, self._calls
        if self._history is None:
            return message
        old = self._history.setdefault(call, torch.zeros_like(message.detach()))
        fresh = message[self._rows]
        if self._blend is not None:
            pushed = torch.lerp(old[self._rows], fresh.detach(), 1.0 - self._blend)
            self._history[call] = old.index_copy(0, self._rows, pushed)
        return old.index_copy(0, self._rows, fresh)

    def _sums(self, message: Tensor) -> Tensor:
        return (dense_of(self.block, message.dtype) @ self._read(message[0]))[None]

    def _made(self, step: int, message: Tensor, own: Tensor, then: Then, draw: Callable[[], Noise | None]) -> Tensor:
        rows, read = self._rows, self._read(message)
        others = torch.ones(self.rows, dtype=torch.bool).index_fill(0, rows, value=False)
        columns = torch.cat([rows, torch.nonzero(others)[:, 0]])
        near = Neighbours(block_of(self.block, rows, columns), columns, partial(_of_rows, draw, rows))
        made = then(read[columns], own[rows], near)
        return made.new_zeros(self.rows, made.shape[1]).index_copy(0, rows, made)


def _of_rows(draw: Callable[[], Noise | None], rows: Tensor) -> Noise | None:
    noise = draw()
    return None if noise is None else noise.at(vertices=rows)
