"""Aggregation by torch's own operations: for other devices, without the native library, and as the oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency


def sum_torch(
    x: Tensor, adjacency: Adjacency, row_scale: Tensor | None = None, column_scale: Tensor | None = None
) -> Tensor:
    """diag(row_scale) · A · diag(column_scale) · x through torch's CSR product; no temporary of a row per entry.

    Types without a sparse product (bf16, float16) are summed in float32.
    """
    dtype = x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32
    read = x.to(dtype)
    if column_scale is not None:
        read = read * column_scale.to(dtype)[:, None]
    if adjacency.rows == 0 or adjacency.entries == 0 or x.shape[1] == 0:
        out = torch.zeros(adjacency.rows, x.shape[1], dtype=dtype, device=x.device)
    else:
        out = adjacency.csr_tensor(dtype) @ read
    if row_scale is not None:
        out = out * row_scale.to(dtype)[:, None]
    return out.to(x.dtype)


def max_torch(x: Tensor, adjacency: Adjacency) -> tuple[Tensor, Tensor]:
    """Return the largest weighted neighbour for each feature, and which entry of the row it was, the first of equals.

    Returns [rows, features] and int32 [rows, features]; a row without entries has 0 and -1.
    """
    source, target = adjacency.edge_index()
    weight = adjacency.edge_weight()
    wide = x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32
    read = x[source].to(wide)
    if weight is not None:
        read = read * weight.to(wide)[:, None]
    index = target[:, None].expand_as(read)
    out = torch.zeros(adjacency.rows, x.shape[1], dtype=wide, device=x.device)
    out = out.scatter_reduce(0, index, read, "amax", include_self=False)
    lengths = adjacency.ends - adjacency.starts
    offsets = torch.cumsum(lengths, 0) - lengths
    within_row = (torch.arange(target.numel(), device=x.device) - offsets[target])[:, None]
    held = out[target]
    none = torch.iinfo(torch.int64).max
    within_row = torch.where((read == held) | (read.isnan() & held.isnan()), within_row, none)
    winner = torch.full(out.shape, none, device=x.device).scatter_reduce(0, index, within_row, "amin")
    return out.to(x.dtype), torch.where(winner == none, -1, winner).to(torch.int32)


def max_backward_torch(gradient: Tensor, winner: Tensor, adjacency: Adjacency) -> Tensor:
    """Hand each gradient to the entry that won it. Shapes: [rows, features] → [columns, features]."""
    wide = gradient.dtype if gradient.dtype in (torch.float32, torch.float64) else torch.float32
    out = torch.zeros(adjacency.columns, gradient.shape[1], dtype=wide, device=gradient.device)
    if adjacency.indices.numel() == 0:
        return out.to(gradient.dtype)
    won = winner >= 0
    entry = torch.where(won, adjacency.starts[:, None] + winner, 0)
    passed = gradient.to(wide) * won
    if adjacency.values is not None:
        passed = passed * adjacency.values[entry].to(wide)
    column = torch.where(won, adjacency.indices[entry].long() - adjacency.column_base, 0)
    return out.scatter_add(0, column, passed).to(gradient.dtype)
