"""Shards of one graph: all of it, or a part with its halo."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.ops.memory import empty
from trisect.ops.spmm.aggregate import aggregate
from trisect.partition.halo import PartGraph
from trisect.shards.shard import Shard


class GraphShard(Shard):
    """A part of a graph (or all of it), of one step.

    Args:
        part_graph: the part's block of the adjacency with its halo lists.
        features: gives x of the own rows [rows, features]; called when they are first needed, and again after
            `aggregate` has read them, so that rows that lie in a file and are not read again take no memory.
        vertices: the user's ids of the own rows; `halo_vertices` of the halo rows.
        all_rows: gives the matrix of all rows, where rows are redistributed by columns.
        relations: what the relations of edges are called.
        sums: gives the row sums of the columns, where steps leave edges out.
    """

    def __init__(
        self,
        part_graph: PartGraph,
        features: Callable[[], Tensor],
        vertices: Tensor | None,
        halo_vertices: Tensor | None = None,
        all_rows: Callable[[], Adjacency] | None = None,
        relations: tuple[str, ...] = (),
        sums: Callable[[], Tensor] | None = None,
    ) -> None:
        self.rows, self.vertices, self.relations = part_graph.rows, vertices, relations
        self._part_graph, self._read, self._all_rows = part_graph, features, all_rows
        self._sums = sums
        self._ids = None
        if vertices is not None and halo_vertices is not None:
            self._ids = torch.cat([vertices, halo_vertices])
        self._interior: tuple[int, ...] | None = None
        self._x: Tensor | None = None
        self._matrix: Adjacency | None = None
        self._aggregated: Tensor | None = None

    def features(self, steps: range) -> Tensor:
        """Give x of the own rows, [1, rows, features]."""
        if self._x is None:
            self._x = self._read()
        return self._x[None]

    def snapshots(self, steps: range) -> Sequence[Adjacency]:
        """Give the part's block, that of the one step."""
        return [self._part_graph.adjacency]

    def part_graph(self, step: int) -> PartGraph:
        """Give the part with its halo lists."""
        return self._part_graph

    def with_part_graph(self, part_graph: PartGraph) -> GraphShard:
        """The same part with its chunks cut otherwise."""
        other = GraphShard(part_graph, self._read, self.vertices, None, self._all_rows, self.relations, self._sums)
        other._ids, other._x, other._aggregated = self._ids, self._x, self._aggregated
        return other

    def interior(self) -> tuple[int, ...]:
        """Give, for each chunk, the own row from which on no row takes part in an exchange."""
        if self._interior is None:
            self._interior = self._part_graph.interior()
        return self._interior

    def column_ids(self, step: int) -> Tensor | None:
        """Give the user's ids of own and halo rows."""
        return self._ids

    def all_rows(self, steps: range) -> Sequence[Adjacency]:
        """Give the matrix of all rows, read once: its transpose is kept with it."""
        if self._all_rows is None:
            return super().all_rows(steps)
        if self._matrix is None:
            self._matrix = self._all_rows()
        return [self._matrix]

    def sums(self) -> Tensor:
        """Give the row sums of own and halo rows, as the graph's weights are with the loops that the model adds."""
        return super().sums() if self._sums is None else self._sums()

    def aggregated(self, steps: range) -> Tensor | None:
        """Give Â·x of the own rows, [1, rows, features], once it is made."""
        return None if self._aggregated is None else self._aggregated[None]

    def keep(self, aggregated: Tensor) -> None:
        """Keep Â·x of the own rows, as somebody else has made it."""
        self._aggregated = aggregated

    def keep_aggregated(self, fetch: Callable[[Tensor], Tensor] | None = None, at_once: int | None = None) -> None:
        """Make Â·x of the own rows, which has no trained part, once for all epochs.

        Args:
            fetch: gives the rows of all columns from the own ones; the features of the halo cross once.
            at_once: features that are fetched and summed up at once, so that only theirs of the halo take memory.
        """
        x, adjacency = self._read(), self._part_graph.adjacency
        if at_once is None or at_once >= x.shape[1]:
            self._aggregated = aggregate(x if fetch is None else fetch(x), adjacency)
            return
        self._aggregated = empty((adjacency.rows, x.shape[1]), x.dtype, x.device)
        for first in range(0, x.shape[1], at_once):
            some = x[:, first : first + at_once]
            self._aggregated[:, first : first + at_once] = aggregate(some if fetch is None else fetch(some), adjacency)


def single_part(adjacency: Adjacency, *, symmetric: bool = False) -> PartGraph:
    """All of a graph as a part without a halo."""
    none = torch.empty(0, dtype=torch.int64)
    return PartGraph(0, adjacency, none, (((0, 0),),), ((none,),), (0, adjacency.rows), symmetric)
