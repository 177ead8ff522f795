"""Cut a graph into parts and chunks: parts first (they cost bytes), then chunks in each (they cost freshness).

A part that is not cut into chunks is put in order instead: vertices of a piece that fits the cache stand together, so
that rows find what they read there, and so do the rows of other parts that read them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.errors import LayoutError
from trisect.graph.adjacency import Adjacency
from trisect.layout import Partitioner
from trisect.partition.method import choose_method, cut_by
from trisect.partition.order import CACHE_BYTES
from trisect.partition.partition import Partition

_ROWS_AT_ONCE = 1 << 17
_ROW_BYTES = 256  # of features, as a guess
_WORTH_IT = 2.0  # pieces hold this many times the edges that pieces by chance would


def cut_graph(
    adjacency: Adjacency, parts: int, chunks: int = 1, seed: int = 0, method: Partitioner = "metis"
) -> Partition:
    """A partition of the vertices of a square adjacency. The same input gives the same partition on every host that has
    the same libraries, and memory for METIS, where that is asked for.
    """
    if adjacency.rows < parts * chunks:
        raise LayoutError(
            f"layout.vertex × layout.chunks is {parts} × {chunks}, more than the graph's {adjacency.rows} vertices; "
            "use fewer parts or chunks."
        )
    method = choose_method(adjacency.rows, adjacency.entries, method) if parts * chunks > 1 else method
    assignment = cut_by(method, adjacency, parts, seed)
    within = None
    if chunks == 1 and parts > 1:
        within = _cache_groups(adjacency, assignment, parts, seed, method)
    elif chunks > 1:
        fine = torch.empty_like(assignment)
        for part in range(parts):
            members = torch.nonzero(assignment == part).flatten()
            fine[members] = _cut_members(adjacency, members, chunks, seed, method)
        assignment = assignment * chunks + fine
    boundary = boundary_of(adjacency, assignment // chunks)
    return Partition.from_assignment(assignment, parts, chunks, first=boundary, within=within)


def _cache_groups(adjacency: Adjacency, part: Tensor, parts: int, seed: int, method: Partitioner) -> Tensor | None:
    """A number for each vertex, by pieces of its part that fit the cache; None where none are better than chance."""
    most = max(1, CACHE_BYTES // _ROW_BYTES)
    chunk = torch.zeros_like(part)
    for number in range(parts):
        members = torch.nonzero(part == number).flatten()
        count = -(-members.numel() // most)
        if count < 2:
            continue
        own = induced(adjacency, members)
        chunk_of_member = cut_by(method, own, count, seed)
        row, column = own.coordinates()
        if (
            row.numel()
            and float((chunk_of_member[row] == chunk_of_member[column]).double().mean()) * count >= _WORTH_IT
        ):
            chunk[members] = chunk_of_member
    return chunk if bool(chunk.any()) else None


def boundary_of(adjacency: Adjacency, part: Tensor) -> Tensor:
    """Say of each vertex, bool [vertices], whether another part reads it, or it reads one of another part."""
    boundary = torch.zeros(adjacency.rows, dtype=torch.bool)
    for first in range(0, adjacency.rows, _ROWS_AT_ONCE):  # so that not all entries are listed at a time
        row, column = adjacency.rows_between(first, min(first + _ROWS_AT_ONCE, adjacency.rows)).coordinates()
        row = row + first
        crossing = part[row] != part[column]
        boundary[row[crossing]] = True
        boundary[column[crossing]] = True
    return boundary


def _cut_members(adjacency: Adjacency, members: Tensor, chunks: int, seed: int, method: Partitioner) -> Tensor:
    if members.numel() == adjacency.rows:
        return cut_by(method, adjacency, chunks, seed)
    return cut_by(method, induced(adjacency, members), chunks, seed)


def induced(adjacency: Adjacency, members: Tensor) -> Adjacency:
    """The structure among `members` (ascending vertices) alone, renumbered 0..len-1, without values."""
    number = torch.full((adjacency.columns,), -1, dtype=torch.int64)
    number[members] = torch.arange(members.numel())
    chosen = adjacency.rows_at(members)
    row, column = chosen.coordinates()
    column = number[column]
    keep = column >= 0
    pointers = torch.zeros(members.numel() + 1, dtype=torch.int64)
    pointers[1:] = torch.cumsum(torch.bincount(row[keep], minlength=members.numel()), 0)
    return Adjacency.from_csr(pointers, column[keep], None, members.numel())
