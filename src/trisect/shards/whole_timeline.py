"""All vertices of a timeline as one shard, in memory or mapped; what it reads is made when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trisect.comm.ledger import Ledger
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import MatrixForm
from trisect.graph.timeline.snapshots import Steps
from trisect.graph.timeline.timeline import Timeline
from trisect.ops.spmm.aggregate import aggregate
from trisect.shards.kept_runs import KeptRuns, features_of
from trisect.shards.shard import Shard
from trisect.shards.stream import SnapshotStream

_HOST = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class WholeTimeline(Shard):
    """All vertices; snapshots and features of the steps that are asked for, no others.

    Attributes:
        timeline: in memory, or mapped from disk.
        matrices: the prepared snapshot of every step.
        dtype: of features.
        aggregates: whether Â·x of the first layer is given.
        first_row: where the own rows begin among all vertices; all of them are own unless rows are redistributed by
            columns.
        device: where all of it is read; what lies elsewhere is brought there, and kept as far as the budget reaches.
    """

    rows: int
    vertices: Tensor | None
    timeline: Timeline
    matrices: Sequence[Adjacency]
    dtype: torch.dtype
    aggregates: bool
    kept: KeptRuns
    first_row: int = 0
    device: torch.device = _HOST
    relations: tuple[str, ...] = ()

    def features(self, steps: range) -> Tensor:
        """Those of the data; degrees where they have none."""
        return self._own(self._all_features(steps))

    def _all_features(self, steps: range) -> Tensor:
        x = self.timeline.x
        if x is None:
            return self.kept.get("x", steps, lambda: self._degrees(steps))
        return features_of(x, steps, self.dtype, self.device, self.kept)

    def _own(self, frames: Tensor) -> Tensor:
        """The own rows of [steps, vertices, …] or [vertices, …]."""
        if self.rows == self.timeline.vertices:
            return frames
        own = slice(self.first_row, self.first_row + self.rows)
        return frames[own] if frames.dim() == 2 else frames[:, own]

    def _degrees(self, steps: range) -> Tensor:
        if not steps:
            return torch.zeros(0, self.timeline.vertices, 2, dtype=self.dtype, device=self.device)
        return torch.stack([self.timeline.degree_features(step) for step in steps]).to(self.device, self.dtype)

    def snapshots(self, steps: range) -> Sequence[Adjacency]:
        """Give the matrices of whole snapshots; all of them as they are kept, where all are asked for."""
        return self.matrices if len(steps) == len(self.matrices) else Steps(steps, self.matrices.__getitem__)

    def all_rows(self, steps: range) -> Sequence[Adjacency]:
        """Give the same: rows may be redistributed by columns."""
        return self.snapshots(steps)

    def aggregated(self, steps: range) -> Tensor | None:
        """Give Â·x, which is made once a run of steps and kept within the budget."""
        if not self.aggregates:
            return None
        return self.kept.get("aggregated", steps, lambda: self._aggregate(steps))

    @torch.no_grad()
    def _aggregate(self, steps: range) -> Tensor:
        x, matrices = self._all_features(steps), self.snapshots(steps)
        if not steps:
            return x.new_zeros(0, self.rows, x.shape[-1])
        frames = [x] * len(steps) if x.dim() == 2 else x
        return torch.stack([self._own(aggregate(frames[t], matrices[t])) for t in range(len(steps))])


def whole_timeline(
    timeline: Timeline,
    form: MatrixForm,
    dtype: torch.dtype,
    budget: int,
    ledger: Ledger,
    *,
    aggregated: bool,
    rows: slice | None = None,
    device: torch.device | None = None,
) -> WholeTimeline:
    """Give all vertices of a timeline, in memory or mapped; or an interval of the rows, with whole snapshots."""
    values = torch.float64 if dtype == torch.float64 else torch.float32
    device = timeline.device if device is None else device
    matrices = SnapshotStream(
        timeline,
        form.normalisation,
        self_loops=form.self_loops,
        dtype=values,
        device=device,
        ledger=ledger,
        keep_bytes=budget,
    )
    own = slice(0, timeline.vertices) if rows is None else rows
    vertices = timeline.order
    if own.stop - own.start < timeline.vertices:
        vertices = torch.arange(own.start, own.stop) if vertices is None else vertices[own]
    return WholeTimeline(
        rows=own.stop - own.start,
        vertices=None if vertices is None else vertices.to(device),
        timeline=timeline,
        matrices=matrices,
        dtype=dtype,
        aggregates=aggregated,
        kept=KeptRuns(budget),
        first_row=own.start,
        device=device,
        relations=timeline.relations,
    )
