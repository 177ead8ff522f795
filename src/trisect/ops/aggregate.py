"""`aggregate`: what every spatial layer is made of."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency

Reduce = Literal["sum", "mean", "max"]


def aggregate(x: Tensor, adjacency: Adjacency, reduce: Reduce = "sum") -> Tensor:
    """For each row of the block, the weighted sum (mean, max) of the rows of x that it reads.

    Args:
        x: [columns, features].
        reduce: `sum` (values are weights), `mean` (of the weighted rows, by the number of entries), `max`.
    """
    # Provisional: torch's gather and scatter. The native kernels replace it.
    lengths = adjacency.ends - adjacency.starts
    row_of = torch.repeat_interleave(torch.arange(adjacency.rows), lengths)
    offsets = torch.cumsum(lengths, 0) - lengths
    entry = torch.arange(row_of.numel()) + (adjacency.starts - offsets)[row_of]
    read = x[adjacency.indices[entry].long() - adjacency.column_base]
    if adjacency.values is not None:
        read = read * adjacency.values[entry].to(x.dtype)[:, None]
    out = torch.zeros(adjacency.rows, x.shape[1], dtype=x.dtype)
    index = row_of[:, None].expand(-1, x.shape[1])
    how = {"sum": "sum", "mean": "mean", "max": "amax"}[reduce]
    return out.scatter_reduce(0, index, read, how, include_self=False)
