"""The stale pipeline's computation on one process, layer by layer with all chunks at once.

What a chunk computes in a layer depends on the layer below alone: on fresh rows of its own and of chunks before it in
the epoch's order, and on history for the others. So all chunks of a layer can be done at once with one block whose
columns are (rows, the same rows as other chunks read them, history). The numbers are those of the pipeline (a test
requires it), without the cost of its many small pieces: experiments on accuracy need no schedule.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trisect.comm.mesh import Mesh
from trisect.errors import RunError
from trisect.graph.adjacency import Adjacency
from trisect.layout import Layout
from trisect.layout.history import MERGED, History
from trisect.layout.steps import Batch
from trisect.nn.base import Model
from trisect.noise import Noise
from trisect.ops.memory import empty
from trisect.ops.spmm.sums import aggregate_into
from trisect.pipeline.events import Observer
from trisect.plan.plan import make_plan
from trisect.shards.graph_shard import GraphShard, single_part
from trisect.tasks.base import BoundTask
from trisect.train.program import Program
from trisect.views.ending import Ending
from trisect.views.spatial import Spatial
from trisect.views.view import View


class LayerwiseProgram(Program):
    """A static model on one graph in partition order: the program of one process with epochs of its own.

    Exact outputs and losses are those of the program that it is; an epoch and its history are computed here.

    Args:
        vertices: the user's vertex of each row.
        x: [rows, features].
        chunk_of: int64 [rows], the chunk of each row.
        chunks: how many there are.
        history: None: exact.
    """

    def __init__(
        self,
        model: Model,
        task: BoundTask,
        seed: int,
        vertices: Tensor,
        x: Tensor,
        adjacency: Adjacency,
        chunk_of: Tensor,
        chunks: int,
        history: History | None,
    ) -> None:
        layout = Layout()
        plan = make_plan(model.stack, None, layout, bounds=(0, len(model.stack)), rows=(adjacency.rows,), dtype=x.dtype)
        super().__init__(
            model,
            None,
            task,
            seed,
            mesh=Mesh(layout, 0, x.device),
            plan=plan,
            shard=GraphShard(single_part(adjacency), lambda: x, vertices),
            starts=(0, adjacency.rows),
            order=vertices,
        )
        self._x, self.adjacency, self._chunks = x, adjacency, chunks
        self.history = self._recipe = history
        self._all_chunks, self._first = chunks, 1
        row, column = adjacency.coordinates()
        self._reader, self._read = chunk_of[row], chunk_of[column]
        self._historical: float | None = None
        self._loss_value = float("nan")
        self.fresh: dict[Hashable, Tensor] = {}
        self._buffers: dict[Hashable, Tensor] = {}
        self._filled = False
        self._block: Adjacency | None = None
        self._epoch = 0

    def begin(self, epoch: int, batch: Batch | None = None, *, drops: bool = True) -> None:
        """Draw the order of chunks, and with it which entries are fresh."""
        self.noise = Noise(self._origin.seed, epoch, vertices=self._origin.vertices)
        self._epoch = epoch
        history = self.history
        self._block = None
        if history is not None and not history.is_exact(epoch, self._first):
            if history.refreshes(epoch):
                self._refresh(trains=drops)
            self._block = self._block_in(history.order(self._chunks, self.noise.seed, epoch))

    def _block_in(self, order: list[int]) -> Adjacency:
        """The matrix [rows, 3 · rows] of an order: own chunk, fresh in other chunks, history."""
        turn = torch.empty(self._chunks, dtype=torch.int32)
        turn[order] = torch.arange(self._chunks, dtype=torch.int32)
        rows = self.adjacency.rows
        section = (self._reader != self._read).int() * (1 + (turn[self._read] > turn[self._reader]).int())
        self._historical = float((section == 2).double().mean())
        indices = self.adjacency.indices + section * rows
        full = self.adjacency
        # the columns of a row ascend no more, which a sum does not need
        return Adjacency(full.starts, full.ends, indices, full.values, 3 * rows).vouched()

    def run(self, observer: Observer | None = None, **fields: Any) -> None:
        """Do the epoch that was begun: all chunks layer by layer, gradients, history."""
        loss = self.task.loss(None, self._forward(self.noise, self._block)[None], 0, self.noise)
        self._loss_value = float(loss.detach())
        loss.backward()  # type: ignore[no-untyped-call]
        self._keep()

    def finish(self, *, asked_to_stop: bool = False) -> float:
        """Return the loss of the epoch, once backward is done."""
        return self._loss_value

    def _forward(self, noise: Noise | None, block: Adjacency | None) -> Tensor:
        """The outputs [rows, channels]; with a block, rows of chunks not done yet come from history."""
        self.fresh = {}
        view = View(_Layerwise(self, block), noise=noise)
        out: Tensor = self.model(self._x, view)
        return out

    @property
    def scale(self) -> float:
        """The factor of the gradient of rows read fresh by other chunks."""
        return 1.0 if self.history is None else self.history.scale

    def columns(self, call: Hashable, message: Tensor) -> Tensor:
        """Return the columns that a layer reads, [3 · rows, channels]: own chunk, fresh ones of others, history."""
        if call not in self._buffers:
            self._buffers[call] = torch.zeros_like(message)
        return torch.cat([message, message, self._buffers[call]])

    def _keep(self) -> None:
        """Make what the epoch computed history, where the recipe says so."""
        history = self.history
        if history is not None and history.keeps(self._epoch, self._first):
            weight = history.blend if self._filled and self._block is not None else 0.0
            if weight > 0.0:
                self.fresh = {k: torch.lerp(self._buffers[k], v, 1.0 - weight) for k, v in self.fresh.items()}
            self._buffers, self._filled = self.fresh, True

    @torch.no_grad()
    def _refresh(self, *, trains: bool) -> None:
        """Fill the history from an exact pass without dropout."""
        self._forward(None, None)
        self._buffers, self._filled = self.fresh, True

    def tighten(self, level: int, epoch: int) -> str:
        """Be as strict as `History.tightened` says: another recipe, fewer chunks, or neither."""
        if self._recipe is None:
            return super().tighten(level, epoch)
        self.history, chunks, words = self._recipe.tightened(level, self._all_chunks)
        if 1 < chunks < self._chunks:
            self._reader, self._read = self._reader // MERGED, self._read // MERGED
        self._chunks, self._first = chunks, epoch
        return words

    def staleness(self) -> dict[str, Any] | None:
        """Say which reads were historical in the last stale epoch; how far history was from what replaced it is not
        measured here.
        """
        if self._recipe is None:
            return None
        return {
            "history": self._recipe.parts(),
            "chunks": self._all_chunks,
            "historical_reads": self._historical or 0.0,
            "drift": None,
        }

    def state(self) -> dict[str, Tensor]:
        """Give the history of each layer by its number, as a checkpoint keeps it."""
        return {str(number): rows for number, rows in enumerate(self._buffers.values())}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Put the history of a checkpoint back; the next epoch reads it."""
        self._buffers = {int(number): rows.clone() for number, rows in tensors.items()}
        self._filled = bool(self._buffers)


class _Layerwise(Spatial):
    """All chunks at once: sums over fresh rows, and over history of chunks that come later."""

    steps = 1

    def __init__(self, program: LayerwiseProgram, block: Adjacency | None) -> None:
        self._program, self._block = program, block
        self._matrix = program.adjacency if block is None else block
        self.rows = self._matrix.rows

    @property
    def blocks(self) -> Sequence[Adjacency]:
        """Return the matrix of all columns that are read."""
        return [self._matrix]

    def sum(
        self,
        call: Hashable,
        x: Tensor,
        out: Tensor,
        *,
        alpha: float = 1.0,
        add: Tensor | None = None,
        beta: float = 1.0,
        bias: Tensor | None = None,
        ending: Ending = Ending.NONE,
        trained: bool = False,
    ) -> Any:
        """Write the sums over the columns."""
        self._program.fresh[call] = x[0].detach().clone()
        columns = x[0] if self._block is None else self._program.columns(call, x[0])
        more = None if add is None else add[0]
        aggregate_into(
            out[0],
            columns,
            self._matrix,
            alpha=alpha,
            add=more,
            beta=beta,
            bias=bias,
            relu=ending.plain_relu,
            slope=ending.slope,
            p=ending.p,
            noise=ending.noise(0),
        )

    def sum_gradient(self, call: Hashable, gradient: Tensor, trail: Any, *, alpha: float = 1.0) -> Tensor:
        """Return the gradients of own rows; that of rows read fresh by other chunks is scaled, history gets none."""
        back = empty((self._matrix.columns, gradient.shape[2]), gradient.dtype, gradient.device)
        aggregate_into(back, gradient[0], self._matrix.transpose(), alpha=alpha)
        if self._block is None:
            return back[None]
        return torch.add(back[: self.rows], back[self.rows : 2 * self.rows], alpha=self._program.scale)[None]

    def gather(self, call: Hashable, x: Tensor) -> list[Tensor]:
        """Refuse: the experiment is about layers that sum up."""
        raise RunError("this benchmark trains models whose layers sum up over neighbours; choose one of them.")

    def gather_gradient(self, call: Hashable, gradients: Sequence[Tensor]) -> Tensor:
        """Refuse, as `gather` does."""
        raise RunError("this benchmark trains models whose layers sum up over neighbours; choose one of them.")
