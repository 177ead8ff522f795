"""Which rows of a part are computed together: all of them, a chunk, or the boundary and the interior of either."""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.engine.boards import Boards, CellRows
from trisect.graph.adjacency import Adjacency
from trisect.partition.halo import PartGraph
from trisect.partition.reach import reach_of
from trisect.shards.shard import Shard


class RowCutter:
    """Cuts the rows of one rank for its cells. Those of a static graph are cut once and kept.

    Args:
        boards: where cells read each other's rows; None where each cell reads its own alone.
        timeline: whether the adjacency differs from step to step.
    """

    def __init__(self, shard: Shard, boards: Boards | None, *, timeline: bool) -> None:
        self._shard, self._boards, self._timeline = shard, boards, timeline
        self._kept: dict[object, CellRows] = {}

    def cut(self, steps: range, chunk: int | None, *, in_sides: bool) -> list[tuple[int, CellRows]]:
        """Give the rows of each cell, with the number under which its states are kept.

        Args:
            chunk: None: all chunks at once.
            in_sides: whether boundary rows (number 0) come apart from interior ones (number 1).
        """
        rows, boards = slice(0, self._shard.rows), self._boards
        if boards is None or not steps:
            blocks = self._shard.snapshots(steps) if steps else []
            if chunk is not None and not self._timeline:
                rows = self._shard.part_graph(0).rows_of(chunk)
                blocks = [matrix.rows_between(rows.start, rows.stop) for matrix in blocks]
            return [(0, CellRows(rows, blocks, [None] * len(steps)))]
        first = boards.graphs[0]
        rows = first.rows_of(chunk)
        split = rows.stop
        if in_sides and boards.gradients.collects:
            interior = self._shard.interior()
            if chunk is not None or len(interior) == 1:
                split = interior[chunk or 0]
        sides = ((rows.start, split), (split, rows.stop))
        return [(side, self._between(boards, low, high)) for side, (low, high) in enumerate(sides) if high > low]

    def _between(self, boards: Boards, low: int, high: int) -> CellRows:
        kept = None if self._timeline else self._kept.get((low, high))
        if kept is None:
            blocks = [_block(graph, low, high, boards) for graph in boards.graphs]
            kept = CellRows(slice(low, high), [matrix for matrix, _ in blocks], [reads for _, reads in blocks])
            if not self._timeline:
                self._kept[low, high] = kept
        return kept


def _block(graph: PartGraph, low: int, high: int, boards: Boards) -> tuple[Adjacency, Tensor | None]:
    """Give the adjacency of some own rows, and the columns of the part that it reads; None: all of them."""
    if (low, high) == (0, graph.rows):
        return graph.adjacency, None
    if boards.gradients.collects:
        return graph.adjacency.rows_between(low, high), None
    reach = reach_of(graph.adjacency, low, high)
    return reach.adjacency, torch.cat([torch.arange(low, high, device=reach.others.device), reach.others])
