"""The static models of `trisect bench epoch` as others have them: PyG's layers, and torch's CSR product with Linear."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trisect.errors import ConfigError
from trisect_bench._static_graph import Problem, problem


def epoch_of(model: nn.Module, call: Callable[[Tensor], Tensor], data: Problem) -> Callable[[], float]:
    """Forward, loss on the training rows, backward, Adam: the usual loop, with torch's fused Adam."""
    optimiser = torch.optim.Adam(model.parameters(), lr=data.lr, fused=True)
    rows = data.train.nonzero()[:, 0]
    targets = data.y[rows]

    def epoch() -> float:
        model.train()
        optimiser.zero_grad()
        loss = functional.cross_entropy(call(data.x)[rows], targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return float(loss.detach())

    return epoch


def _epoch(model: nn.Module, data: Problem) -> Callable[[], float]:
    return epoch_of(model, model, data)


class _Stack(nn.Module):
    """Layers with an activation and dropout between them. `call` hands a layer its input and the graph."""

    def __init__(
        self,
        layers: list[nn.Module],
        call: Callable[[nn.Module, Tensor], Tensor],
        p: float,
        activation: Callable[[Tensor], Tensor] = torch.relu,
    ) -> None:
        super().__init__()
        self.layers, self.call, self.p, self.activation = nn.ModuleList(layers), call, p, activation

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = functional.dropout(self.activation(self.call(layer, x)), self.p, self.training)
        return self.call(self.layers[-1], x)


class _Deep(nn.Module):
    """GCNII: a linear layer in, layers that read its output, a linear layer out."""

    def __init__(
        self,
        data: Problem,
        layers: list[nn.Module],
        call: Callable[[nn.Module, Tensor, Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.first = nn.Linear(data.x.shape[1], data.hidden)
        self.layers, self.call, self.p = nn.ModuleList(layers), call, data.dropout
        self.last = nn.Linear(data.hidden, data.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = h0 = self.first(x).relu()
        x = functional.dropout(x, self.p, self.training)
        for layer in self.layers:
            x = functional.dropout(self.call(layer, x, h0).relu(), self.p, self.training)
        logits: Tensor = self.last(x)
        return logits


def csr_tensor(indptr: Tensor, indices: Tensor, values: Tensor, vertices: int) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.sparse_csr_tensor(indptr.long(), indices.long(), values, (vertices, vertices))


def pyg(model: str, form: str, **sizes: Any) -> Callable[[], float]:
    """PyG's GCNConv, SAGEConv or GCN2Conv, normalised once, outside.

    Args:
        form: how the graph is given: `csr` (torch's sparse CSR tensor), `csr-sum` (SAGE only: a sum over a matrix with
            the mean's weights), `sparse` (torch-sparse's SparseTensor), `edge_index`.
    """
    from torch_geometric.nn import GCN2Conv, GCNConv, SAGEConv

    torch.manual_seed(0)
    data = problem(model, **sizes)
    indptr, indices, values = data.csr()
    vertices, graph, weight, aggr = data.x.shape[0], None, None, "mean"
    row = torch.repeat_interleave(torch.arange(vertices), indptr.diff())
    if form in ("csr", "csr-sum"):
        aggr = "sum" if form == "csr-sum" else "mean"
        ones = model == "sage" and form == "csr"
        graph = csr_tensor(indptr, indices, torch.ones_like(values) if ones else values, vertices)
    elif form == "sparse":
        from torch_sparse import SparseTensor

        held = None if model == "sage" else values
        graph = SparseTensor(rowptr=indptr.long(), col=indices.long(), value=held, sparse_sizes=(vertices, vertices))
        graph.fill_cache_()
    elif form == "edge_index":
        graph, weight = torch.stack([indices.long(), row]), None if model == "sage" else values
    else:
        raise ConfigError(f"the form of PyG's graph is {form!r}; choose csr, csr-sum, sparse or edge_index.")
    more = () if weight is None else (weight,)
    if model == "gcnii":
        layers = [GCN2Conv(data.hidden, 0.1, 0.5, number, normalize=False) for number in range(1, data.layers + 1)]
        return _epoch(_Deep(data, layers, lambda layer, x, h0: layer(x, h0, graph, *more)), data)
    layers = [GCNConv(i, o, normalize=False) if model == "gcn" else SAGEConv(i, o, aggr=aggr) for i, o in data.widths()]
    return _epoch(_Stack(layers, lambda layer, x: layer(x, graph, *more), data.dropout), data)


def pyg_edges(model: str, heads: int, **sizes: Any) -> Callable[[], float]:
    """PyG's GATv2Conv with edge_dim: heads side by side, of which the last layer has one."""
    from torch_geometric.nn import GATv2Conv

    torch.manual_seed(0)
    data = problem(model, **sizes)
    index, features = data.edges()
    edges = {"edge_dim": features.shape[1], "add_self_loops": False}
    *inner, last = data.widths()
    layers: list[nn.Module] = [GATv2Conv(i, o // heads, heads=heads, **edges) for i, o in inner]
    layers.append(GATv2Conv(*last, **edges))
    call: Callable[[nn.Module, Tensor], Tensor] = lambda layer, x: layer(x, index, features)  # noqa: E731
    return _epoch(_Stack(layers, call, data.dropout, functional.elu), data)


class _Twice(nn.Module):
    """W·(Â·x) + W_root·x + b."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.neighbours = nn.Linear(inputs, outputs)
        self.root = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        result: Tensor = graph @ self.neighbours(x) + self.root(x)
        return result


def plain(model: str, **sizes: Any) -> Callable[[], float]:
    """Train what one writes in an afternoon: torch's CSR product and `nn.Linear`."""
    torch.manual_seed(0)
    data = problem(model, **sizes)
    graph = csr_tensor(*data.csr(), data.x.shape[0])
    if model == "gcnii":
        layers: list[nn.Module] = [nn.Linear(data.hidden, data.hidden, bias=False) for _ in range(data.layers)]
        theta = {id(layer): math.log(0.5 / (number + 1) + 1.0) for number, layer in enumerate(layers)}

        def deep(layer: nn.Module, x: Tensor, h0: Tensor) -> Tensor:
            support = 0.9 * (graph @ x) + 0.1 * h0
            return torch.lerp(support, layer(support), theta[id(layer)])

        return _epoch(_Deep(data, layers, deep), data)
    if model == "gcn":
        made: list[nn.Module] = [nn.Linear(i, o) for i, o in data.widths()]
        return _epoch(_Stack(made, lambda layer, x: graph @ layer(x), data.dropout), data)
    made = [_Twice(i, o) for i, o in data.widths()]
    return _epoch(_Stack(made, lambda layer, x: layer(x, graph), data.dropout), data)
