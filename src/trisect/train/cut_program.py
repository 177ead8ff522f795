"""One rank's program on a static graph that is cut by vertex and layer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from trisect.layout import Layout
from trisect.nn.base import Layer, Model
from trisect.noise import Noise
from trisect.partition.halo import Share, merge_chunks
from trisect.partition.partition import order_digest
from trisect.runtime.exchange import Exchange
from trisect.runtime.executor import Executor, Handler
from trisect.runtime.history import MERGED, History
from trisect.runtime.mesh import Mesh
from trisect.runtime.staleness import DriftMeter, historical_reads
from trisect.runtime.static import StaticRank, exchanges_of
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
        share: this rank's part.
        features: gives the part's rows of x; called by the first stage alone, and twice: what is read once, before
            the first epoch, is not held on to, so that rows that lie in a file and are not read again take no memory.
        dtype: of all rows.
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
        features: Callable[[], Tensor],
        dtype: torch.dtype,
        positions: slice,
        order: Tensor,
        remote: Sequence[int],
        history: History | None,
    ) -> None:
        super().__init__(model, decoder, task.restrict(_range(positions)), seed, order[positions])
        self.mesh, self.history = mesh, history
        self._recipe, self._share, self._bounds = history, share, list(bounds)
        self._features, self._dtype = features, dtype
        self._layers: list[Layer] = list(model.stack)
        self._layout = mesh.layout if history is not None else replace(mesh.layout, chunks=1)
        self._exact_layout = replace(mesh.layout, chunks=1)
        self._spatial = exchanges_of(self._layers, bounds)
        self._exchange = Exchange(mesh, self.ledger, mesh.layout.wire)
        self._whole = history is None
        self._epoch = 0
        self._first: int | None = None
        self._actions: Sequence[Action] = ()
        self._task, self._positions, self._vertices = task, positions, order[positions]
        self._order: list[int] = []
        self._drift = DriftMeter()
        self._halo_vertices = order[share.halo]
        self._history_place = history_place(mesh.layout, order)
        self._row_tasks: dict[tuple[int, int], BoundTask] = {}
        self._rank = self._make_rank(share)
        sizes = [_stage_bytes(self._layers[a:b]) for a, b in pairwise(bounds)]
        if decoder is not None:
            sizes[-1] += sum(p.numel() * p.element_size() for p in decoder.parameters())
        volume = static_volume(self._layers, bounds, self._layout, order.numel(), remote, sizes, self._dtype)
        self.formula_bytes = sum(volume.values())
        validate(pipeline(self._layout, self._spatial))

    def _make_rank(self, share: Share) -> StaticRank:
        history, first = self.history, self.mesh.stage == 0
        rank = StaticRank(
            self._layers,
            self._bounds,
            share,
            self._features() if first else None,
            self._vertices,
            self._exchange,
            self._chunk_loss,
            scale=1.0 if history is None else history.scale,
            stale=history is not None,
            apart=history is not None and history.apart,
            dtype=self._dtype,
            extra=[] if self.decoder is None else list(self.decoder.parameters()),
            halo_vertices=self._halo_vertices,
            drift=self._drift,
        )
        if first:
            rank.features = None  # what was read is free before it is read again
            rank.features = self._features()
        return rank

    def _task_of(self, rows: slice) -> BoundTask:
        """The task of some rows of the part."""
        place = (rows.start, rows.stop)
        if place not in self._row_tasks:
            first = self._positions.start
            self._row_tasks[place] = self._task.restrict(_range(slice(first + rows.start, first + rows.stop)))
        return self._row_tasks[place]

    def begin(self, epoch: int) -> None:
        """Choose the order of chunks and post the receives."""
        super().begin(epoch)
        history, self._epoch = self.history, epoch
        if self._first is None:
            self._first = epoch
        self._whole = history is None or history.is_exact(epoch, self._first)
        layout = self._exact_layout if self._whole else self._layout
        order = None
        if not self._whole and history is not None:
            if history.refreshes(epoch):
                self._refresh()
            order = self._order = history.order(layout.chunks, self.noise.seed, epoch)
        self._actions = pipeline(layout, self._spatial, order).ranks[self.mesh.rank]
        keep: float | None = None
        if history is not None and history.keeps(epoch, self._first):
            keep = 0.0 if self._whole else history.blend
        self._rank.begin(self.noise, self._actions, whole=self._whole, train=True, keep=keep)

    def actions(self) -> Sequence[Action]:
        """The pipeline's, in this epoch's order of chunks."""
        return self._actions

    def handlers(self) -> dict[Kind, Handler]:
        """Those of the rank, whichever it is by then."""
        return dict.fromkeys(self._rank.handlers(), self._handle)

    def _handle(self, action: Action) -> None:
        self._rank.handlers()[action.kind](action)

    def forward(self, action: Action) -> None:
        """A chunk, or a segment of it."""
        self._rank.handlers()[Kind.FORWARD](action)

    def total_loss(self) -> float:
        """The sum over chunks and ranks; all messages have left by then."""
        own = self._rank.finish()
        return float(self._exchange.sum_everywhere(own.double()))

    def state(self) -> dict[str, Tensor]:
        """History, which belongs to this rank and this layout alone."""
        if self.history is None:
            return {}
        return {self._prefix() + name: value for name, value in self._rank.stage.messages.history().items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Put history back. That of another layout or cut is of no use: then it starts anew with the next epoch."""
        prefix = self._prefix()
        found = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        self._rank.stage.messages.restore(found)
        # a stage that sends no messages has no history of its own, and goes on with those that have
        ours = any(name.startswith(self._history_place) for name in tensors)
        self._first = 1 if ours else None
        if tensors and not ours and self.history is not None and self.mesh.rank == 0:
            of = next(iter(tensors)).partition(".")[0]
            warnings.warn(
                f"The checkpoint's history is that of another layout or cut ({of}); it starts anew in the next epoch.",
                stacklevel=2,
            )

    def _prefix(self) -> str:
        return f"{self._history_place}rank-{self.mesh.rank}."

    @torch.no_grad()
    def outputs(self, steps: range, *, hidden: bool = False) -> Iterator[tuple[int, Tensor]]:
        """Exact outputs of this rank's rows; only the last stage has any."""
        output = self._exact_pass(None)
        if self._rank.is_last:
            yield 0, output[None]

    @torch.no_grad()
    def exact_loss(self, epoch: int) -> float | None:
        """The training loss of an exact pass with the epoch's dropout masks. History stays as it is."""
        if self.history is None:
            return None
        noise = Noise(self._origin.seed, epoch, vertices=self._origin.vertices)
        output = self._exact_pass(noise)
        own = self.task.loss(self.decoder, output[None], 0, noise) if self._rank.is_last else output.new_zeros(())
        return self.total(float(own))

    def _exact_pass(self, noise: Noise | None, *, aside: bool = True) -> Tensor:
        actions = forward_only(self._exact_layout, self._spatial).ranks[self.mesh.rank]
        self._rank.begin(noise, actions, whole=True, train=False, aside=aside)
        Executor({**self._rank.handlers(), Kind.STEP: lambda action: None}).run(actions)
        self._rank.finish()
        found = torch.zeros(0, dtype=self._dtype, device=self.mesh.device)
        if self._rank.is_last:
            found = self._rank.stage.output(0)[0].detach()
        self._rank.stage.visits.clear()
        return found

    @torch.no_grad()
    def _refresh(self) -> None:
        """Fill the history from an exact pass."""
        self._exact_pass(None, aside=False)

    def tighten(self, level: int, epoch: int) -> str:
        """Another recipe, fewer chunks, or neither; history starts anew."""
        if self._recipe is None:
            return super().tighten(level, epoch)
        self.history, chunks, words = self._recipe.tightened(level, self.mesh.layout.chunks)
        share = self._share
        if 1 < chunks < self.mesh.layout.chunks:
            share = merge_chunks(share, MERGED)
        self._layout = replace(self.mesh.layout, chunks=chunks)
        self._first = epoch
        self._rank = self._make_rank(share)
        return words

    def staleness(self) -> dict[str, Any] | None:
        """Which reads were historical in the last stale epoch, and how far history was from what replaced it."""
        if self._recipe is None:
            return None
        historical, reads = historical_reads(self._rank.stage.share, self._order)
        drift = self._drift
        layers = self.total(float(drift.layers))
        return {
            "history": self._recipe.parts(),
            "chunks": self.mesh.layout.chunks,
            "historical_reads": self.total(float(historical)) / max(1.0, self.total(float(reads))),
            "drift": self.total(drift.total) / layers if layers else None,
        }

    def _chunk_loss(self, output: Tensor, rows: slice) -> Tensor:
        return self._task_of(rows).loss(self.decoder, output[None], 0, self.noise)


def history_place(layout: Layout, order: Tensor) -> str:
    """How names of history begin: with all that decides which rows it has, and where."""
    return f"layer={layout.layer},vertex={layout.vertex},chunks={layout.chunks},order={order_digest(order)}."


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
