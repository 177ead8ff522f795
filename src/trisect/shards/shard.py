"""`Shard`: what one rank reads of the data: its rows and steps, its blocks of adjacency, its halo lists."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.partition.halo import PartGraph


class Shard(ABC):
    """The rows and steps of one rank. A static graph has one step.

    Attributes:
        rows: how many own rows there are.
        vertices: the user's ids of the own rows, int64 [rows]; None: rows are vertices.
        relations: what the relations of edges are called; none where they are of one kind.
    """

    rows: int
    vertices: Tensor | None
    relations: tuple[str, ...] = ()

    @abstractmethod
    def features(self, steps: range) -> Tensor:
        """Give x of the own rows: [steps, rows, features], or [rows, features] where they are the same in all steps."""

    @abstractmethod
    def snapshots(self, steps: range) -> Sequence[Adjacency]:
        """Give the adjacency of each of these steps: own rows × (own rows, then that step's halo rows).

        It is asked for once a visit of a block, forward and again in recomputation; the engine keeps nothing of it.
        """

    def aggregated(self, steps: range) -> Tensor | None:
        """Give Â_t·x_t of the own rows, [steps, rows, features], where it is kept between epochs.

        It is not None exactly where the plan says so; the first layer then reads no snapshot.
        """
        return None

    def part_graph(self, step: int) -> PartGraph:
        """Give the block of one step with its halo lists, where vertices are cut or go through in chunks."""
        raise RuntimeError("internal error: the shard has no parts, but the layout is cut by vertex")

    def interior(self) -> tuple[int, ...]:
        """Give, for each chunk, the own row from which on no row takes part in an exchange with other parts."""
        raise RuntimeError("internal error: the shard has no parts, but the layout is cut by vertex")

    def column_ids(self, step: int) -> Tensor | None:
        """Give the user's ids of the columns of a step's block; None where only those of the own rows are known."""
        return None

    def sums(self) -> Tensor:
        """Give the row sums of a graph's weights that the matrix was normalised by, loops included: float64 [columns],
        where steps leave edges out.
        """
        raise RuntimeError("internal error: the shard has no row sums, but steps leave edges out")

    def all_rows(self, steps: range) -> Sequence[Adjacency]:
        """Give the matrices of all rows, where rows are redistributed by columns."""
        raise RuntimeError(
            "internal error: the shard has no matrices of all rows, but rows are redistributed by columns"
        )
