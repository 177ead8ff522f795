"""The events of one part of a timeline as they lie on disk, and what follows from them: its halo and who reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from trisect.graph.edge_features import Merge
from trisect.graph.timeline.smoothing import Smoothing


@dataclass(frozen=True, eq=False)
class PartEvents:
    """The events into the rows of one part, sorted by raw step; each is one entry (dst, src) of the part's matrix.

    Columns of that matrix are the own rows first, then the positions of all other vertices in their order. A step's
    block keeps of them the own rows and the halo.

    Attributes:
        src: int32, the column of the source.
        dst: int32, the row of the target in the part.
        weight: float, or None where every event counts 1.
        offsets: int64 [raw steps + 1].
        part_index: which part; part w has the positions starts[w] .. starts[w+1]-1.
        smoothing: how a snapshot gathers the events of the steps before it.
        first: which raw step is step 0.
        edge_x: float32 [events, features], or None; `merge` says what those of one entry become.
    """

    src: Tensor
    dst: Tensor
    weight: Tensor | None
    offsets: Tensor
    part_index: int
    starts: tuple[int, ...]
    smoothing: Smoothing
    first: int = 0
    edge_x: Tensor | None = None
    merge: Merge = "mean"
    _halos: dict[int, Tensor] = field(default_factory=dict, repr=False)

    @property
    def own(self) -> slice:
        """Give the positions of the part's vertices."""
        return slice(self.starts[self.part_index], self.starts[self.part_index + 1])

    @property
    def rows(self) -> int:
        """Give the number of the part's vertices."""
        return self.starts[self.part_index + 1] - self.starts[self.part_index]

    @property
    def columns(self) -> int:
        """Count the vertices of all parts."""
        return self.starts[-1]

    def window(self, step: int, offsets: Tensor | None = None) -> slice:
        """Give the events of the window of a step, or what stands at these offsets for its raw steps."""
        now, by = self.first + step, self.offsets if offsets is None else offsets
        return slice(int(by[self.smoothing.first_step(now)]), int(by[now + 1]))

    def halo_columns(self, step: int) -> Tensor:
        """Give the columns of the step's halo rows, int64 ascending."""
        halo = self._halos.get(step)
        if halo is None:
            read = torch.zeros(self.columns, dtype=torch.bool)
            read[self.src[self.window(step)].long()] = True
            halo = self._halos[step] = torch.nonzero(read[self.rows :])[:, 0] + self.rows
        return halo

    def halo_positions(self, step: int) -> Tensor:
        """Give the positions of the step's halo rows, int64 ascending, therefore grouped by owner."""
        halo = self.halo_columns(step)
        return torch.where(halo < self.rows + self.own.start, halo - self.rows, halo)

    def read_columns(self, step: int) -> Tensor:
        """Give the columns of the step's block, int64 ascending: own rows and halo."""
        return torch.cat([torch.arange(self.rows), self.halo_columns(step)])


@dataclass(frozen=True, eq=False)
class PartReads:
    """Which own rows other parts read of the raw events of each step, sorted by raw step.

    Attributes:
        row: int32, the own row.
        part_index: int16, the part that reads it.
        offsets: int64 [raw steps + 1].
    """

    row: Tensor
    part_index: Tensor
    offsets: Tensor
