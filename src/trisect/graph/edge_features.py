"""Features of edges beside a matrix: checked, merged where edges are parallel, and kept in the order of its entries."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from trisect.errors import DataError, unknown
from trisect.graph.adjacency import Adjacency
from trisect.graph.check import as_tensor, check_finite, positions_of

Merge = Literal["sum", "mean", "last", "count", "relations"]
_MERGES = tuple(merge for merge in get_args(Merge) if merge != "relations")
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


def check_merge(merge: str) -> Merge:
    """Refuse a way to merge the features of parallel edges that does not exist."""
    if merge not in _MERGES:
        raise DataError(unknown("merge of parallel edges", str(merge), _MERGES))
    return merge  # type: ignore[return-value]


def merged_channels(edge_x: Tensor | None, merge: Merge) -> int:
    """Give how many features an entry has after merging; 0 where edges have none."""
    if edge_x is None:
        return 0
    return 1 if merge == "count" else edge_x.shape[1]


def both_ways(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """List each edge in both directions, a loop once: sources, targets, and which edge each is, ascending."""
    back = torch.nonzero(source != target)[:, 0]
    edge = torch.cat([torch.arange(source.numel(), device=source.device), back])
    order = torch.argsort(edge, stable=True)
    edge = edge[order]
    sources, targets = torch.cat([source, target[back]])[order], torch.cat([target, source[back]])[order]
    return sources, targets, edge


def merge_parallel(
    edge_x: Tensor, src: Tensor, dst: Tensor, vertices: int, *, both: bool = False, merge: Merge = "mean"
) -> Tensor:
    """float32 [entries, features] in the order of the matrix: rows (dst) ascending, then columns (src).

        Edges 0→1 (2.), 0→1 (4.) and 1→0 (5.) have two entries, 1→0 and then 0→1: with `sum` [[5.], [6.]], with `mean`
        [[5.], [3.]], with `last` [[5.], [4.]], with `count` [[1.], [2.]].

    Args:
        both: each edge stands for both directions (a loop for itself), with the same features.
        merge: what parallel edges become; `count` gives how many there are as the only feature; `relations` is their
            sum, where features are weights in relations (see `graph.relations`).
    """
    source, target = src.long(), dst.long()
    edge = None
    if both:
        source, target, edge = both_ways(source, target)
    keys = target * vertices + source
    entries, entry = torch.unique(keys, return_inverse=True)
    chosen = merge if merge == "relations" else check_merge(merge)
    return _merged(edge_x, entry, edge, entries.numel(), chosen)[0].to(torch.float32)


def with_entry_features(
    matrix: Adjacency,
    edge_x: Tensor,
    src: Tensor,
    dst: Tensor,
    merge: Merge,
    *,
    both: bool = False,
    dtype: torch.dtype | None = None,
) -> Adjacency:
    """Give the matrix with the features of its entries, merged from those of edges src → dst of its columns and rows.

    A loop that normalisation has added gets the mean of its row's other entries, as PyG's `fill_value="mean"`, and
    zeros where there are none. A row's features depend on its own edges alone, so that a cut does not change them.

    Args:
        matrix: contiguous entries, among them all of these edges.
        both: each edge stands for both directions (a loop for itself).
        dtype: of the features; by default that of the matrix.
    """
    source, target, edge = src.long(), dst.long(), None
    if both:
        source, target, edge = both_ways(source, target)
    row, column = matrix.coordinates()
    entry = torch.searchsorted(row * matrix.columns + column, target * matrix.columns + source)
    features, counts = _merged(edge_x, entry, edge, row.numel(), merge)
    features = features.to(matrix.dtype if dtype is None else dtype)
    added = torch.nonzero(counts == 0)[:, 0]
    if added.numel() and merge != "relations":  # a loop that was added belongs to none
        sums = torch.zeros(matrix.rows, features.shape[1], dtype=torch.float64, device=features.device)
        sums.index_add_(0, row, features.double())
        others = (matrix.ends - matrix.starts).index_select(0, row[added]) - 1
        means = sums.index_select(0, row[added]) / others.clamp(min=1)[:, None]
        features.index_copy_(0, added, means.to(features.dtype))
    return matrix.with_features(features)


def _merged(edge_x: Tensor, entry: Tensor, edge: Tensor | None, entries: int, merge: Merge) -> tuple[Tensor, Tensor]:
    """Merge the features of edges by the entry that each belongs to; beside them, how many edges an entry has.

    Sums are taken in float64, edge after edge, so that they are the same wherever an entry's edges are.
    """
    counts = torch.bincount(entry, minlength=entries)
    if merge == "count":
        return counts.to(torch.float64).unsqueeze(1), counts
    if merge == "last" or not bool((counts > 1).any()):
        last = torch.arange(entry.numel(), device=entry.device) if edge is None else edge
        chosen = torch.zeros(entries, dtype=torch.int64, device=entry.device).scatter_reduce_(0, entry, last, "amax")
        features = edge_x.index_select(0, chosen) if edge_x.shape[0] else edge_x.new_zeros(entries, edge_x.shape[1])
        return features.masked_fill_((counts == 0)[:, None], 0.0), counts
    total = torch.zeros(entries, edge_x.shape[1], dtype=torch.float64, device=edge_x.device)
    total.index_add_(0, entry, (edge_x if edge is None else edge_x.index_select(0, edge)).double())
    return total if merge in ("sum", "relations") else total.div_(counts.clamp(min=1)[:, None]), counts


def permuted_features(edge_x: Tensor, adjacency: Adjacency, order: Tensor) -> Tensor:
    """The features of a matrix whose rows and columns are put in another order, in the order of its new entries."""
    position = positions_of(order)
    matrix = adjacency.compact()
    target = torch.repeat_interleave(position, matrix.ends - matrix.starts)
    return edge_x[torch.argsort(target * matrix.columns + position[matrix.indices.long()])]
