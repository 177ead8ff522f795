"""What one part reads from the others and sends to them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.partition.partition import Partition
from trisect.partition.reach import reach_of

_WORTH_IT = 8  # interior rows are computed apart where they are at least one in so many


@dataclass(frozen=True, eq=False)
class PartGraph:
    """The rows of one part of a graph that stands in partition order.

    The columns of `adjacency` are the part's own rows (0 .. rows-1) and then its halo: the rows of other parts that it
    reads, ascending by position, therefore grouped by owner and, inside an owner, by chunk.

    Attributes:
        part: which part.
        adjacency: [rows, rows + halo].
        halo: int64 [halo], the positions of the halo rows.
        receive: receive[q][c] = (first, one past the last) of the halo rows that chunk c of part q owns,
            counted from the first halo row.
        send: send[q][c] = the own rows (int64, ascending) of chunk c that part q reads.
        chunk_rows: chunk c is the own rows chunk_rows[c] .. chunk_rows[c+1]-1.
        symmetric: whether the whole matrix is its own transpose: then what reads a row is what it reads.
    """

    part: int
    adjacency: Adjacency
    halo: Tensor
    receive: tuple[tuple[tuple[int, int], ...], ...]
    send: tuple[tuple[Tensor, ...], ...]
    chunk_rows: tuple[int, ...]
    symmetric: bool = False
    _pieces: dict[tuple[int, int, bool], Adjacency] = field(default_factory=dict, init=False, repr=False)

    @property
    def rows(self) -> int:
        """How many vertices the part has."""
        return self.adjacency.rows

    def to(self, device: torch.device) -> PartGraph:
        """The same part with the block and the lists of rows to send on another device; positions stay on the host."""
        if device == self.adjacency.device:
            return self
        send = tuple(tuple(rows.to(device) for rows in chunks) for chunks in self.send)
        return replace(self, adjacency=self.adjacency.to(device), send=send)

    def rows_of(self, chunk: int | None) -> slice:
        """The own rows of a chunk; all of them for None."""
        return slice(0, self.rows) if chunk is None else slice(self.chunk_rows[chunk], self.chunk_rows[chunk + 1])

    def piece(self, low: int, high: int, *, turned: bool = False) -> Adjacency:
        """Rows low .. high-1 of the block or its transpose; made once, since counting entries waits for a device."""
        piece = self._pieces.get((low, high, turned))
        if piece is None:
            whole = self.adjacency.transpose() if turned else self.adjacency
            piece = self._pieces[low, high, turned] = whole.rows_between(low, high)
        return piece

    def inner(self, low: int) -> Adjacency:
        """Rows from `low` on, which read own rows alone, over these as columns; made once."""
        piece = self._pieces.get((low, -1, False))
        if piece is None:
            piece = self._pieces[low, -1, False] = self.piece(low, self.rows).columns_between(0, self.rows)
        return piece

    def interior(self) -> tuple[int, ...]:
        """For each chunk, the own row from which on no row of it reads the halo or is read by another part.

        Its end, where few rows are such: computing them apart costs more than it could hide.
        """
        matrix = self.adjacency
        filled = matrix.ends > matrix.starts
        last = matrix.indices[(matrix.ends - 1).clamp_min(0)] if matrix.indices.numel() else matrix.starts
        # columns ascend in a row, and those of the halo come last
        outer = filled & (last - matrix.column_base >= self.rows)
        for chunks in self.send:
            for rows in chunks:
                outer[rows] = True
        starts = []
        for low, high in pairwise(self.chunk_rows):
            rows = torch.nonzero(outer[low:high])
            first = low + int(rows[-1]) + 1 if rows.numel() else low
            starts.append(first if (high - first) * _WORTH_IT >= high - low else high)
        return tuple(starts)


def part_graph_of(adjacency: Adjacency, partition: Partition, part: int) -> PartGraph:
    """Cut one part out of a graph. `adjacency` is square and its rows and columns stand in partition order."""
    first, last = partition.part(part)
    reach = reach_of(adjacency, first, last)
    bounds = torch.searchsorted(reach.others, torch.tensor(partition.starts))
    receive = tuple(
        tuple(
            (int(bounds[q * partition.chunks + c]), int(bounds[q * partition.chunks + c + 1]))
            for c in range(partition.chunks)
        )
        for q in range(partition.parts)
    )
    chunk_rows = tuple(s - first for s in partition.starts[part * partition.chunks : (part + 1) * partition.chunks + 1])
    send = _send_lists(adjacency, partition, part)
    return PartGraph(part, reach.adjacency, reach.others, receive, send, chunk_rows, adjacency.is_symmetric())


def merge_chunks(part_graph: PartGraph, factor: int) -> PartGraph:
    """The same part with each `factor` consecutive chunks made one."""
    count = len(part_graph.chunk_rows) - 1
    groups = [range(low, min(low + factor, count)) for low in range(0, count, factor)]
    return replace(
        part_graph,
        receive=tuple(tuple((owner[g[0]][0], owner[g[-1]][1]) for g in groups) for owner in part_graph.receive),
        send=tuple(tuple(torch.cat([rows[c] for c in g]) for g in groups) for rows in part_graph.send),
        chunk_rows=tuple(part_graph.chunk_rows[g[0]] for g in groups) + part_graph.chunk_rows[-1:],
    )


def _send_lists(adjacency: Adjacency, partition: Partition, part: int) -> tuple[tuple[Tensor, ...], ...]:
    """For each other part, by chunk, the own rows that it reads: a look at the columns of this part, row by row."""
    first, last = partition.part(part)
    reader, row = adjacency.columns_between(first, last).coordinates()
    pairs = torch.unique(partition.owner_of_positions(reader) * max(last - first, 1) + row)
    peer, row = pairs // max(last - first, 1), pairs % max(last - first, 1)
    starts = torch.tensor(partition.starts[part * partition.chunks : (part + 1) * partition.chunks + 1]) - first
    result = []
    for q in range(partition.parts):
        rows = row[peer == q] if q != part else row[:0]
        bounds = torch.searchsorted(rows, starts).tolist()
        result.append(tuple(rows[bounds[c] : bounds[c + 1]] for c in range(partition.chunks)))
    return tuple(result)


# Bytes of own and halo rows whose first sum over neighbours is made at once, and the most exchanges that this takes.
_AT_ONCE, _MOST_EXCHANGES = 64 << 20, 8
_LANES = 64  # a multiple of the numbers that a kernel sums up at once, so that sums have the same bits


def features_at_once(columns: int, features: int, itemsize: int) -> int:
    """Return how many features of own and halo rows are exchanged and summed up together; the same on all ranks.

    Args:
        columns: own and halo rows of the part that has most of them.
    """
    exchanges = min(_MOST_EXCHANGES, -(-columns * features * itemsize // _AT_ONCE))
    several = -(-features // max(1, exchanges))
    return min(features, -(-several // _LANES) * _LANES)
