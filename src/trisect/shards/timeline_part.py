"""`TimelinePart`: the rows of one part of a timeline; what it reads is made or mapped when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.graph.timeline.snapshots import Steps
from trisect.partition.halo import PartGraph
from trisect.shards.device_stream import DeviceStream
from trisect.shards.kept_runs import KeptRuns, features_of
from trisect.shards.part_events import PartEvents, PartReads
from trisect.shards.shard import Shard

_WORTH_IT = 8  # interior rows are computed apart where they are at least one in so many


@dataclass(frozen=True, eq=False)
class TimelinePart(Shard):
    """The rows of one part: each snapshot is own rows × (own rows, then the halo rows of that step).

    Attributes:
        order: the user's vertex at each position.
        events: into the own rows.
        reads: which own rows the other parts read.
        blocks: the own rows of every snapshot.
        x: float [rows, features] or [all steps, rows, features].
        aggregated_x: Â·x of the first layer [all steps, rows, features], or None.
        symmetric: whether every snapshot's matrix is its own transpose.
        device: where blocks, lists of rows and features are read.
        kept: features that were brought to the device.
    """

    rows: int
    vertices: Tensor | None
    order: Tensor
    events: PartEvents
    reads: PartReads
    blocks: DeviceStream
    x: Tensor
    aggregated_x: Tensor | None
    dtype: torch.dtype
    symmetric: bool
    device: torch.device
    kept: KeptRuns
    relations: tuple[str, ...] = ()
    _ids: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _part_graphs: dict[int, PartGraph] = field(default_factory=dict, repr=False)
    _splits: list[int] = field(default_factory=list, repr=False)

    def features(self, steps: range) -> Tensor:
        """Give x of the own rows."""
        return features_of(self.x, steps, self.dtype, self.device, self.kept)

    def aggregated(self, steps: range) -> Tensor | None:
        """Give Â·x as it was made when the data were cut, since it reads features of other parts."""
        if self.aggregated_x is None:
            return None
        frames = self.aggregated_x[steps.start : steps.stop]
        if frames.device == self.device:
            return frames.to(self.dtype)
        return self.kept.get("aggregated", steps, lambda: frames.to(self.device, self.dtype))

    def snapshots(self, steps: range) -> Sequence[Adjacency]:
        """Give the blocks of these steps."""
        return Steps(steps, self.blocks.at)

    def part_graph(self, step: int) -> PartGraph:
        """Give the block of a step with the rows that cross, from the events of its window, on both sides."""
        part_graph = self._part_graphs.get(step)
        if part_graph is None:
            positions = self.events.halo_positions(step)
            bounds = torch.searchsorted(positions, torch.tensor(self.events.starts)).tolist()
            receive = tuple(((low, high),) for low, high in pairwise(bounds))
            part_graph = PartGraph(
                *(self.events.part_index, self.blocks.at(step), positions, receive),
                *(self._sent_rows(step), (0, self.rows), self.symmetric),
            )
            if self.blocks.keeps(step):
                self._part_graphs[step] = part_graph
        return part_graph

    def _sent_rows(self, step: int) -> tuple[tuple[Tensor], ...]:
        """For each other part, list the own rows that it reads at a step, ascending."""
        stretch = self.events.window(step, self.reads.offsets)
        row, reader = self.reads.row[stretch].long(), self.reads.part_index[stretch]
        lists = []
        for other in range(len(self.events.starts) - 1):
            asked = torch.zeros(self.rows, dtype=torch.bool)
            asked[row[reader == other]] = True
            lists.append((torch.nonzero(asked)[:, 0].to(self.device),))
        return tuple(lists)

    def interior(self) -> tuple[int, ...]:
        """Give the row from which on no row takes part in an exchange at any step."""
        if not self._splits:
            outer = torch.zeros(self.rows, dtype=torch.bool)
            outer[self.reads.row.long()] = True
            outer[self.events.dst[self.events.src >= self.rows].long()] = True
            rows = torch.nonzero(outer)
            first = int(rows[-1]) + 1 if rows.numel() else 0
            self._splits.append(first if (self.rows - first) * _WORTH_IT >= self.rows else self.rows)
        return tuple(self._splits)

    def column_ids(self, step: int) -> Tensor | None:
        """Give the user's ids of own and halo rows."""
        ids = self._ids.get(step)
        if ids is None:
            own = torch.arange(self.events.own.start, self.events.own.stop)
            ids = self.order[torch.cat([own, self.events.halo_positions(step)])].to(self.device)
            if self.blocks.keeps(step):
                self._ids[step] = ids
        return ids
