"""The entries of a block as PyG's edge_index, built once and kept with the adjacency."""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency


def edge_list(adjacency: Adjacency) -> Tensor:
    """int64 [2, entries]: the column (source) and the row (target) of each entry, by rows."""
    return _entries(adjacency)[0]


def edge_weights(adjacency: Adjacency) -> Tensor | None:
    """[entries]: the values in the order of `edge_list`, or None where every edge counts 1."""
    return _entries(adjacency)[1]


def _entries(adjacency: Adjacency) -> tuple[Tensor, Tensor | None]:
    found = adjacency._cache.get("edge_list")
    if isinstance(found, tuple):
        return found
    lengths = adjacency.ends - adjacency.starts
    target = torch.repeat_interleave(torch.arange(adjacency.rows, device=adjacency.device), lengths)
    offsets = torch.cumsum(lengths, 0) - lengths
    # where each entry stands in `indices`: contiguous for a plain matrix, with gaps for a view
    position = torch.arange(target.numel(), device=adjacency.device) + (adjacency.starts - offsets)[target]
    source = adjacency.indices[position].to(torch.int64) - adjacency.column_base
    entries = torch.stack([source, target]), None if adjacency.values is None else adjacency.values[position]
    adjacency._cache["edge_list"] = entries
    return entries
