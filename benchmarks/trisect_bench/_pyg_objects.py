"""PyG's own model objects for `trisect bench epoch`: an epoch of plain PyG, and of the same object by `parallelize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from trisect_bench._static_graph import Problem, problem
from trisect_bench._static_peers import csr_tensor, epoch_of

KINDS = {"pyg-gcn": "gcn", "pyg-sage": "sage"}


def model_of(model: str, data: Problem) -> nn.Module:
    """Return `torch_geometric.nn.GCN`, which keeps its normalised edges, or `GraphSAGE`."""
    from torch_geometric import nn as pyg

    torch.manual_seed(0)
    widths = (data.x.shape[1], data.hidden, data.layers, data.classes)
    made: nn.Module
    if model == "pyg-gcn":
        made = pyg.GCN(*widths, dropout=data.dropout, cached=True)
    else:
        made = pyg.GraphSAGE(*widths, dropout=data.dropout)
    return made


def plain(model: str, form: str, **sizes: Any) -> Callable[[], float]:
    """Train the object as PyG's users do.

    Args:
        form: how the graph is given: `edge_index`, or `csr`, torch's sparse tensor of the edges.
    """
    data = problem(KINDS[model], **sizes)
    raw = data.graph.adjacency
    edges = raw.edge_index()
    if form == "csr":
        edges = csr_tensor(raw.pointers(), raw.indices, torch.ones(raw.entries), raw.rows)
    made = model_of(model, data)
    return epoch_of(made, lambda x: made(x, edges), data)


def trisect(model: str, **sizes: Any) -> Callable[[], float]:
    """Train the object in the same loop by `trisect.parallelize`."""
    from trisect import parallelize

    data = problem(KINDS[model], **sizes)
    part = parallelize(model_of(model, data), data.graph)
    optimizer = torch.optim.Adam(part.parameters(), lr=data.lr, fused=True)
    rows = part.rows.train.nonzero()[:, 0]
    targets = part.rows.y[rows] if part.rows.y is not None else rows
    count = part.rows.total("train")

    def epoch() -> float:
        optimizer.zero_grad()
        loss = part.step(lambda out, _: functional.cross_entropy(out[rows], targets, reduction="sum") / count)
        optimizer.step()
        return loss

    return epoch
