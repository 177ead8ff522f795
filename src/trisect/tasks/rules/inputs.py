"""Inputs of fitted rules: features of vertices, how many edges they have, and the means of their neighbours.

All of it is made for the rows that are asked for, a block at a time; of features a copy is made
only where they are folded into fewer columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from trisect.graph.csr import entry_positions
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.noise import Noise, random_bits

_BLOCK = 1 << 21  # numbers that are gathered at a time


class Inputs(ABC):
    """The inputs of all rows of a graph, or of a timeline after one of its steps.

    Args:
        features: of the data, [vertices, features]; without any, degrees, which a model reads then.
        columns: into how many of them features are folded, where there are more.
    """

    def __init__(self, features: Tensor, columns: int) -> None:
        self._columns = columns
        self._features = self._folded(features)

    def own(self, rows: Tensor) -> Tensor:
        """Return the features of some rows, float32 [rows, columns]."""
        return torch.nan_to_num(self._features[rows].float(), 0.0, 0.0, 0.0)

    def _folded(self, features: Tensor) -> Tensor:
        """Add each feature, with a random sign, to one of the columns; features themselves where they are few."""
        width = features.shape[1]
        if width <= self._columns:
            return features
        bits = random_bits(Noise(0).key("columns of simple rules"), torch.arange(width), 2)
        column, sign = bits[:, 0] % self._columns, (bits[:, 1] % 2 * 2 - 1).float()
        folded = torch.zeros(features.shape[0], self._columns)
        for start in range(0, features.shape[0], max(1, _BLOCK // width)):
            rows = slice(start, start + max(1, _BLOCK // width))
            folded[rows].index_add_(1, column, features[rows].float() * sign)
        return folded

    def around(self, rows: Tensor) -> Tensor:
        """Return degrees of some rows and the means of their neighbours' features and degrees."""
        return torch.cat([self._degrees(rows), self._means(rows)], 1)

    def _described(self, rows: Tensor) -> Tensor:
        """Return what a neighbour says of itself."""
        return torch.cat([self.own(rows), self._degrees(rows)], 1)

    @abstractmethod
    def _degrees(self, rows: Tensor) -> Tensor:
        """Return logarithms of counts and weights of edges, float32 [rows, ·]."""

    @abstractmethod
    def _means(self, rows: Tensor) -> Tensor:
        """Return the mean over the edges into each row of what their sources say; zeros where there are none."""


class GraphInputs(Inputs):
    """The inputs of a static graph."""

    def __init__(self, graph: Graph, columns: int) -> None:
        super().__init__(graph.features(), columns)
        self._matrix = graph.adjacency.compact()
        into = self._matrix.ends - self._matrix.starts
        out = torch.bincount(self._matrix.indices, minlength=graph.vertices)
        self._counts = torch.log1p(torch.stack([into, out], 1).float())

    def _degrees(self, rows: Tensor) -> Tensor:
        return self._counts[rows]

    def _means(self, rows: Tensor) -> Tensor:
        starts, ends = self._matrix.starts[rows], self._matrix.ends[rows]
        counts = ends - starts
        width = self._described(rows[:1]).shape[1]
        means = torch.zeros(rows.numel(), width)
        for some in _by_size(counts, max(1, _BLOCK // width)):
            neighbours = self._matrix.indices[entry_positions(starts[some], ends[some], int(counts[some].sum()))].long()
            row_index = torch.arange(some.stop - some.start).repeat_interleave(counts[some])
            means[some].index_add_(0, row_index, self._described(neighbours))
        return means.div_(counts.clamp(min=1)[:, None])


class TimelineInputs(Inputs):
    """The inputs of a timeline after one of its steps, counted over all events up to it."""

    def __init__(self, timeline: Timeline, columns: int) -> None:
        super().__init__(timeline.features_at(0), columns)
        self._timeline = timeline
        n, counts = timeline.vertices, 2 if timeline.weight is None else 4
        self._now = torch.zeros(n, counts, dtype=torch.float64)
        self._past = torch.zeros(n, counts, dtype=torch.float64)
        self._sums = torch.zeros(n, self._described(torch.arange(1)).shape[1])

    def advance(self, step: int) -> None:
        """Count the events of the next step."""
        timeline = self._timeline
        if timeline.x is None or timeline.x.dim() == 3:
            self._features = self._folded(timeline.features_at(step))
        src, dst = (ends.long() for ends in timeline.events(step))
        weight = timeline.event_weights(step)
        if timeline.undirected:
            src, dst = torch.cat([src, dst]), torch.cat([dst, src])
            weight = None if weight is None else torch.cat([weight, weight])
        n = timeline.vertices
        columns = [torch.bincount(ends, minlength=n).double() for ends in (dst, src)]
        if weight is not None:
            columns += [torch.bincount(ends, weight.double(), minlength=n) for ends in (dst, src)]
        self._now = torch.stack(columns, 1)
        self._past += self._now
        block = max(1, _BLOCK // self._sums.shape[1])
        for start in range(0, src.numel(), block):
            here = slice(start, start + block)
            self._sums.index_add_(0, dst[here], self._described(src[here]))

    def _degrees(self, rows: Tensor) -> Tensor:
        counts = torch.cat([self._now[rows], self._past[rows]], 1)
        return (counts.sign() * torch.log1p(counts.abs())).float()

    def _means(self, rows: Tensor) -> Tensor:
        return self._sums[rows] / self._past[rows, :1].clamp(min=1).float()


def walk_inputs(data: Graph | Timeline, steps: Sequence[int], columns: int) -> Iterator[tuple[int, Inputs]]:
    """Yield the inputs at these steps, which ascend; it is one object that goes from step to step."""
    if isinstance(data, Graph):
        yield from ((step, GraphInputs(data, columns)) for step in steps)
        return
    inputs, wanted = TimelineInputs(data, columns), set(steps)
    for step in range(max(wanted, default=-1) + 1):
        inputs.advance(step)
        if step in wanted:
            yield step, inputs


def _by_size(counts: Tensor, most: int) -> Iterator[slice]:
    """Cut rows into stretches of at most so many entries together; a row alone may have more."""
    ends = counts.cumsum(0)
    start = 0
    while start < counts.numel():
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(torch.searchsorted(ends, before + most, right=True)))
        yield slice(start, stop)
        start = stop
