"""`Sight`: the views of one rank, one for each cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from trisect.noise import Noise
from trisect.shards.shard import Shard
from trisect.views.batch import Batch
from trisect.views.door import Door
from trisect.views.halo import Halo
from trisect.views.history import Boards
from trisect.views.local import Local
from trisect.views.plan import Plan
from trisect.views.recur import Recurrences
from trisect.views.redistribute import RedistributeRows
from trisect.views.running import Running
from trisect.views.spatial import Spatial
from trisect.views.trace import NONE
from trisect.views.view import View

# The rows of a cell: those of a chunk, of the chunks of a batch, or all.
Chunk: TypeAlias = int | tuple[int, ...] | None


class Sight:
    """Makes the views of a rank's cells from its shard.

    Args:
        boards: where chunks read history; None: no pass of this rank does.
        along: how recurrent modules read other steps; None on a static graph.
        batches: returns the spatial side of a batch by its chunks; None: no step is less than an epoch.

    Attributes:
        running: takes statistics of the pass; None: it trains nothing.
    """

    def __init__(
        self,
        plan: Plan,
        shard: Shard,
        door: Door,
        boards: Boards | None,
        along: Recurrences | None,
        batches: Callable[[tuple[int, ...]], Batch] | None = None,
    ) -> None:
        self.plan, self.shard, self.door, self.boards, self.along = plan, shard, door, boards, along
        self._whole: Spatial | None = None
        self._batches = batches
        self.running: Running | None = None

    def enter(self, cell: int, *, again: bool) -> None:
        """Begin with a cell, forward or (`again`) once more; all that crosses from here on is its own."""
        self.door.block = cell
        if self.running is not None:
            self.running.cell = cell
        if self.along is not None:
            self.along.enter(cell, again=again)

    def rows(self, chunk: Chunk) -> slice | Tensor:
        """Return the own rows of a chunk or batch; of all where it is None."""
        if isinstance(chunk, tuple):
            return self._batch(chunk).own
        return slice(0, self.shard.rows) if chunk is None else self.shard.part_graph(0).rows_of(chunk)

    def count(self, chunk: Chunk) -> int:
        """Return how many rows these are."""
        rows = self.rows(chunk)
        return int(rows.stop - rows.start) if isinstance(rows, slice) else rows.numel()

    def _batch(self, chunks: tuple[int, ...]) -> Batch:
        if self._batches is None:
            raise RuntimeError("internal error: a batch is asked for where each step is an epoch")
        return self._batches(chunks)

    def features(self, steps: range, chunk: Chunk) -> Tensor:
        """Return x of a cell: [rows, features], on a timeline [steps, rows, features]."""
        x = self.shard.features(steps)
        if self.plan.timeline:
            if self.along is not None:
                self.along.fixed = x if x.dim() == 2 else None
            return x.expand(len(steps), *x.shape) if x.dim() == 2 else x
        x = x[0] if x.dim() == 3 else x
        return x if chunk is None else x[self.rows(chunk)]

    def view(
        self,
        steps: range,
        chunk: Chunk,
        noise: Noise | None,
        *,
        x: Tensor | None = None,
        boarded: bool = False,
        last: tuple[int, int] | None = None,
        trains: bool | None = None,
    ) -> View:
        """Return the view of a cell.

        Args:
            x: the features, where the cell begins with them.
            boarded: whether rows are read from boards, since chunks read history or the pass becomes history.
            last: the call of `recur` that ends a pass.
            trains: whether norms take the statistics of these rows; None: where there is noise.
        """
        rows = self.rows(chunk)
        if noise is not None and isinstance(rows, Tensor):
            noise = noise.at(vertices=rows if noise.vertices is None else noise.vertices[rows])
        elif noise is not None and isinstance(rows, slice) and rows.stop - rows.start < self.shard.rows:
            noise = noise.rows(rows.start, rows.stop)
        spatial = self._spatial(steps, chunk, boarded=boarded)
        spatial.heed = self.door.heed
        return View(
            spatial,
            self.along,
            steps=steps,
            vertices=self._vertices(chunk),
            noise=noise,
            features=self._kept(x, steps, chunk),
            last=last,
            trains=trains,
            running=self.running,
            relations=self.shard.relations,
        )

    def _vertices(self, chunk: Chunk) -> int:
        """Return how many rows of all parts take part."""
        if not isinstance(chunk, tuple):
            return self.plan.vertices
        return sum(starts[c + 1] - starts[c] for starts in self.plan.chunk_rows for c in chunk)

    def _kept(self, x: Tensor | None, steps: range, chunk: Chunk) -> tuple[Tensor, Tensor] | None:
        """Return the features with their sums over neighbours, where these are kept."""
        if x is None or not self.plan.aggregated or not steps:
            return None
        sums = self.shard.aggregated(steps)
        if sums is None:
            raise RuntimeError("internal error: the plan keeps the first sum over neighbours and the shard has none")
        return x, (sums if self.plan.timeline else sums[0][self.rows(chunk)])

    def _spatial(self, steps: range, chunk: Chunk, *, boarded: bool) -> Spatial:
        if isinstance(chunk, tuple):
            return self._batch(chunk)
        if boarded and self.boards is not None:
            return self.boards.chunk(chunk)
        if not steps:
            return Local([], self.shard.rows)
        if self.plan.timeline:
            return self._cut(steps)
        if self._whole is None:
            self._whole = self._cut(steps)
        return self._whole

    def _cut(self, steps: range) -> Spatial:
        plan, shard = self.plan, self.shard
        if plan.parts == 1:
            return Local(shard.snapshots(steps), shard.rows)
        if plan.across == NONE:
            return Local([], shard.rows, self.door, plan.rows)
        return SPATIAL[plan.across](plan, shard, steps, self.door)


def _halo(plan: Plan, shard: Shard, steps: range, door: Door) -> Halo:
    interior = shard.interior()
    ids = [shard.column_ids(step) for step in steps]
    graphs = [shard.part_graph(step) for step in steps]
    return Halo(graphs, door, interior[0] if len(interior) == 1 else None, plan.rows, ids)


def _redistribute(plan: Plan, shard: Shard, steps: range, door: Door) -> RedistributeRows:
    return RedistributeRows(shard.all_rows(steps), plan.rows, door)


# by `layout.spatial`, what makes the spatial side of some steps where vertices are cut
SPATIAL: dict[str, Callable[[Plan, Shard, range, Door], Spatial]] = {"halo": _halo, "redistribute": _redistribute}
