"""One rank's part of a timeline: all vertices, or those of a part; what it reads is made or mapped when asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from trisect.comm.ledger import Ledger
from trisect.graph.adjacency import Adjacency
from trisect.graph.assemble import Edges, assemble
from trisect.graph.build import Normalisation, normalise_block
from trisect.graph.difference import full_bytes
from trisect.graph.smoothing import Smoothing
from trisect.graph.snapshots import Steps
from trisect.graph.timeline import Timeline
from trisect.ops.aggregate import aggregate
from trisect.partition.halo import Share
from trisect.shards.shard import Shard

_HOST = torch.device("cpu")
_WORTH_IT = 8  # interior rows are computed apart where they are at least one in so many


class KeptRuns:
    """Tensors [steps, …] of runs that are asked for again in every epoch, kept as far as the budget reaches."""

    def __init__(self, budget: int) -> None:
        self._left = budget
        self._found: list[tuple[str, range, Tensor]] = []

    def get(self, name: str, steps: range, make: Callable[[], Tensor]) -> Tensor:
        """The tensor of these steps, which may be a part of a run that is kept."""
        for known, run, tensor in self._found:
            if known == name and run.start <= steps.start and steps.stop <= run.stop:
                return tensor[steps.start - run.start : steps.stop - run.start]
        made = make()
        if made.nbytes <= self._left:
            self._left -= made.nbytes
            self._found.append((name, steps, made))
        return made


def brought(x: Tensor, steps: range, dtype: torch.dtype, device: torch.device, kept: KeptRuns) -> Tensor:
    """Give features of some steps on a device: [rows, features], or [steps, rows, features] where x has steps."""
    fixed = x.dim() == 2
    if x.device == device:
        return (x if fixed else x[steps.start : steps.stop]).to(dtype)
    if fixed:
        return kept.get("fixed", range(1), lambda: x[None].to(device, dtype))[0]
    return kept.get("x", steps, lambda: x[steps.start : steps.stop].to(device, dtype))


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

    def features(self, steps: range) -> Tensor:
        """Those of the data; degrees where they have none."""
        return self._own(self._all_features(steps))

    def _all_features(self, steps: range) -> Tensor:
        x = self.timeline.x
        if x is None:
            return self.kept.get("x", steps, lambda: self._degrees(steps))
        return brought(x, steps, self.dtype, self.device, self.kept)

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

    def whole(self, steps: range) -> Sequence[Adjacency]:
        """Give the same: rows may be redistributed by columns."""
        return self.snapshots(steps)

    def aggregated(self, steps: range) -> Tensor | None:
        """Made once a run."""
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


@dataclass(frozen=True, eq=False)
class Events:
    """Events of a part, sorted by step, as they lie on disk.

    Attributes:
        src: int32, the position of the source among all vertices.
        dst: int32, the row of the target in the part.
        offsets: int64 [all steps + 1].
    """

    src: Tensor
    dst: Tensor
    weight: Tensor | None
    offsets: Tensor


@dataclass(frozen=True, eq=False)
class Reads:
    """Which own rows other parts read of the raw events of each step: int32 rows, int16 ways, sorted by step."""

    row: Tensor
    part_index: Tensor
    offsets: Tensor


@dataclass(frozen=True, eq=False)
class TimelinePart(Shard):
    """The rows of one part: each snapshot is own rows × (own rows, then the halo rows of that step).

    Attributes:
        way: which part; part w has the positions starts[w] .. starts[w+1]-1.
        order: the user's vertex at each position.
        x: float [rows, features] or [all steps, rows, features].
        known: Â·x of the first layer [all steps, rows, features], or None.
        sums: float [all steps, vertices], the row sums that symmetric normalisation divides by, or None.
        first: which raw step is step 0.
        budget: bytes of snapshots that are kept between epochs.
        symmetric: whether every snapshot's matrix is its own transpose.
        ledger: counts what is read to make the others.
        device: where blocks, lists of rows and features are read; they are made on the host.
        kept: features that were brought to the device.
    """

    rows: int
    vertices: Tensor | None
    part_index: int
    starts: tuple[int, ...]
    order: Tensor
    events: Events
    reads: Reads
    smoothing: Smoothing
    normalisation: Normalisation
    self_loops: bool
    x: Tensor
    known: Tensor | None
    sums: Tensor | None
    dtype: torch.dtype
    ledger: Ledger
    first: int = 0
    budget: int = 0
    symmetric: bool = False
    device: torch.device = _HOST
    kept: KeptRuns = field(default_factory=lambda: KeptRuns(0))
    _ids: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _halos: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _blocks: dict[int, Adjacency] = field(default_factory=dict, repr=False)
    _spent: list[int] = field(default_factory=lambda: [0], repr=False)
    _shares: dict[int, Share] = field(default_factory=dict, repr=False)
    _splits: list[int] = field(default_factory=list, repr=False)

    def features(self, steps: range) -> Tensor:
        """Of the own rows."""
        return brought(self.x, steps, self.dtype, self.device, self.kept)

    def aggregated(self, steps: range) -> Tensor | None:
        """As it was made when the data were cut, since it reads features of other parts."""
        if self.known is None:
            return None
        known = self.known[steps.start : steps.stop]
        if self.known.device == self.device:
            return known.to(self.dtype)
        return self.kept.get("aggregated", steps, lambda: known.to(self.device, self.dtype))

    def snapshots(self, steps: range) -> Sequence[Adjacency]:
        """Blocks."""
        return Steps(steps, self._block)

    def share(self, step: int) -> Share:
        """Give the block of a step with the rows that cross, from the events of its window, on both sides."""
        share = self._shares.get(step)
        if share is None:
            positions = self._halo_positions(step)
            bounds = torch.searchsorted(positions, torch.tensor(self.starts)).tolist()
            start, stop = self._window(self.reads.offsets, step)
            row, reader = self.reads.row[start:stop].long(), self.reads.part_index[start:stop]
            send = []
            for other in range(len(self.starts) - 1):
                asked = torch.zeros(self.rows, dtype=torch.bool)
                asked[row[reader == other]] = True
                send.append((torch.nonzero(asked)[:, 0].to(self.device),))
            receive = tuple(((low, high),) for low, high in pairwise(bounds))
            share = Share(
                self.part_index, self._block(step), positions, receive, tuple(send), (0, self.rows), self.symmetric
            )
            if step in self._blocks:
                self._shares[step] = share
        return share

    def interior(self) -> tuple[int, ...]:
        """Give the row from which on no row takes part in an exchange at any step."""
        if not self._splits:
            outer = torch.zeros(self.rows, dtype=torch.bool)
            outer[self.reads.row.long()] = True
            low, high = self.starts[self.part_index], self.starts[self.part_index + 1]
            remote = (self.events.src < low) | (self.events.src >= high)
            outer[self.events.dst[remote].long()] = True
            rows = torch.nonzero(outer)
            first = int(rows[-1]) + 1 if rows.numel() else 0
            self._splits.append(first if (self.rows - first) * _WORTH_IT >= self.rows else self.rows)
        return tuple(self._splits)

    def column_ids(self, step: int) -> Tensor | None:
        """Give the user's ids of own and halo rows."""
        ids = self._ids.get(step)
        if ids is None:
            own = torch.arange(*self.starts[self.part_index : self.part_index + 2])
            ids = self.order[torch.cat([own, self._halo_positions(step)])].to(self.device)
            if step in self._blocks:
                self._ids[step] = ids
        return ids

    def _window(self, offsets: Tensor, step: int) -> tuple[int, int]:
        now = self.first + step
        return int(offsets[self.smoothing.first_step(now)]), int(offsets[now + 1])

    def _halo_positions(self, step: int) -> Tensor:
        """The positions of the step's halo rows, int64 ascending, therefore grouped by owner."""
        found = self._halos.get(step)
        if found is None:
            start, stop = self._window(self.events.offsets, step)
            asked = torch.zeros(self.starts[-1], dtype=torch.bool)
            asked[self.events.src[start:stop].long()] = True
            asked[self.starts[self.part_index] : self.starts[self.part_index + 1]] = False
            found = self._halos[step] = torch.nonzero(asked)[:, 0]
        return found

    def _block(self, step: int) -> Adjacency:
        found = self._blocks.get(step)
        if found is None:
            found = self._make_block(step)
            size = 2 * found.memory_bytes
            if self._spent[0] + size <= self.budget:
                self._spent[0] += size
                self._blocks[step] = found
        return found

    def _make_block(self, step: int) -> Adjacency:
        now = self.first + step
        earliest = self.smoothing.first_step(now)
        start, stop = self._window(self.events.offsets, step)
        halo = self._halo_positions(step)
        column = torch.empty(self.starts[-1], dtype=torch.int32)
        column[self.starts[self.part_index] : self.starts[self.part_index + 1]] = torch.arange(
            self.rows, dtype=torch.int32
        )
        column[halo] = torch.arange(self.rows, self.rows + halo.numel(), dtype=torch.int32)
        coefficients = self.smoothing.coefficients(now)
        edges = Edges(
            column[self.events.src[start:stop].long()],
            self.events.dst[start:stop],
            None if self.events.weight is None else self.events.weight[start:stop],
            segments=None if coefficients is None else self.events.offsets[earliest : now + 2] - start,
            coefficients=coefficients,
        )
        columns = self.rows + halo.numel()
        values = torch.float64 if self.dtype == torch.float64 else torch.float32
        matrix = Adjacency.from_csr(*assemble(edges, self.rows, columns, values), columns)
        if matrix.values is None and values != torch.float32:
            matrix = matrix.with_values(torch.ones(matrix.entries, dtype=values))
        sums: Any = None
        if self.sums is not None:
            mine = self.sums[step, self.starts[self.part_index] : self.starts[self.part_index + 1]]
            sums = torch.cat([mine, self.sums[step].index_select(0, halo)])
        prepared = normalise_block(matrix, self.normalisation, self.self_loops, sums)
        sent = (stop - start) * (8 if edges.weight is None else 12) + (0 if sums is None else sums.nbytes)
        moved = prepared.to(self.device)
        # a device gets the block as the host made it
        self.ledger.add_transfer(full_bytes(prepared), sent if moved is prepared else moved.memory_bytes)
        return moved
