"""Every convolution of torch_geometric.nn that is called as conv(x, edge_index): how it is made, by its name.

Each reads 6 channels and gives 4, in a model with a layer before and behind it, so that gradients cross it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg
from torch_geometric.data import Data

import trisect

IN, OUT, EDGE, VERTICES, CLASSES = 6, 4, 3, 40, 3
DEGREES = torch.tensor([1, 2, 5, 9, 10, 8, 3, 2])


def mlp(inputs: int = IN, outputs: int = OUT, *, norm: bool = False) -> nn.Sequential:
    between = [nn.BatchNorm1d(8)] if norm else []
    return nn.Sequential(nn.Linear(inputs, 8), *between, nn.ReLU(), nn.Linear(8, outputs))


def pna(**options: Any) -> nn.Module:
    scalers = ["identity", "amplification", "attenuation"]
    return pyg.PNAConv(IN, OUT, ["mean", "max", "std"], scalers, deg=DEGREES, **options)


# each is called as conv(x, edge_index)
PLAIN: dict[str, Callable[[], nn.Module]] = {
    "AGNNConv": lambda: pyg.AGNNConv(),
    "APPNP": lambda: pyg.APPNP(3, 0.1),
    "ARMAConv": lambda: pyg.ARMAConv(IN, OUT, num_stacks=2, num_layers=2),
    "AntiSymmetricConv": lambda: pyg.AntiSymmetricConv(IN, num_iters=2),
    "CGConv": lambda: pyg.CGConv(IN, batch_norm=True),
    "ChebConv": lambda: pyg.ChebConv(IN, OUT, 3),
    "ClusterGCNConv": lambda: pyg.ClusterGCNConv(IN, OUT, diag_lambda=0.5),
    "DirGNNConv": lambda: pyg.DirGNNConv(pyg.SAGEConv(IN, OUT)),
    "EGConv": lambda: pyg.EGConv(IN, OUT, ["symnorm", "mean", "max", "std"], num_heads=2),
    "EdgeConv": lambda: pyg.EdgeConv(mlp(2 * IN, norm=True)),
    "FeaStConv": lambda: pyg.FeaStConv(IN, OUT, heads=2),
    "FiLMConv": lambda: pyg.FiLMConv(IN, OUT),
    "GATConv": lambda: pyg.GATConv(IN, 2, heads=2),
    "GATv2Conv": lambda: pyg.GATv2Conv(IN, 2, heads=2),
    "GCNConv": lambda: pyg.GCNConv(IN, OUT),
    "GCNConv(improved, cached)": lambda: pyg.GCNConv(IN, OUT, improved=True, cached=True),
    "GENConv": lambda: pyg.GENConv(IN, OUT, learn_t=True, norm="batch"),
    "GINConv": lambda: pyg.GINConv(mlp(norm=True), train_eps=True),
    "GMMConv(edge_attr)": lambda: pyg.GMMConv(IN, OUT, EDGE, 2),
    "GINEConv(edge_attr)": lambda: pyg.GINEConv(mlp(), edge_dim=EDGE),
    "GATConv(edge_attr)": lambda: pyg.GATConv(IN, 2, heads=2, edge_dim=EDGE),
    "GATv2Conv(edge_attr)": lambda: pyg.GATv2Conv(IN, 2, heads=2, edge_dim=EDGE),
    "GENConv(edge_attr)": lambda: pyg.GENConv(IN, OUT, edge_dim=EDGE, aggr="powermean", learn_p=True),
    "CGConv(edge_attr)": lambda: pyg.CGConv(IN, EDGE),
    "GatedGraphConv": lambda: pyg.GatedGraphConv(IN, 2),
    "GeneralConv": lambda: pyg.GeneralConv(IN, OUT, attention=True, heads=2, l2_normalize=True),
    "GeneralConv(edge_attr)": lambda: pyg.GeneralConv(IN, OUT, in_edge_channels=EDGE),
    "GraphConv": lambda: pyg.GraphConv(IN, OUT, aggr="max"),
    "GCN2Conv": lambda: Initial(pyg.GCN2Conv(IN, 0.2, 0.5, 1)),
    "FAConv": lambda: Initial(pyg.FAConv(IN, 0.2)),
    "DNAConv": lambda: Stacked(pyg.DNAConv(IN, heads=2)),
    "HypergraphConv": lambda: pyg.HypergraphConv(IN, OUT),
    "LEConv": lambda: pyg.LEConv(IN, OUT),
    "LGConv": lambda: pyg.LGConv(),
    "MFConv": lambda: pyg.MFConv(IN, OUT, max_degree=4),
    "MixHopConv": lambda: pyg.MixHopConv(IN, 2, [0, 1, 2]),
    "NNConv(edge_attr)": lambda: pyg.NNConv(IN, OUT, mlp(EDGE, IN * OUT)),
    "PANConv": lambda: First(pyg.PANConv(IN, OUT, 2)),
    "PDNConv(edge_attr)": lambda: pyg.PDNConv(IN, OUT, EDGE, 8),
    "PNAConv": lambda: pna(towers=2),
    "PNAConv(edge_attr)": lambda: pna(edge_dim=EDGE),
    "PPFConv": lambda: Posed(pyg.PPFConv(mlp(IN + 4, 8), mlp(8)), normal=True),
    "PointGNNConv": lambda: Posed(pyg.PointGNNConv(mlp(IN, 3), mlp(3 + IN, 8), mlp(8, IN))),
    "PointNetConv": lambda: Posed(pyg.PointNetConv(mlp(IN + 3, 8), mlp(8))),
    "PointTransformerConv": lambda: Posed(pyg.PointTransformerConv(IN, OUT)),
    "GravNetConv": lambda: Alone(pyg.GravNetConv(IN, OUT, 2, 3, 4)),
    "DynamicEdgeConv": lambda: Alone(pyg.DynamicEdgeConv(mlp(2 * IN), 4)),
    "XConv": lambda: Posed(pyg.XConv(IN, OUT, 3, 4), edges=False),
    "GPSConv": lambda: pyg.GPSConv(IN, pyg.SAGEConv(IN, IN), heads=2),
    "ResGatedGraphConv": lambda: pyg.ResGatedGraphConv(IN, OUT),
    "ResGatedGraphConv(edge_attr)": lambda: pyg.ResGatedGraphConv(IN, OUT, edge_dim=EDGE),
    "RGCNConv": lambda: Typed(pyg.RGCNConv(IN, OUT, 2)),
    "FastRGCNConv": lambda: Typed(pyg.FastRGCNConv(IN, OUT, 2)),
    "RGATConv": lambda: Typed(pyg.RGATConv(IN, OUT, 2)),
    "SAGEConv": lambda: pyg.SAGEConv(IN, OUT),
    "SAGEConv(max, project)": lambda: pyg.SAGEConv(IN, OUT, "max", normalize=True, project=True),
    "SAGEConv(softmax, std, median)": lambda: pyg.SAGEConv(IN, OUT, aggr=["softmax", "std", "median"]),
    "SAGEConv(lstm)": lambda: pyg.SAGEConv(IN, OUT, aggr="lstm"),
    "SimpleConv(sort)": lambda: pyg.SimpleConv(pyg.SortAggregation(2)),
    "SGConv": lambda: pyg.SGConv(IN, OUT, K=2),
    "SSGConv": lambda: pyg.SSGConv(IN, OUT, 0.2, K=2),
    "SignedConv": lambda: Signed(pyg.SignedConv(IN, OUT, first_aggr=True)),
    "SimpleConv": lambda: pyg.SimpleConv("mean", "cat"),
    "SplineConv": lambda: pyg.SplineConv(IN, OUT, EDGE, 2),
    "SuperGATConv": lambda: pyg.SuperGATConv(IN, 2, heads=2),
    "TAGConv": lambda: pyg.TAGConv(IN, OUT, K=2),
    "TransformerConv": lambda: pyg.TransformerConv(IN, 2, heads=2, beta=True),
    "TransformerConv(edge_attr)": lambda: pyg.TransformerConv(IN, 2, heads=2, edge_dim=EDGE),
    "WLConvContinuous": lambda: pyg.WLConvContinuous(),
}

# these read weights of edges too
WEIGHTED: dict[str, Callable[[], nn.Module]] = {
    f"{name}(edge_weight)": PLAIN[name]
    for name in (
        "APPNP",
        "ARMAConv",
        "ChebConv",
        "GCN2Conv",
        "GCNConv",
        "GatedGraphConv",
        "GraphConv",
        "LEConv",
        "LGConv",
        "MixHopConv",
        "SGConv",
        "SSGConv",
        "SimpleConv",
        "TAGConv",
        "WLConvContinuous",
    )
}
ZOO = {**PLAIN, **WEIGHTED}


class Initial(nn.Module):
    """conv(x, x0, edge_index)."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        return self.conv(x, x.tanh(), *edges)


class First(Initial):
    """A convolution that returns its matrix too."""

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        return self.conv(x, *edges)[0]


class Alone(Initial):
    """A convolution that finds its edges itself."""

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        return self.conv(x)


class Stacked(Initial):
    """conv([rows, layers, channels], edge_index)."""

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        return self.conv(torch.stack([x, x.tanh()], 1), *edges)


class Typed(Initial):
    """conv(x, edge_index, edge_type), of one type."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index, torch.zeros_like(edge_index[0]))


class Signed(Initial):
    """conv(x, positive edges, negative edges)."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index, edge_index)


class Posed(nn.Module):
    """conv(x, pos, …), where the first features are positions."""

    def __init__(self, conv: nn.Module, *, normal: bool = False, edges: bool = True) -> None:
        super().__init__()
        self.conv, self.normal, self.edges = conv, normal, edges

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        normal = [functional.normalize(x[:, 3:6] + 0.1)] if self.normal else []
        return self.conv(x, x[:, :3].contiguous(), *normal, *([edge_index] if self.edges else []))


# PyG refuses to make or run these without packages of its own kernels
UNTRIED = {
    "DynamicEdgeConv": "needs pyg-lib",
    "GravNetConv": "needs pyg-lib",
    "PANConv": "needs torch-sparse",
    "SplineConv": "needs pyg-lib",
    "XConv": "needs pyg-lib",
}

# what a cut would change, with the module that the sentence names
REFUSED = {
    "GPSConv": ("attn", "attention over all vertices"),
    "HypergraphConv": ("aggr_module", "its second row numbers hyperedges"),
    "SAGEConv(lstm)": ("lstm", "an LSTM over neighbours depends on their order"),
}
PASSING = [name for name in ZOO if name not in UNTRIED and name not in REFUSED]


class Net(nn.Module):
    """A layer before and one behind a convolution."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.before, self.conv = nn.Linear(5, IN), ZOO[name]()
        with torch.no_grad():
            width = int(ZOO[name]().eval()(torch.randn(4, IN), *example(name)).shape[-1])
        self.behind = nn.Linear(width, CLASSES)
        for parameter in self.conv.parameters():  # none that begins with zeros stays so
            nn.init.normal_(parameter, 0.3, 0.5)

    def run(self, x: Tensor, *edges: Tensor) -> Tensor:
        return self.behind(self.conv(torch.tanh(self.before(x)), *edges).tanh())


class Plain(Net):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.run(x, edge_index)


class Weighted(Net):
    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.run(x, edge_index, edge_weight)


class Attributed(Net):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.behind(self.conv(torch.tanh(self.before(x)), edge_index, edge_attr=edge_attr).tanh())


def example(name: str) -> list[Tensor]:
    edges = torch.tensor([[3, 0, 1, 2], [0, 1, 2, 3]])
    more = {"edge_weight": torch.ones(4), "edge_attr": torch.rand(4, EDGE)}
    return [edges, *(value for key, value in more.items() if f"({key})" in name)]


def model(name: str) -> Net:
    torch.manual_seed(len(name))
    made = Weighted if "(edge_weight)" in name else Attributed if "(edge_attr)" in name else Plain
    return made(name)


def data() -> Data:
    """Directed edges without loops, whose weights and features are numbers of float32."""
    torch.manual_seed(0)
    edges = torch.unique(torch.randint(0, VERTICES, (2, 150)), dim=1)
    edges = edges[:, edges[0] != edges[1]]
    edges = edges[:, edges[1].argsort(stable=True)]  # as some aggregations want it
    count = edges.shape[1]
    x, y = torch.randn(VERTICES, 5), torch.randint(0, CLASSES, (VERTICES,))
    return Data(x=x, y=y, edge_index=edges, edge_weight=torch.rand(count) + 0.5, edge_attr=torch.rand(count, EDGE))


def loss(out: Tensor, rows: Any) -> Tensor:
    return functional.cross_entropy(out, rows.y, reduction="sum") / VERTICES


def wanted(name: str) -> dict[str, Tensor]:
    """The gradients of plain PyG, and what it keeps."""
    net, graph = model(name).double(), data()
    given = {"edge_index": graph.edge_index}
    if "(edge_weight)" in name:
        given["edge_weight"] = graph.edge_weight.double()
    if "(edge_attr)" in name:
        given["edge_attr"] = graph.edge_attr.double()
    functional.cross_entropy(net(graph.x.double(), **given), graph.y).backward()  # type: ignore[no-untyped-call]
    return {**gradients(net.named_parameters()), **kept(net.state_dict())}


def gradients(parameters: Any) -> dict[str, Tensor]:
    return {f"gradient of {name}": torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters}


def kept(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if "running" in name}


def trained(layout: str, name: str, spoilt: bool = False) -> dict[str, Tensor]:
    """What a step leaves, on this rank."""
    part = trisect.parallelize(model(name), data(), layout, precision="float64")
    if spoilt:
        part.rows.y[:] = part.rows.y.roll(1)
    part.step(loss)
    return {**gradients(part.named_parameters()), **kept(part.state_dict())}


def all_trained(layout: str, names: list[str]) -> dict[str, Any]:
    """What a step of each model leaves; a refusal is a text."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = trained(layout, name)
        except trisect.errors.TrisectError as error:
            found[name] = str(error)
    return found
