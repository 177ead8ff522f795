"""`BatchView`: what a step over a batch of vertices is, in dense matrices and plain operations of torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping, Sequence
from functools import partial
from typing import Any

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
        self.total_rows = len(rows)

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

    def sum(self, x: Tensor, partial: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return the sum over the rows of the batch."""
        return super().sum(x[..., self._rows, :], partial)

    def _sums(self, message: Tensor) -> Tensor:
        return (dense_of(self.block, message.dtype) @ self._read(message[0]))[None]

    def _made(self, step: int, message: Tensor, own: Tensor, then: Then, draw: Callable[[], Noise | None]) -> Tensor:
        rows, read = self._rows, self._read(message)
        others = torch.ones(self.rows, dtype=torch.bool).index_fill(0, rows, value=False)
        columns = torch.cat([rows, torch.nonzero(others)[:, 0]])
        near = Neighbours(block_of(self.block, rows, columns), columns, partial(_of_rows, draw, rows))
        made = then(read[columns], own[rows], near)
        return made.new_zeros(self.rows, made.shape[1]).index_copy(0, rows, made)


class BlockView(PlainView):
    """Some steps of a timeline, which begin with the states that the block before left: constants.

    Args:
        matrices: of the block.
        first: where in the timeline it begins.
        states: of recurrent modules, by call; the block leaves its own.
    """

    def __init__(
        self,
        matrices: Sequence[Adjacency],
        first: int,
        states: MutableMapping[Hashable, tuple[Tensor, ...]],
        noise: Noise | None = None,
    ) -> None:
        super().__init__(matrices, noise)
        self.steps, self._states = range(first, first + len(matrices)), states

    def recur(self, module: Any, *frames: Tensor) -> Tensor:
        """Return what a recurrent module makes of the block."""
        self._calls += 1
        call, like = (self.layer, self._calls), frames[0]
        state = self._states.get(call)
        if state is None:
            state = module.initial_state(like.shape[1], dtype=like.dtype, device=like.device)
        out, after = module(frames, state, self.steps.start)
        self._states[call] = tuple(tensor.detach() for tensor in after)
        found: Tensor = out
        return found


def _of_rows(draw: Callable[[], Noise | None], rows: Tensor) -> Noise | None:
    noise = draw()
    return None if noise is None else noise.at(vertices=rows)
