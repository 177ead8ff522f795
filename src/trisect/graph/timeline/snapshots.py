"""Snapshots as sequences, each made when it is asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, overload

import torch

from trisect.errors import DataError
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import Normalisation

if TYPE_CHECKING:
    from trisect.graph.timeline.timeline import Timeline


class OnDemand(Sequence[Adjacency]):
    """Adjacencies by step, counted from 0; a slice is a further such sequence, which shares what is kept."""

    @abstractmethod
    def at(self, step: int) -> Adjacency:
        """That of a step, which exists."""

    @overload
    def __getitem__(self, step: int) -> Adjacency: ...
    @overload
    def __getitem__(self, step: slice) -> Steps: ...
    def __getitem__(self, step: int | slice) -> Adjacency | Steps:
        if isinstance(step, slice):
            steps = range(len(self))[step]
            if steps.step != 1:
                raise DataError(f"Snapshots are sliced one after the other, not with a stride of {steps.step}.")
            return Steps(steps, self.at)
        if not -len(self) <= step < len(self):
            raise IndexError(f"There is no snapshot {step}; there are {len(self)}, counted from 0.")
        return self.at(step % len(self))

    def __iter__(self) -> Iterator[Adjacency]:
        return (self.at(step) for step in range(len(self)))


class Steps(OnDemand):
    """Consecutive steps of something that makes adjacencies by step, counted from 0."""

    def __init__(self, steps: range, make: Callable[[int], Adjacency]) -> None:
        self._steps, self._make = steps, make

    def __len__(self) -> int:
        return len(self._steps)

    def at(self, step: int) -> Adjacency:
        """Give the snapshot, made now or kept by its maker."""
        return self._make(self._steps[step])


class Snapshots(OnDemand):
    """Prepared snapshots of a timeline.

    Within `keep_bytes` (a transpose for each counted in) they are kept, the first that come: epochs read them in a
    circle, where keeping the most recent would never find one again.
    """

    def __init__(
        self, timeline: Timeline, normalisation: Normalisation, self_loops: bool, dtype: torch.dtype, keep_bytes: int
    ) -> None:
        self.timeline = timeline
        self.normalisation: Normalisation = normalisation
        self.self_loops = self_loops
        self.dtype = dtype
        self._kept: dict[int, Adjacency] = {}
        self._left = keep_bytes

    def __len__(self) -> int:
        return self.timeline.steps

    def at(self, step: int) -> Adjacency:
        """Give the snapshot, made now or kept from before."""
        matrix = self._kept.get(step)
        if matrix is None:
            matrix = self.timeline.snapshot(step, self.normalisation, self_loops=self.self_loops, dtype=self.dtype)
            size = 2 * matrix.memory_bytes
            if size <= self._left:
                self._left -= size
                self._kept[step] = matrix
        return matrix
