"""The batches of a rank: its model's normalisation on matrices that edges were left out of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.graph.build import inverse_root, normalise, row_sums, scale
from trisect.nn.models.source import AnyModel
from trisect.shards.shard import Shard
from trisect.views.batch import Renormalise
from trisect.views.batches import Batches
from trisect.views.door import Door
from trisect.views.history import Boards


def make_batches(shard: Shard, model: AnyModel, door: Door, boards: Boards | None) -> Batches:
    """Return the batches of a rank, whose rows outside come from boards; without them they are left out."""
    graph = shard.part_graph(0)
    renormalise: Renormalise | None = None
    if model.normalisation == "row":
        renormalise = _by_row
    elif model.normalisation == "symmetric":
        renormalise = partial(_symmetric, shard.sums())
    return Batches(graph, door, boards, shard.column_ids(0), None if boards is not None else renormalise)


def _by_row(matrix: Adjacency, columns: Tensor, spread: Callable[[Tensor], Tensor]) -> Adjacency:
    """Divide each row by the sum of what is left of it: D⁻¹A of the edges inside."""
    return normalise(matrix, "row", self_loops=False)


def _symmetric(sums: Tensor, matrix: Adjacency, columns: Tensor, spread: Callable[[Tensor], Tensor]) -> Adjacency:
    """Return D^-1/2 A D^-1/2 of the edges inside, from that of the whole graph.

    Args:
        sums: of the rows of A, float64 [columns of the part].
    """
    root = torch.where(sums > 0, sums, torch.ones_like(sums)).sqrt()[columns]
    weights = scale(matrix, root[: matrix.rows].contiguous(), root)
    inside = spread(inverse_root(row_sums(weights))[:, None])[:, 0].contiguous()
    return scale(weights, inside[: matrix.rows].contiguous(), inside)
