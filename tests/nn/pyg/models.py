"""Models of torch_geometric.nn, and of users of it, as they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg
from torch_geometric.utils import add_self_loops, degree
from zoo import CLASSES, DEGREES, data, gradients, kept, loss

import trisect

IN, HIDDEN = 5, 8
SIZES = {"in_channels": IN, "hidden_channels": HIDDEN, "num_layers": 3, "out_channels": CLASSES}
PNA = {"aggregators": ["mean", "max"], "scalers": ["identity", "amplification"], "deg": DEGREES}


class ByHand(nn.Module):
    """Message passing without a class of PyG: the mean over neighbours of the tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for linear in (self.first, self.second):
            edges, _ = add_self_loops(edge_index, num_nodes=x.size(0))
            row, col = edges
            root = degree(col, x.size(0), dtype=x.dtype).pow(-0.5)
            x = linear(x)
            messages = (root[row] * root[col])[:, None] * x[row]
            x = torch.zeros_like(x).index_add_(0, col, messages).tanh()
        return x


class Deep(nn.Module):
    """The layers of DeepGCN: norms, activations, residuals, and a norm behind."""

    def __init__(self, block: str = "res+") -> None:
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, CLASSES), pyg.GraphNorm(HIDDEN)
        self.layers = nn.ModuleList(
            pyg.DeepGCNLayer(
                pyg.GENConv(HIDDEN, HIDDEN, aggr="softmax", learn_t=True, norm="layer"),
                nn.BatchNorm1d(HIDDEN),
                nn.ReLU(),
                block,
                0.2,
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, edge_index)
        return self.last(self.norm(x))


class Normed(nn.Module):
    """A convolution, a norm over vertices, and a readout that all vertices read."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.out = pyg.GraphConv(IN, HIDDEN), norm, nn.Linear(5 * HIDDEN, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.norm(self.conv(x, edge_index))
        means, sums = pyg.global_mean_pool(x, batch), pyg.global_add_pool(x.tanh(), None) / 40
        everyone = torch.cat([means, sums, x.std(dim=0, keepdim=True), x.var(0)[None]], 1)
        return self.out(torch.cat([x.relu(), everyone.expand(x.shape[0], -1)], 1))


class Mixed(nn.Module):
    """Convolutions of many kinds, with attention dropout, functional dropout and jumping knowledge."""

    def __init__(self) -> None:
        super().__init__()
        wide = {"heads": 2, "concat": False, "dropout": 0.3}
        self.convs = nn.ModuleList(
            [
                pyg.GCNConv(IN, HIDDEN),
                pyg.GATConv(HIDDEN, HIDDEN, **wide),
                pyg.TransformerConv(HIDDEN, HIDDEN, **wide),
                pyg.ARMAConv(HIDDEN, HIDDEN, num_stacks=2, dropout=0.2),
                pyg.APPNP(2, 0.1, dropout=0.2),
            ]
        )
        self.jump, self.out = pyg.JumpingKnowledge("lstm", HIDDEN, 2), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        xs = []
        for conv in self.convs:
            x = functional.dropout(conv(x, edge_index).relu(), 0.2, self.training)
            xs.append(x)
        return self.out(self.jump(xs))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "GCN": lambda: pyg.GCN(**SIZES, norm="batch", jk="cat"),
    "GCN(edge weights)": lambda: pyg.GCN(**SIZES),
    "GCN(no weights)": lambda: pyg.GCN(**SIZES, normalize=False),
    "GraphSAGE": lambda: pyg.GraphSAGE(**SIZES, norm="graph_norm", jk="max"),
    "GAT": lambda: pyg.GAT(**SIZES, heads=2, norm="pair_norm", jk="lstm"),
    "GAT(v2)": lambda: pyg.GAT(**SIZES, v2=True, heads=2, norm="layer_norm"),
    "GIN": lambda: pyg.GIN(**SIZES, norm="batch", train_eps=True),
    "PNA": lambda: pyg.PNA(**SIZES, **PNA, norm="batch"),
    "EdgeCNN": lambda: pyg.EdgeCNN(**SIZES, norm="instance_norm"),
    "DeepGCN(res+)": lambda: Deep(),
    "Sequential": lambda: pyg.Sequential(
        "x, edge_index",
        [
            (pyg.GCNConv(IN, HIDDEN), "x, edge_index -> x"),
            nn.ReLU(),
            (pyg.ChebConv(HIDDEN, CLASSES, 2), "x, edge_index -> x"),
        ],
    ),
    "by hand": ByHand,
    "BatchNorm": lambda: Normed(pyg.BatchNorm(HIDDEN, momentum=None)),
    "GraphNorm": lambda: Normed(pyg.GraphNorm(HIDDEN)),
    "InstanceNorm": lambda: Normed(pyg.InstanceNorm(HIDDEN, track_running_stats=True)),
    "PairNorm": lambda: Normed(pyg.PairNorm()),
    "MeanSubtractionNorm": lambda: Normed(pyg.MeanSubtractionNorm()),
    "DiffGroupNorm": lambda: Normed(pyg.DiffGroupNorm(HIDDEN, 3)),
    "LayerNorm(graph)": lambda: Normed(pyg.LayerNorm(HIDDEN, mode="graph")),
}
CHANCY: dict[str, Callable[[], nn.Module]] = {
    "GCN": lambda: pyg.GCN(**SIZES, dropout=0.4, norm="batch"),
    "GraphSAGE": lambda: pyg.GraphSAGE(**SIZES, dropout=0.4),
    "GAT": lambda: pyg.GAT(**SIZES, dropout=0.4, heads=2),
    "DeepGCN": Deep,
    "many": Mixed,
}


def made(kinds: dict[str, Callable[[], nn.Module]], name: str) -> nn.Module:
    torch.manual_seed(3)
    return kinds[name]()


def given(name: str) -> Any:
    graph = data()
    if "weights" not in name or "no" in name:
        del graph.edge_weight
    del graph.edge_attr
    return graph


def wanted(name: str) -> dict[str, Tensor]:
    """The gradients of plain PyG, and what it keeps."""
    net, graph = made(MODELS, name).double(), given(name)
    for layer in net.modules():
        if isinstance(layer, pyg.DeepGCNLayer):
            layer.dropout = 0.0
    more = {"batch": torch.zeros(40, dtype=torch.int64)} if isinstance(net, Normed) else {}
    if graph.edge_weight is not None:
        more["edge_weight"] = graph.edge_weight.double()
    functional.cross_entropy(net(graph.x.double(), graph.edge_index, **more), graph.y).backward()  # type: ignore[no-untyped-call]
    return {**gradients(net.named_parameters()), **kept(net.state_dict())}


def trained(layout: str, name: str) -> dict[str, Tensor]:
    """What a step leaves, without dropout."""
    net = made(MODELS, name)
    for layer in net.modules():
        if isinstance(layer, pyg.DeepGCNLayer):
            layer.dropout = 0.0
    part = trisect.parallelize(net, given(name), layout, precision="float64")
    part.step(loss)
    return {**gradients(part.named_parameters()), **kept(part.state_dict())}


def with_chance(layout: str, name: str) -> dict[str, Tensor]:
    """What three steps with dropout leave, and exact outputs behind them."""
    part = trisect.parallelize(made(CHANCY, name), given(""), layout, precision="float64")
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(part.step(loss))
        optimizer.step()
    norms = part.evaluate(lambda out, rows: {"square": float((out**2).sum())})
    state = {name: value for name, value in part.state_dict().items() if value.is_floating_point()}
    return {**state, "losses": torch.tensor(losses), "square": torch.tensor(norms["square"])}


def all_of(layout: str) -> dict[str, Any]:
    """Of all models, in one world of ranks."""
    recomputed = "GCN"
    return {
        **{f"trained {name}": trained(layout, name) for name in MODELS},
        **{f"chance {name}": with_chance(layout, name) for name in CHANCY},
        "recomputed": trained(f"{layout},recompute=true", recomputed),
    }


def exported(layout: str) -> dict[str, Any]:
    """The user's own module after training, called as plain PyG."""
    net, graph = made(MODELS, "GCN"), given("")
    part = trisect.parallelize(net, graph, layout, precision="float64")
    optimizer = torch.optim.AdamW(part.parameters(), lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        part.step(loss)
        optimizer.step()
    net.eval()
    with torch.no_grad():
        plain = net(graph.x.double(), graph.edge_index)
    own, state = part.predict(), part.state_dict()
    return {
        "plain": plain[part.vertices],
        "own": own,
        "same names": list(state) == list(net.state_dict()),
        "same values": all(torch.equal(value, net.state_dict()[name]) for name, value in state.items()),
        "classes": [type(module).__module__ for module in net.modules()],
    }
