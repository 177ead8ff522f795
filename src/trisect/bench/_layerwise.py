"""The stale pipeline's computation on one process, layer by layer with all chunks at once.

What a chunk computes in a layer depends on the layer below alone: on fresh rows of its own and of chunks before it in
the epoch's order, and on history for the others. So all chunks of a layer can be done at once with one block whose
columns are (rows, the same rows as other chunks read them, history). The numbers are those of the pipeline (a test
requires it), without the cost of its many small pieces: experiments on accuracy need no schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trisect.graph.adjacency import Adjacency
from trisect.nn.base import Context, Layer, Model
from trisect.noise import Noise
from trisect.runtime.history import MERGED, History
from trisect.schedule.action import Action
from trisect.train.programs import Program
from trisect.train.tasks.base import BoundTask


class LayerwiseProgram(Program):
    """A static model on one graph in partition order.

    Args:
        chunk_of: int64 [vertices], the chunk of each row.
        chunks: how many there are.
        history: None: exact.
    """

    def __init__(
        self,
        model: Model,
        decoder: nn.Module | None,
        task: BoundTask,
        seed: int,
        vertices: Tensor,
        x: Tensor,
        adjacency: Adjacency,
        chunk_of: Tensor,
        chunks: int,
        history: History | None,
    ) -> None:
        super().__init__(model, decoder, task, seed, vertices)
        self._layers: list[Layer] = list(model.stack)
        self._x, self._adjacency, self._chunks = x, adjacency, chunks
        self.history = self._recipe = history
        self._all_chunks, self._first = chunks, 1
        row, column = adjacency.coordinates()
        self._reader, self._read = chunk_of[row], chunk_of[column]
        self.buffers: dict[int, Tensor] = {}
        self._fresh: dict[int, Tensor] = {}
        self._filled = False
        self._block: Adjacency | None = None
        self._epoch = 0

    def begin(self, epoch: int) -> None:
        """Draw the order of chunks, and with it which entries are fresh."""
        super().begin(epoch)
        self._epoch = epoch
        history = self.history
        self._block = None
        if history is not None and not history.is_exact(epoch, self._first):
            if history.refreshes(epoch):
                self.refresh()
            self._block = self.block(history.order(self._chunks, self.noise.seed, epoch))

    def block(self, order: list[int]) -> Adjacency:
        """The matrix [rows, 3 · rows] of an order: own chunk, fresh in other chunks, history."""
        place = torch.empty(self._chunks, dtype=torch.int32)
        place[order] = torch.arange(self._chunks, dtype=torch.int32)
        rows = self._adjacency.rows
        section = (self._reader != self._read).int() * (1 + (place[self._read] > place[self._reader]).int())
        indices = self._adjacency.indices + section * rows
        whole = self._adjacency
        return Adjacency(whole.starts, whole.ends, indices, whole.values, 3 * rows)

    def run(self, noise: Noise | None, block: Adjacency | None, *, layers: int | None = None) -> Tensor:
        """The outputs [rows, channels]; with a block, rows of chunks not done yet come from history."""
        shared: dict[str, Tensor] = {}
        self._fresh = {}
        x = self._x
        for number, layer in enumerate(self._layers[:layers]):
            context = Context(None if noise is None else noise.at(layer=number), shared)
            if not layer.spatial:
                x = layer(x, self._adjacency, context)
            else:
                message = layer.prepare(x, context)
                self._fresh[number] = message.detach()
                if block is None:
                    x = layer.combine(message, x, self._adjacency, context)
                else:
                    x = layer.combine(self.read(number, message), x, block, context)
            if layer.writes is not None:
                shared[layer.writes] = x
        return x

    def read(self, number: int, message: Tensor) -> Tensor:
        """The columns that a layer reads: [3 · rows, channels]."""
        if number not in self.buffers:
            self.buffers[number] = torch.zeros_like(message)
        scale = 1.0 if self.history is None else self.history.scale
        return torch.cat([message, scaled_gradient(message, scale), self.buffers[number]])

    def forward(self, action: Action) -> None:
        """All chunks, layer by layer."""
        output = self.run(self.noise, self._block)
        self.loss = self.task.loss(self.decoder, output[None], 0, self.noise)

    def backward(self, action: Action) -> None:
        """Gradients; then what is history from now on."""
        super().backward(action)
        history = self.history
        if history is not None and history.keeps(self._epoch, self._first):
            weight = history.blend if self._filled and self._block is not None else 0.0
            if weight > 0.0:
                self._fresh = {k: torch.lerp(self.buffers[k], v, 1.0 - weight) for k, v in self._fresh.items()}
            self.buffers, self._filled = self._fresh, True

    @torch.no_grad()
    def exact_loss(self, epoch: int) -> float | None:
        """The training loss of exact computation with what the epoch draws."""
        if self.history is None:
            return None
        noise = Noise(self._origin.seed, epoch, vertices=self._origin.vertices)
        return float(self.task.loss(self.decoder, self.run(noise, None)[None], 0, noise))

    @torch.no_grad()
    def refresh(self) -> None:
        """Fill the history from an exact pass without dropout."""
        self.run(None, None)
        self.buffers, self._filled = self._fresh, True

    def tighten(self, level: int, epoch: int) -> str:
        """Another recipe, fewer chunks, or neither."""
        if self._recipe is None:
            return super().tighten(level, epoch)
        self.history, chunks, words = self._recipe.tightened(level, self._all_chunks)
        if 1 < chunks < self._chunks:
            self._reader, self._read = self._reader // MERGED, self._read // MERGED
        self._chunks, self._first = chunks, epoch
        return words

    def state(self) -> dict[str, Tensor]:
        """History."""
        return {str(number): rows for number, rows in self.buffers.items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Put history back."""
        self.buffers = {int(number): rows.clone() for number, rows in tensors.items()}
        self._filled = bool(self.buffers)

    @torch.no_grad()
    def outputs(self, steps: range, *, hidden: bool = False) -> Iterator[tuple[int, Tensor]]:
        """Exact outputs."""
        yield 0, self.run(None, None, layers=-1 if hidden else None)[None]


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.scale, None


def scaled_gradient(x: Tensor, scale: float) -> Tensor:
    """x, whose gradient is multiplied by `scale`."""
    if scale == 1.0:
        return x
    result: Tensor = _ScaledGradient.apply(x, scale)  # type: ignore[no-untyped-call]
    return result
