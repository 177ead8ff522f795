"""The peers of `bench.timeline`: what a user of PyG and torch, or of PyG Temporal, would write."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trisect.graph.adjacency import Adjacency
from trisect_bench._timeline_data import CLASSES, Data, make

LEARNING_RATE = 0.01


def values_of(snapshot: Adjacency) -> Tensor:
    """The weights of the entries."""
    return torch.ones(snapshot.entries) if snapshot.values is None else snapshot.values


def epoch_of(
    model: nn.Module, labels: Tensor, mean_loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy
) -> Callable[[], float]:
    """Forward, cross entropy over all steps and vertices, backward, Adam. The model is called without arguments."""
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    flat = labels.flatten()

    def epoch() -> float:
        optimiser.zero_grad()
        loss = mean_loss(model().flatten(0, 1), flat)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return loss.item()

    return epoch


class _CDGCN(nn.Module):
    """PyG's GCNConv in each snapshot (torch CSR, normalised beforehand), then torch's LSTM."""

    def __init__(self, data: Data, hidden: int, layers: int) -> None:
        from torch_geometric.nn import GCNConv

        super().__init__()
        self.x = data.x
        self.matrices = [
            torch.sparse_csr_tensor(
                torch.cat((snapshot.starts, snapshot.ends[-1:])),
                snapshot.indices.long(),
                values_of(snapshot),
                snapshot.shape,
                check_invariants=False,
            )
            for snapshot in data.snapshots
        ]
        widths = [data.x.shape[2], *[hidden] * layers]
        self.convs = nn.ModuleList(GCNConv(before, after, normalize=False) for before, after in pairwise(widths))
        self.lstms = nn.ModuleList(nn.LSTM(before + hidden, hidden) for before in widths[:-1])
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self) -> Tensor:
        x = self.x
        for conv, lstm in zip(self.convs, self.lstms, strict=True):
            y = torch.stack([conv(frame, matrix).relu_() for frame, matrix in zip(x, self.matrices, strict=True)])
            x, _ = lstm(torch.cat((y, x), 2))
        result: Tensor = self.head(x)
        return result


def cd_gcn(hidden: int, layers: int = 2, **sizes: Any) -> Callable[[], float]:
    """CD-GCN out of PyG's GCNConv and torch.nn.LSTM."""
    data = make(**sizes)
    return epoch_of(_CDGCN(data, hidden, layers), data.labels)


class _EvolveGCN(nn.Module):
    """PyG Temporal's EvolveGCNO, whose weights are square: a linear layer widens between the first and the second."""

    def __init__(self, data: Data, hidden: int, layers: int) -> None:
        super().__init__()
        evolve = evolvegcno()
        self.x = data.x
        self.edges = [snapshot.edge_index() for snapshot in data.snapshots]
        self.values = [values_of(snapshot) for snapshot in data.snapshots]
        features = data.x.shape[2]
        self.convs: Any = nn.ModuleList(
            evolve(hidden if number else features, normalize=False) for number in range(layers)
        )
        self.widen = nn.Linear(features, hidden)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self) -> Tensor:
        for conv in self.convs:
            conv.reinitialize_weight()
        outputs = []
        for x, edges, values in zip(self.x, self.edges, self.values, strict=True):
            for number, conv in enumerate(self.convs):
                x = conv(x, edges, values)
                x = functional.leaky_relu(self.widen(x) if number == 0 else x, 11 / 48)
            outputs.append(x)
        result: Tensor = self.head(torch.stack(outputs))
        return result


def evolvegcn_o(hidden: int, layers: int = 2, **sizes: Any) -> Callable[[], float]:
    """Train EvolveGCN-O by PyG Temporal."""
    data = make(**sizes)
    return epoch_of(_EvolveGCN(data, hidden, layers), data.labels)


def evolvegcno() -> Any:
    """PyG Temporal's class. Its package imports torch_sparse and data sets that it does not need for this; where they
    are missing, its own module is loaded alone, with PyG's stand-in for the sparse type.
    """
    try:
        return importlib.import_module("torch_geometric_temporal.nn.recurrent").EvolveGCNO
    except ImportError:
        pass
    spec = importlib.machinery.PathFinder.find_spec("torch_geometric_temporal")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("torch_geometric_temporal is not installed")
    from torch_geometric.typing import SparseTensor

    stub = types.ModuleType("torch_sparse")
    stub.SparseTensor = SparseTensor  # type: ignore[attr-defined]
    path = f"{spec.submodule_search_locations[0]}/nn/recurrent/evolvegcno.py"
    loader = importlib.machinery.SourceFileLoader("trisect_bench_evolvegcno", path)
    module = types.ModuleType(loader.name)
    module.__file__ = path
    # PyG reads the source of a message passing class through its module
    sys.modules[loader.name] = module
    missing = "torch_sparse" not in sys.modules
    if missing:
        sys.modules["torch_sparse"] = stub
    try:
        loader.exec_module(module)
    finally:
        if missing:
            del sys.modules["torch_sparse"]
    return module.EvolveGCNO
