"""`TimelinePart`: what one rank holds of a timeline. Whoever cuts the data gives one to `TimelineRank`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from trisect.graph.adjacency import Adjacency

Runs = tuple[tuple[range, ...], ...]


@dataclass(frozen=True, eq=False)
class StepHalo:
    """Which rows cross between the ways of one step.

    Attributes:
        send: for each way the positions among the own rows that it reads, int64 (empty for the own way).
        receive: how many rows come from each way; they stand after the own rows, in the order of ways.
        vertices: the user's ids of the rows that come, int64; only needed where a layer draws random numbers for
            pairs (dropped attention).
    """

    send: tuple[Tensor, ...]
    receive: tuple[int, ...]
    vertices: Tensor | None = None


@dataclass(frozen=True, eq=False)
class TimelinePart(ABC):
    """The rows and steps of one rank: its part of the vertices, in the runs of its moment.

    Attributes:
        steps: how many steps are trained on, from step 0.
        runs: runs[block][moment], consecutive: block 0's runs in the order of moments, then block 1's. The same on all
            ranks. A run may be empty.
        rows: own rows (all vertices where `vertex` is 1).
        vertices: the user's ids of the own rows, int64 [rows]; None: rows are vertices.
    """

    steps: int
    runs: Runs
    rows: int
    vertices: Tensor | None

    @abstractmethod
    def features(self, steps: range) -> Tensor:
        """x of the own rows: [steps, rows, features], or [rows, features] where they are the same in all steps."""

    @abstractmethod
    def snapshots(self, steps: range) -> Sequence[Adjacency]:
        """The adjacency of each of these steps: own rows × (own rows, then that step's halo rows).

        Asked for once a visit of a block, forward and again in recomputation; nothing is kept by the rank after it.
        """

    def aggregated(self, steps: range) -> Tensor | None:
        """Â_t·x_t of the own rows, [steps, rows, features], where it is kept between epochs.

        Not None exactly where the plan says so (`TimelinePlan.aggregated`); the first layer then reads no snapshot.
        """
        return None

    def halo(self, step: int) -> StepHalo | None:
        """The rows of one step that cross between ways; None where `vertex` is 1."""
        return None

    def runs_until(self, stop: int) -> Runs:
        """The runs of range(stop), for evaluation: those of training, then blocks of about the same length."""
        times = len(self.runs[0])
        known = [tuple(range(min(run.start, stop), min(run.stop, stop)) for run in block) for block in self.runs]
        length = max(times, -(-self.steps // len(self.runs)))
        for start in range(self.steps, stop, length):
            end = min(start + length, stop)
            known.append(
                tuple(
                    range(start + (end - start) * m // times, start + (end - start) * (m + 1) // times)
                    for m in range(times)
                )
            )
        return tuple(block for block in known if any(block))
