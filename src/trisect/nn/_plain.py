"""Attention and recurrent kernels in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from trisect.graph.adjacency import Adjacency
from trisect.nn.edges import edge_list


def attend(
    x: Tensor, source_score: Tensor, target_score: Tensor, adjacency: Adjacency, negative_slope: float
) -> Tensor:
    """x [columns, heads, channels], source_score [columns, heads], target_score [rows, heads] → [rows, heads,
    channels].
    """
    edges = edge_list(adjacency)
    source, target = edges[0], edges[1]
    score = functional.leaky_relu(source_score[source] + target_score[target], negative_slope)
    index = target[:, None].expand_as(score)
    highest = torch.zeros_like(target_score).scatter_reduce(0, index, score.detach(), "amax", include_self=False)
    weight = torch.exp(score - highest[target])
    total = torch.zeros_like(target_score).index_add(0, target, weight)
    weight = weight / total[target]
    zero = torch.zeros(adjacency.rows, *x.shape[1:], dtype=x.dtype, device=x.device)
    return zero.index_add(0, target, weight[:, :, None] * x[source])


def lstm(
    frames: Sequence[Tensor], h: Tensor, c: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """frames [steps, rows, F_k] side by side → (h of all steps [steps, rows, hidden], last h, last c)."""
    outputs = []
    for t in range(frames[0].shape[0]):
        x = torch.cat([frame[t] for frame in frames], 1)
        gates = functional.linear(x, weight_ih, bias) + functional.linear(h, weight_hh)
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs), h, c


def gru(
    frames: Sequence[Tensor], h: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> tuple[Tensor, Tensor]:
    """frames [steps, rows, F_k] side by side → (h of all steps [steps, rows, hidden], last h)."""
    outputs = []
    for t in range(frames[0].shape[0]):
        x = torch.cat([frame[t] for frame in frames], 1)
        reset_x, update_x, new_x = functional.linear(x, weight_ih, bias_ih).chunk(3, 1)
        reset_h, update_h, new_h = functional.linear(h, weight_hh, bias_hh).chunk(3, 1)
        update = torch.sigmoid(update_x + update_h)
        new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
        h = (1.0 - update) * new + update * h
        outputs.append(h)
    return torch.stack(outputs), h
