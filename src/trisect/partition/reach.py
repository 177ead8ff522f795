"""What a run of rows reads, as a block with no more columns than that."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency


@dataclass(frozen=True, eq=False)
class Reach:
    """A block whose columns are its own rows and then `others`.

    Attributes:
        adjacency: [rows, rows + others].
        others: int64, ascending: the columns of the matrix it was taken from that the rows read beside themselves.
    """

    adjacency: Adjacency
    others: Tensor


def reach_of(adjacency: Adjacency, low: int, high: int) -> Reach:
    """The reach of rows low..high-1, which are also the columns low..high-1 of `adjacency`.

    For example, rows 1..2 of a path 0-1-2-3 read the others [0, 3]; row 1 reads columns 1 (vertex 2) and 2 (vertex 0).
    """
    block = adjacency.rows_between(low, high)
    row, column = block.coordinates()
    pointers = torch.zeros(high - low + 1, dtype=torch.int64, device=adjacency.device)
    pointers[1:] = torch.cumsum(block.ends - block.starts, 0)
    own = (column >= low) & (column < high)
    others = torch.unique(column[~own])
    local = torch.where(own, column - low, high - low + torch.searchsorted(others, column))
    # own columns come first now: sort the entries of each row again
    order = torch.argsort(row * (adjacency.columns + 1) + local)
    entry = block.entry_positions()[order]
    values = None if adjacency.values is None else adjacency.values[entry]
    matrix = Adjacency.from_csr(pointers, local[order], values, high - low + others.numel())
    return Reach(matrix if adjacency.features is None else matrix.with_features(adjacency.features[entry]), others)
