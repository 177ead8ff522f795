"""One rank's part of a timeline: all vertices, or those of a part; what it reads is made or mapped when asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.graph.assemble import Edges, assemble
from trisect.graph.build import Normalisation, normalise_block
from trisect.graph.difference import full_bytes
from trisect.graph.smoothing import Smoothing
from trisect.graph.snapshots import Steps
from trisect.graph.timeline import Timeline
from trisect.nn.dynamic import first_aggregation
from trisect.runtime.ledger import Ledger
from trisect.runtime.timeline_part import StepHalo, TimelinePart


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


@dataclass(frozen=True, eq=False)
class WholePart(TimelinePart):
    """All vertices; snapshots and features of the steps that are asked for, no others.

    Attributes:
        timeline: in memory, or mapped from disk.
        matrices: the prepared snapshot of every step.
        dtype: of features.
        aggregates: whether Â·x of the first layer is given.
    """

    timeline: Timeline
    matrices: Sequence[Adjacency]
    dtype: torch.dtype
    aggregates: bool
    kept: KeptRuns

    def features(self, steps: range) -> Tensor:
        """Those of the data; degrees where they have none."""
        x = self.timeline.x
        if x is None:
            return self.kept.get("x", steps, lambda: self._degrees(steps))
        return (x if x.dim() == 2 else x[steps.start : steps.stop]).to(self.dtype)

    def _degrees(self, steps: range) -> Tensor:
        if not steps:
            return torch.zeros(0, self.rows, 2, dtype=self.dtype)
        return torch.stack([self.timeline.degree_features(step) for step in steps]).to(self.dtype)

    def snapshots(self, steps: range) -> Sequence[Adjacency]:
        """Of whole graphs."""
        return Steps(steps, self.matrices.__getitem__)

    def aggregated(self, steps: range) -> Tensor | None:
        """Made once a run."""
        if not self.aggregates:
            return None
        return self.kept.get("aggregated", steps, lambda: self._aggregate(steps))

    def _aggregate(self, steps: range) -> Tensor:
        x = self.features(steps)
        return first_aggregation(x, self.snapshots(steps)) if steps else x.new_zeros(0, *x.shape[-2:])


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
    way: Tensor
    offsets: Tensor


@dataclass(frozen=True, eq=False)
class CutPart(TimelinePart):
    """The rows of one part: each snapshot is own rows × (own rows, then the halo rows of that step).

    Attributes:
        way: which part; part w has the positions starts[w] .. starts[w+1]-1.
        order: the user's vertex at each position.
        x: float [rows, features] or [all steps, rows, features].
        known: Â·x of the first layer [all steps, rows, features], or None.
        sums: float [all steps, vertices], the row sums that symmetric normalisation divides by, or None.
        first: which raw step is step 0.
        budget: bytes of snapshots that are kept between epochs.
        ledger: counts what is read to make the others.
    """

    way: int
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
    _halos: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _blocks: dict[int, Adjacency] = field(default_factory=dict, repr=False)
    _spent: list[int] = field(default_factory=lambda: [0], repr=False)

    def features(self, steps: range) -> Tensor:
        """Of the own rows."""
        return (self.x if self.x.dim() == 2 else self.x[steps.start : steps.stop]).to(self.dtype)

    def aggregated(self, steps: range) -> Tensor | None:
        """As it was made when the data were cut, since it reads features of other parts."""
        return None if self.known is None else self.known[steps.start : steps.stop].to(self.dtype)

    def snapshots(self, steps: range) -> Sequence[Adjacency]:
        """Blocks."""
        return Steps(steps, self._block)

    def halo(self, step: int) -> StepHalo:
        """From the events of the step's window, on both sides."""
        positions = self._halo_positions(step)
        bounds = torch.searchsorted(positions, torch.tensor(self.starts))
        start, stop = self._window(self.reads.offsets, step)
        row, way = self.reads.row[start:stop].long(), self.reads.way[start:stop]
        send = []
        for other in range(len(self.starts) - 1):
            asked = torch.zeros(self.rows, dtype=torch.bool)
            asked[row[way == other]] = True
            send.append(torch.nonzero(asked)[:, 0])
        return StepHalo(tuple(send), tuple(bounds.diff().tolist()), self.order[positions])

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
            asked[self.starts[self.way] : self.starts[self.way + 1]] = False
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
        column[self.starts[self.way] : self.starts[self.way + 1]] = torch.arange(self.rows, dtype=torch.int32)
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
            mine = self.sums[step, self.starts[self.way] : self.starts[self.way + 1]]
            sums = torch.cat([mine, self.sums[step].index_select(0, halo)])
        prepared = normalise_block(matrix, self.normalisation, self.self_loops, sums)
        sent = (stop - start) * (8 if edges.weight is None else 12) + (0 if sums is None else sums.nbytes)
        self.ledger.add_transfer(full_bytes(prepared), sent)
        return prepared
