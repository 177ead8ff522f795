"""Relations: R-GCN and layers by relation against PyG, and sums over one relation against its own matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import trisect
from trisect import ops
from trisect.errors import ConfigError, DataError
from trisect.nn import GATLayer, GATv2Layer, GCNLayer, GINLayer, HeteroLayer, RGCNLayer, SAGELayer

VERTICES, RELATIONS = 23, 4
NAMES = ("cites", "writes", "likes", "nothing")


def _edges(seed: int = 0, *, twice: bool = False) -> tuple[Tensor, Tensor]:
    """Edges [2, edges] and their relations, of which the last has none; some pairs have edges of two relations."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, VERTICES, (2, 90), generator=generator)
    ends = ends[:, ends[0] != ends[1]]
    relation = torch.randint(0, RELATIONS - 1, (ends.shape[1],), generator=generator)
    both = torch.cat([ends, relation[None]])
    both = both if twice else torch.unique(both, dim=1)
    assert len(torch.unique(both[:2], dim=1).t()) < both.shape[1]
    return both[:2], both[2]


def _graph(ends: Tensor, relation: Tensor, **more: Any) -> trisect.Graph:
    return trisect.Graph.from_edges(*ends, vertices=VERTICES, relation=relation, relations=NAMES, **more)


def _view(graph: trisect.Graph, *, self_loops: bool = False) -> trisect.View:
    matrix = graph.normalised("none", self_loops=self_loops, dtype=torch.float64)
    return trisect.View.whole(matrix, relations=graph.relations)


def _x(width: int) -> Tensor:
    made = torch.randn(VERTICES, width, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    return made.requires_grad_()


def _same(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-10)


def _compare(ours: Any, theirs: Any, pairs: list[tuple[Any, Any]], run: Any, width: int) -> None:
    """Compare output, the gradient of x and those of parameters: pairs of (ours, a function of theirs' gradients)."""
    mine, other = _x(width), _x(width)
    found, wanted = run(mine), theirs(other)
    _same(found, wanted)
    weights = torch.randn(found.shape, dtype=found.dtype, generator=torch.Generator().manual_seed(3))
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    assert mine.grad is not None
    assert other.grad is not None
    _same(mine.grad, other.grad)
    for parameter, gradient in pairs:
        _same(parameter.grad, gradient())


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("bases", [None, 2])
@pytest.mark.parametrize(("width", "out"), [(5, 7), (40, 3)])
def test_an_r_gcn_is_pygs(width: int, out: int, bases: int | None, twice: bool) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    ends, relation = _edges(twice=twice)
    g = _view(_graph(ends, relation))
    layer = RGCNLayer(width, out, RELATIONS, bases=bases).double()
    theirs = pyg.RGCNConv(width, out, RELATIONS, num_bases=bases).double()
    with torch.no_grad():
        theirs.weight.copy_(layer.weight.transpose(1, 2))
        theirs.root.copy_(layer.weight_root.t())
        layer.bias.normal_()
        theirs.bias.copy_(layer.bias)
        if bases:
            theirs.comp.copy_(layer.coefficient)
    pairs = [
        (layer.weight, lambda: theirs.weight.grad.transpose(1, 2)),
        (layer.weight_root, lambda: theirs.root.grad.t()),
        (layer.bias, lambda: theirs.bias.grad),
    ]
    if bases:
        pairs.append((layer.coefficient, lambda: theirs.comp.grad))
    _compare(layer, lambda x: theirs(x, ends, relation), pairs, lambda x: layer(x, g), width)


@pytest.mark.parametrize("together", ["sum", "mean", "max"])
def test_layers_by_relation_are_pygs_hetero_conv(together: str) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    ends, relation = _edges()
    g = _view(_graph(ends, relation), self_loops=True)
    width, out = 6, 8
    layers = {"cites": GCNLayer(width, out), "writes": SAGELayer(width, out), "likes": GATLayer(width, 4, heads=2)}
    layer = HeteroLayer(
        layers,
        together,
        normalisation={"cites": "symmetric"},
        self_loops={"cites": True, "likes": True},
    ).double()
    convs = {
        ("v", "cites", "v"): pyg.GCNConv(width, out),
        ("v", "writes", "v"): pyg.SAGEConv(width, out),
        ("v", "likes", "v"): pyg.GATConv(width, 4, heads=2),
    }
    theirs = pyg.HeteroConv(convs, aggr=together).double()
    gcn, sage, gat = convs.values()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
        gcn.lin.weight.copy_(layers["cites"].weight)
        gcn.bias.copy_(layers["cites"].bias)
        sage.lin_l.weight.copy_(layers["writes"].weight)
        sage.lin_l.bias.copy_(layers["writes"].bias)
        sage.lin_r.weight.copy_(layers["writes"].weight_root)
        gat.lin.weight.copy_(layers["likes"].weight)
        gat.att_src.copy_(layers["likes"].att_src.view(1, 2, 4))
        gat.att_dst.copy_(layers["likes"].att_dst.view(1, 2, 4))
        gat.bias.copy_(layers["likes"].bias)
    pairs = [
        (layers["cites"].weight, lambda: gcn.lin.weight.grad),
        (layers["writes"].weight, lambda: sage.lin_l.weight.grad),
        (layers["writes"].weight_root, lambda: sage.lin_r.weight.grad),
        (layers["likes"].weight, lambda: gat.lin.weight.grad),
        (layers["likes"].bias, lambda: gat.bias.grad),
    ]
    by_relation = {("v", name, "v"): ends[:, relation == NAMES.index(name)] for name in layers}
    _compare(layer, lambda x: theirs({"v": x}, by_relation)["v"], pairs, lambda x: layer(x, g), width)


@pytest.mark.parametrize("name", NAMES)
def test_a_sum_over_a_relation_is_that_of_its_matrix(name: str) -> None:
    ends, relation = _edges(twice=True)
    graph = _graph(ends, relation, weight=torch.rand(ends.shape[1]) + 0.5)
    g, x, weight = _view(graph), _x(6), torch.randn(3, 6, dtype=torch.float64)
    matrix = graph.relation(name).double()
    assert matrix.entries == 0 if name == "nothing" else matrix.entries > 9
    _same(g.aggregate(x, relation=name), ops.aggregate(x, matrix))
    _same(g.aggregate(x, weight, relation=name, relu=True), torch.relu(ops.aggregate(x, matrix) @ weight.t()))
    found = g.gather(x, then=lambda near, own, at: ops.aggregate(near, at.block, "max"), relation=name)
    _same(found, ops.aggregate(x, matrix, "max"))


@pytest.mark.parametrize("layer", [GINLayer(5, 5), GINLayer(5, 3), GATv2Layer(5, 4), SAGELayer(5, 4, reduce="max")])
def test_a_layer_of_one_relation_is_that_on_its_graph(layer: Any) -> None:
    ends, relation = _edges()
    graph, layer = _graph(ends, relation), layer.double()
    alone = trisect.Graph.from_edges(*ends[:, relation == 1], vertices=VERTICES)
    wanted = layer(_x(5), trisect.View.whole(alone.normalised("none", self_loops=False, dtype=torch.float64)))
    _same(layer(_x(5), _view(graph).related("writes")), wanted)
    _same(HeteroLayer({"writes": layer}, normalisation="none").double()(_x(5), _view(graph)), wanted)


def test_attention_over_relations_weighs_them() -> None:
    ends, relation = _edges()
    g = _view(_graph(ends, relation))
    layers = {"cites": SAGELayer(5, 4), "writes": SAGELayer(5, 4)}
    layer, x = HeteroLayer(layers, "attention").double(), _x(5)
    every = torch.stack([one(x, g.related(name, "row")) for name, one in layers.items()])
    scores = torch.stack([torch.tanh(layer.score(one)) @ layer.query[0] for one in every])
    weights = torch.softmax(scores, 0)
    assert weights.std() > 0
    _same(layer(x, g), (weights[..., None] * every).sum(0))


def test_relations_that_are_wrong_are_refused() -> None:
    ends, relation = _edges()
    graph = _graph(ends, relation)
    with pytest.raises(DataError, match=r"unknown relation 'cite'; did you mean 'cites'\?"):
        _view(graph).related("cite")
    with pytest.raises(DataError, match="no relation 'cites', since the data have none"):
        trisect.View.whole(graph.adjacency).related("cites")
    with pytest.raises(DataError, match=r"relation has the shape \[3\] for"):
        trisect.Graph.from_edges(*ends, relation=[0, 1, 2])
    with pytest.raises(DataError, match="relation of edge 1 is None"):
        trisect.Graph.from_edges([0, 1], [1, 0], relation=["a", None])
    with pytest.raises(DataError, match=r"relation of edge 0 is nan"):
        trisect.Graph.from_edges([0, 1], [1, 0], relation=[float("nan"), 1.0])
    with pytest.raises(DataError, match="number 2, and there are 2 names"):
        trisect.Graph.from_edges([0, 1], [1, 0], relation=[0, 2], relations=["a", "b"])
    with pytest.raises(ConfigError, match="widths 5 -> 4 and 6 -> 4; make them equal"):
        HeteroLayer({"a": SAGELayer(5, 4), "b": SAGELayer(6, 4)})
