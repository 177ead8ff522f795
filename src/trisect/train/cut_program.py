"""One rank's program on a static graph that is cut by vertex and layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from trisect.nn.base import Layer, Model
from trisect.partition.halo import Share
from trisect.runtime.exchange import Exchange
from trisect.runtime.executor import Executor, Handler
from trisect.runtime.history import History
from trisect.runtime.mesh import Mesh
from trisect.runtime.static import StaticRank
from trisect.runtime.volume import static_volume
from trisect.schedule.action import Action, Kind
from trisect.schedule.pipeline import forward_only, pipeline
from trisect.schedule.validate import validate
from trisect.train.tasks.base import BoundTask
from trisect.train.together import RankProgram


class CutProgram(RankProgram):
    """A stage of a static model over a part of one graph, and the exchanges with the other ranks.

    Args:
        model: the whole model's layers; those of other stages may lie on the meta device.
        task: bound to the labels of all vertices, in partition order.
        bounds: where stages begin (see `StaticRank`).
        share, x: this rank's part.
        positions: of the part's rows among all vertices.
        order: the user's vertex at each position.
        remote: rows that each part reads from others.
        history: None: exact, all chunks at once.
    """

    def __init__(
        self,
        model: Model,
        decoder: nn.Module | None,
        task: BoundTask,
        seed: int,
        *,
        mesh: Mesh,
        bounds: Sequence[int],
        share: Share,
        x: Tensor,
        positions: slice,
        order: Tensor,
        remote: Sequence[int],
        history: History | None,
    ) -> None:
        super().__init__(model, decoder, task.restrict(_range(positions)), seed, order[positions])
        self.mesh, self.history = mesh, history
        self._layers: list[Layer] = list(model.stack)
        self._layout = mesh.layout if history is not None else replace(mesh.layout, chunks=1)
        self._exact_layout = replace(mesh.layout, chunks=1)
        self._spatial = [sum(layer.spatial for layer in self._layers[a:b]) for a, b in pairwise(bounds)]
        self._exchange = Exchange(mesh, self.ledger, mesh.layout.wire)
        self._whole = history is None
        self._epoch = 0
        self._actions: Sequence[Action] = ()
        self._chunk_tasks = {
            (a, b): task.restrict(_range(slice(positions.start + a, positions.start + b)))
            for a, b in pairwise(share.chunk_rows)
        }
        self._rank = StaticRank(
            self._layers,
            bounds,
            share,
            x,
            order[positions],
            self._exchange,
            self._chunk_loss,
            scale=1.0 if history is None else history.scale,
            fixed=history is not None and history.period > 1,
            dtype=x.dtype,
            extra=[] if decoder is None else list(decoder.parameters()),
        )
        sizes = [_stage_bytes(self._layers[a:b]) for a, b in pairwise(bounds)]
        if decoder is not None:
            sizes[-1] += sum(p.numel() * p.element_size() for p in decoder.parameters())
        volume = static_volume(self._layers, bounds, self._layout, order.numel(), remote, sizes, x.dtype)
        self.formula_bytes = sum(volume.values())
        validate(pipeline(self._layout, self._spatial))

    def begin(self, epoch: int) -> None:
        """Choose the order of chunks and post the receives."""
        super().begin(epoch)
        self._epoch = epoch
        self._whole = self.history is None or self.history.is_exact(epoch)
        layout = self._exact_layout if self._whole else self._layout
        order = None
        if not self._whole and self.history is not None:
            order = self.history.order(layout.chunks, self.noise.seed, epoch)
        self._actions = pipeline(layout, self._spatial, order).ranks[self.mesh.rank]
        self._rank.begin(self.noise, self._actions, whole=self._whole, train=True)

    def actions(self) -> Sequence[Action]:
        """The pipeline's, in this epoch's order of chunks."""
        return self._actions

    def handlers(self) -> dict[Kind, Handler]:
        """Those of the rank."""
        return dict(self._rank.handlers())

    def forward(self, action: Action) -> None:
        """A chunk, or a segment of it."""
        self._rank.handlers()[Kind.FORWARD](action)

    def total_loss(self) -> float:
        """The sum over chunks and ranks; all messages have left by then."""
        own = self._rank.finish()
        total = float(self._exchange.sum_everywhere(own.double()))
        if self.history is not None and self.history.period > 1 and self._epoch % self.history.period == 0:
            self._rank.stage.keep()
        return total

    def state(self) -> dict[str, Tensor]:
        """History, which belongs to this rank alone."""
        if self.history is None:
            return {}
        return {f"rank-{self.mesh.rank}.{name}": value for name, value in self._rank.stage.history().items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Put history back."""
        prefix = f"rank-{self.mesh.rank}."
        self._rank.stage.restore({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})

    @torch.no_grad()
    def outputs(self, steps: range, *, hidden: bool = False) -> Iterator[tuple[int, Tensor]]:
        """Exact outputs of this rank's rows; only the last stage has any."""
        actions = forward_only(self._exact_layout, self._spatial).ranks[self.mesh.rank]
        self._rank.begin(None, actions, whole=True, train=False)
        Executor({**self._rank.handlers(), Kind.STEP: lambda action: None}).run(actions)
        self._rank.finish()
        output, _ = self._rank.stage.output(0)
        self._rank.stage.visits.clear()
        if self._rank.is_last:
            yield 0, output.detach()[None]

    def _chunk_loss(self, output: Tensor, rows: slice) -> Tensor:
        task = self.task if self._whole else self._chunk_tasks[rows.start, rows.stop]
        return task.loss(self.decoder, output[None], 0, self.noise)


def stage_bounds(costs: Sequence[float], stages: int) -> list[int]:
    """Where stages begin, so that the most expensive stage is as cheap as it can be (contiguous, none empty)."""
    count = len(costs)
    prefix = [0.0]
    for cost in costs:
        prefix.append(prefix[-1] + cost)
    # best[s][i]: the least possible maximum when the first i layers form s stages
    best = [[float("inf")] * (count + 1) for _ in range(stages + 1)]
    cut = [[0] * (count + 1) for _ in range(stages + 1)]
    best[0][0] = 0.0
    for s in range(1, stages + 1):
        for i in range(s, count + 1):
            for j in range(s - 1, i):
                worst = max(best[s - 1][j], prefix[i] - prefix[j])
                if worst < best[s][i]:
                    best[s][i], cut[s][i] = worst, j
    bounds = [count]
    for s in range(stages, 0, -1):
        bounds.append(cut[s][bounds[-1]])
    return bounds[::-1]


def _range(rows: slice) -> Tensor:
    return torch.arange(rows.start, rows.stop)


def _stage_bytes(layers: Sequence[Layer]) -> int:
    return sum(p.numel() * p.element_size() for layer in layers for p in layer.parameters() if p.requires_grad)
