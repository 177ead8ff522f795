"""Features of edges beside a matrix: checked, merged where edges are parallel, and kept in the order of its entries."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from trisect.errors import DataError, unknown
from trisect.graph.adjacency import Adjacency
from trisect.graph.check import as_tensor, check_finite, positions_of

Merge = Literal["sum", "mean", "last", "count"]
_ROWS = 1 << 20


def edge_feature_array(array: Any, edges: int) -> Tensor:
    """float32 [edges, features], finite; one dimension counts as one feature. Memory maps are not copied."""
    values = as_tensor("edge_x", array)
    if values.dim() == 1:
        values = values[:, None]
    if values.dim() != 2 or values.shape[0] != edges:
        raise DataError(f"edge_x has the shape {list(values.shape)} for {edges} edges; it must be [{edges}, features].")
    if values.is_complex():
        raise DataError("edge_x holds complex values; give real numbers.")
    values = values.to(torch.float32)
    for start in range(0, edges, _ROWS):
        check_finite("edge_x", values[start : start + _ROWS])
    return values


def merge_parallel(
    edge_x: Tensor, src: Tensor, dst: Tensor, vertices: int, *, both: bool = False, merge: Merge = "mean"
) -> Tensor:
    """float32 [entries, features] in the order of the matrix: rows (dst) ascending, then columns (src).

        Edges 0→1 (2.), 0→1 (4.) and 1→0 (5.) have two entries, 1→0 and then 0→1: with `sum` [[5.], [6.]], with `mean`
        [[5.], [3.]], with `last` [[5.], [4.]], with `count` [[1.], [2.]].

    Args:
        both: each edge stands for both directions (a loop for itself), with the same features.
        merge: what parallel edges become; `count` gives how many there are as the only feature.
    """
    if merge not in get_args(Merge):
        raise DataError(unknown("merge of parallel edges", str(merge), get_args(Merge)))
    source, target = src.long(), dst.long()
    event = torch.arange(source.numel(), device=source.device)
    keys = target * vertices + source
    if both:
        back = source != target
        keys = torch.cat([keys, (source * vertices + target)[back]])
        event = torch.cat([event, event[back]])
    counts: Tensor
    entries, entry, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    if merge == "count":
        return counts.to(torch.float32).unsqueeze(1)
    if merge == "last":
        last = torch.zeros(entries.numel(), dtype=torch.int64, device=event.device)
        return edge_x.index_select(0, last.scatter_reduce_(0, entry, event, "amax"))
    total = edge_x.new_zeros(entries.numel(), edge_x.shape[1]).index_add_(0, entry, edge_x[event])
    return total if merge == "sum" else total / counts[:, None]


def permuted_features(edge_x: Tensor, adjacency: Adjacency, order: Tensor) -> Tensor:
    """The features of a matrix whose rows and columns are put in another order, in the order of its new entries."""
    position = positions_of(order)
    matrix = adjacency.compact()
    target = torch.repeat_interleave(position, matrix.ends - matrix.starts)
    return edge_x[torch.argsort(target * matrix.columns + position[matrix.indices.long()])]
