"""Cluster-GCN in plain PyG: METIS clusters of a graph, batches of their vertices and the edges among them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from trisect.graph.graph import Graph
from trisect.partition import cut_graph


class Net(nn.Module):
    """SAGEConv layers, between them layer norm, relu and dropout."""

    def __init__(self, widths: Sequence[int], p: float) -> None:
        super().__init__()
        from torch_geometric.nn import SAGEConv

        pairs = list(itertools.pairwise(widths))
        self.layers = nn.ModuleList(SAGEConv(i, o, aggr="sum") for i, o in pairs)
        self.norms = nn.ModuleList(nn.LayerNorm(o) for _, o in pairs[:-1])
        self.p = p

    def forward(self, x: Tensor, matrix: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=False):
            x = functional.dropout(norm(layer(x, matrix)).relu(), self.p, self.training)
        out: Tensor = self.layers[-1](x, matrix)
        return out


class Batch:
    """Vertices, their features, labels and training rows, and the means over the neighbours among them."""

    def __init__(self, graph: Graph, vertices: Tensor) -> None:
        number = torch.full((graph.vertices,), -1).index_copy(0, vertices, torch.arange(len(vertices)))
        row, column = graph.adjacency.rows_at(vertices).coordinates()
        column = number[column]
        kept = column >= 0
        row, column = row[kept], column[kept]
        # the form in which PyG is fastest: a sum over a CSR matrix with the weights of a mean
        counts = torch.bincount(row, minlength=len(vertices))
        pointers = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        order = torch.argsort(row * len(vertices) + column)
        weights = counts.clamp(min=1).float().reciprocal()[row]
        self.matrix = torch.sparse_csr_tensor(pointers, column[order], weights, (len(vertices), len(vertices)))
        self.x, y = graph.features()[vertices], graph.y
        assert y is not None
        self.y, self.train = y[vertices], graph.splits["train"][vertices]


class ClusterBatches:
    """The batches of each epoch, some clusters drawn at random for each; those of one cluster are kept.

    Args:
        batches: of an epoch; `clusters` of the graph.
    """

    def __init__(self, graph: Graph, batches: int, clusters: int, seed: int) -> None:
        cut = cut_graph(graph.adjacency, 1, clusters)
        self._graph, self._batches = graph, batches
        self._clusters = [cut.order[a:b] for a, b in zip(cut.starts, cut.starts[1:], strict=False)]
        self._random = torch.Generator().manual_seed(seed)
        self._kept = [Batch(graph, vertices) for vertices in self._clusters] if clusters == batches else None

    def __iter__(self) -> Iterator[Batch]:
        order = torch.randperm(len(self._clusters), generator=self._random).tolist()
        for number in range(self._batches):
            if self._kept is not None:
                yield self._kept[order[number]]
            else:
                yield Batch(self._graph, torch.cat([self._clusters[c] for c in order[number :: self._batches]]))


def trained(
    graph: Graph, hidden: int, *, layers: int, batches: int, clusters: int, lr: float, p: float, seed: int
) -> tuple[Callable[[], None], Callable[[str], float]]:
    """Return an epoch of training, and the accuracy on a split with all edges."""
    torch.manual_seed(seed)
    y = graph.y
    assert y is not None
    model = Net([graph.features().shape[1], *[hidden] * (layers - 1), int(y.max()) + 1], p)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
    loader, whole = ClusterBatches(graph, batches, clusters, seed), Batch(graph, torch.arange(graph.vertices))

    def epoch() -> None:
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.matrix)[batch.train]
            functional.cross_entropy(out, batch.y[batch.train]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    @torch.no_grad()
    def accuracy(split: str) -> float:
        model.eval()
        rows = graph.splits[split]
        return float((model(whole.x, whole.matrix)[rows].argmax(1) == whole.y[rows]).double().mean())

    return epoch, accuracy
