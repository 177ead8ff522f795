"""What every program of several ranks answers for all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from trisect.train.programs import Program
from trisect.train.tasks.base import Split, Statistics

if TYPE_CHECKING:
    from trisect.runtime.exchange import Exchange
    from trisect.runtime.mesh import Mesh


class RankProgram(Program):
    """One rank's work. A subclass sets the mesh and the exchange before anything is asked."""

    mesh: Mesh
    _exchange: Exchange

    def total(self, value: float) -> float:
        """The sum over all ranks."""
        return float(self._exchange.sum_everywhere(torch.tensor(value, dtype=torch.float64)))

    def total_square(self, square: float) -> float:
        """Ways and moments of a stage hold the same gradients; each counts its share."""
        return self.total(square / (self.mesh.layout.vertex * self.mesh.layout.time))

    def listed(self, value: float) -> list[float]:
        """A value of each rank."""
        world = self.mesh.layout.world
        values = torch.zeros(world, dtype=torch.float64)
        values[self.mesh.rank] = value
        return [float(v) for v in self._exchange.sum_everywhere(values)]

    def merged(self, found: Mapping[Split, Statistics]) -> dict[Split, Statistics]:
        """Strung together in the order of ranks, the same on all."""
        plain = {split: (part.sums, part.rows) for split, part in found.items()}
        total = {split: Statistics() for split in found}
        for other in self._exchange.gather(plain):
            for split, (sums, rows) in other.items():
                total[split] = total[split].merge(Statistics(sums, rows))
        return total
