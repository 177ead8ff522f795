"""`Partition`: vertices put in an order in which each part, and inside it each chunk, is one interval."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from trisect.errors import LayoutError
from trisect.graph.adjacency import Adjacency


@dataclass(frozen=True, eq=False)
class Partition:
    """A partition says in which part and chunk every vertex lives.

    Attributes:
        order: int64 [vertices]; order[position] is the vertex (in the numbering of the graph that was cut).
        starts: parts · chunks + 1 positions; chunk c of part p is starts[p·chunks + c] .. starts[p·chunks + c + 1] - 1.
        parts, chunks: how many parts, and chunks in each.
    """

    order: Tensor
    starts: tuple[int, ...]
    parts: int = 1
    chunks: int = 1

    def __post_init__(self) -> None:
        if len(self.starts) != self.parts * self.chunks + 1:
            raise LayoutError(
                f"a partition of {self.parts} parts with {self.chunks} chunks needs "
                f"{self.parts * self.chunks + 1} starts, not {len(self.starts)}"
            )

    @classmethod
    def from_assignment(
        cls,
        assignment: Tensor,
        parts: int,
        chunks: int = 1,
        first: Tensor | None = None,
        within: Tensor | None = None,
    ) -> Partition:
        """From the number part · chunks + chunk of each vertex.

        Inside a chunk those of `first` (bool [vertices]) come before the others, then the smaller of `within` (int64
        [vertices], not negative); otherwise vertices keep their order.
        """
        count = parts * chunks
        number = assignment.to(torch.int64)
        sizes = torch.bincount(number, minlength=count)
        key = number if first is None else 2 * number + (~first).to(torch.int64)
        if within is not None:
            key = key * (int(within.max()) + 1 if within.numel() else 1) + within
        order = torch.argsort(key, stable=True)
        starts = [0, *torch.cumsum(sizes, 0).tolist()]
        return cls(order, tuple(starts), parts, chunks)

    @classmethod
    def equal(cls, vertices: int, parts: int) -> Partition:
        """Equal intervals of the vertices as they stand."""
        return cls(torch.arange(vertices), tuple(vertices * part // parts for part in range(parts + 1)), parts)

    def owner_by_vertex(self) -> Tensor:
        """The part of each vertex, int64 [vertices]."""
        return self.owner_of_positions(self.position_of())

    @property
    def vertices(self) -> int:
        """Give the number of vertices."""
        return self.order.numel()

    def part(self, part: int) -> tuple[int, int]:
        """First and one past the last position of a part."""
        return self.starts[part * self.chunks], self.starts[(part + 1) * self.chunks]

    def chunk(self, part: int, chunk: int) -> tuple[int, int]:
        """First and one past the last position of a chunk of a part."""
        index = part * self.chunks + chunk
        return self.starts[index], self.starts[index + 1]

    def position_of(self) -> Tensor:
        """The inverse of `order`: the position of each vertex, int64 [vertices]."""
        inverse = torch.empty_like(self.order)
        inverse[self.order] = torch.arange(self.vertices, device=self.order.device)
        return inverse

    def owner_of_positions(self, positions: Tensor) -> Tensor:
        """The part that holds each position."""
        bounds = torch.tensor([self.part(p)[1] for p in range(self.parts)], device=positions.device)
        return torch.searchsorted(bounds, positions, right=True)


@dataclass(frozen=True)
class Quality:
    """How good a cut is.

    Attributes:
        volume: Σ over parts of the distinct vertices of other parts that it reads (R in the formulas).
        vertex_imbalance, edge_imbalance: largest part over the mean part (1.0 is even).
        cut: share of the edges that join two parts.
    """

    volume: int
    vertex_imbalance: float
    edge_imbalance: float
    cut: float


def quality(adjacency: Adjacency, assignment: Tensor, parts: int) -> Quality:
    """Measure an assignment of the vertices (rows) of a square adjacency to parts."""
    part = assignment.to(torch.int64)
    target_vertex, source_vertex = adjacency.coordinates()
    target, source = part[target_vertex], part[source_vertex]
    crossing = target != source
    reads = torch.unique(target[crossing] * adjacency.columns + source_vertex[crossing])
    vertex_counts = torch.bincount(part, minlength=parts).double()
    edge_counts = torch.bincount(target, minlength=parts).double()
    return Quality(
        volume=reads.numel(),
        vertex_imbalance=imbalance(vertex_counts),
        edge_imbalance=imbalance(edge_counts),
        cut=float(crossing.double().mean()) if crossing.numel() else 0.0,
    )


def imbalance(counts: Tensor) -> float:
    """Give the largest count over the mean one; 1.0 is even."""
    mean = float(counts.mean())
    return float(counts.max()) / mean if mean > 0 else 1.0


def order_digest(order: Tensor) -> str:
    """A short name of an order of vertices: rows that lie in another one are those of other vertices."""
    return hashlib.sha256(order.cpu().to(torch.int64).contiguous().numpy().tobytes()).hexdigest()[:12]
