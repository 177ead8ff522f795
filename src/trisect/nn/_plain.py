"""The attention kernel in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from trisect.graph.adjacency import Adjacency


def attend(
    x: Tensor, source_score: Tensor, target_score: Tensor, adjacency: Adjacency, negative_slope: float
) -> Tensor:
    """x [columns, heads, channels], source_score [columns, heads], target_score [rows, heads] → [rows, heads,
    channels].
    """
    source, target = adjacency.edge_index()
    score = functional.leaky_relu(source_score[source] + target_score[target], negative_slope)
    index = target[:, None].expand_as(score)
    highest = torch.zeros_like(target_score).scatter_reduce(0, index, score.detach(), "amax", include_self=False)
    weight = torch.exp(score - highest[target])
    total = torch.zeros_like(target_score).index_add(0, target, weight)
    weight = weight / total[target]
    zero = torch.zeros(adjacency.rows, *x.shape[1:], dtype=x.dtype, device=x.device)
    return zero.index_add(0, target, weight[:, :, None] * x[source])
