"""PyG's convolutions as layers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[2]))

import trisect
from plain_view import PlainView
from trisect.errors import ConfigError
from trisect.nn import FromPyG, GCNLayer, Model
from trisect.nn.initial import seeded
from trisect.noise import Noise
from trisect.views.view import Neighbours, View

pyg = pytest.importorskip("torch_geometric.nn")


class InBlocks(PlainView):
    """The whole graph, whose rows are made block by block; each reads all columns."""

    def _made(self, step, message, own, then, draw):
        matrix, blocks = self.matrices[step], [(0, 7), (7, 8), (8, 8), (8, 23)]
        made = [then(message, own[a:b], Neighbours(matrix.rows_between(a, b), None, draw)) for a, b in blocks]
        return torch.cat(made)


def gin(width=4):
    return pyg.GINConv(nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, width)))


WRAPPED = {
    "sage": lambda: FromPyG(pyg.SAGEConv(5, 4), "relu", 0.3),
    "gat": lambda: FromPyG(pyg.GATConv(5, 2, heads=2, add_self_loops=False), "elu", 0.3),
    "gin": lambda: FromPyG(gin(), "relu", in_channels=5),
    "graph": lambda: FromPyG(pyg.GraphConv(5, 4), edge_weight="edge_weight"),
    "transformer": lambda: FromPyG(pyg.TransformerConv(5, 4)),
    "several": lambda: FromPyG(pyg.SAGEConv(5, 4, aggr=["max", "std", "softmax"])),
}


@pytest.mark.parametrize("name", list(WRAPPED))
def test_blocks_equal_the_whole_and_pyg_itself(name, graph, close, gradients):
    layer = WRAPPED[name]().double()
    assert (layer.in_channels, layer.out_channels) == (5, 4)
    adjacency, noise = graph.adjacency("row", False), Noise(1)
    x = graph.x.requires_grad_()
    whole = layer(x, View.whole(adjacency, noise))
    pieces = layer(x, InBlocks([adjacency], noise))
    close(pieces, whole, 1e-12)
    inputs = [x, *layer.parameters()]
    for got, want in zip(gradients(pieces, inputs), gradients(whole, inputs), strict=True):
        close(got, want)
    with pytest.raises(AssertionError, match="differs"):
        close(layer(x, View.whole(adjacency, Noise(2))) + 1e-3, whole)


def test_plain_result_is_pygs(graph, close):
    conv = pyg.SAGEConv(5, 4).double()
    close(FromPyG(conv)(graph.x, View.whole(graph.adjacency("none", False))), conv(graph.x, graph.edge_index))


def test_weights_reach_the_convolution(graph, close):
    conv = pyg.GraphConv(5, 4).double()
    adjacency = graph.adjacency("row", False)
    expected = conv(graph.x, adjacency.edge_index(), adjacency.edge_weight())
    close(FromPyG(conv, edge_weight="edge_weight")(graph.x, View.whole(adjacency)), expected)
    with pytest.raises(AssertionError, match="differs"):
        close(FromPyG(conv)(graph.x, View.whole(adjacency)), expected)


def test_in_a_model_and_seeded(graph):
    model = Model([FromPyG(pyg.SAGEConv(5, 8), "relu", 0.5), GCNLayer(8, 3)], normalisation="row", self_loops=False)
    model.double().reset_parameters(3)
    first = model(graph.x, View.whole(graph.adjacency("row", False)))
    before = torch.get_rng_state()
    model.reset_parameters(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(model(graph.x, View.whole(graph.adjacency("row", False))), first)
    with seeded(4, 0):
        model.layers[0].reset_parameters()
    assert not torch.equal(model(graph.x, View.whole(graph.adjacency("row", False))), first)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FromPyG(pyg.GCN2Conv(5, 0.1), in_channels=5), r"fails as conv\(x, edge_index\)"),
        (lambda: FromPyG(gin()), "in_channels"),
        (lambda: FromPyG(pyg.SAGEConv(-1, 4)), "in_channels"),
        (lambda: FromPyG(pyg.SAGEConv(5, 4), out_channels=3), "gives 4"),
        (lambda: FromPyG(pyg.SAGEConv(5, 4, aggr="lstm")), "its neighbours stand in another order"),
        (lambda: FromPyG(pyg.SAGEConv(64, 4, aggr="lstm")), "its neighbours stand in another order"),
    ],
)
def test_convolutions_that_a_cut_would_change_are_refused(make, message):
    torch.manual_seed(0)
    with pytest.raises(ConfigError, match=message):
        make()


WHOLE = {
    "GCN": lambda: pyg.GCNConv(5, 4),
    "own class": lambda: type("Own", (pyg.GCNConv,), {})(5, 4),
    "GAT": lambda: pyg.GATConv(5, 4),
    "Cheb": lambda: pyg.ChebConv(5, 4, 3),
    "TAG": lambda: pyg.TAGConv(5, 4),
    "APPNP": lambda: pyg.APPNP(3, 0.1),
    "batch norm": lambda: pyg.GINConv(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))),
}


@pytest.mark.parametrize("name", list(WHOLE))
def test_convolutions_that_ask_for_more_than_neighbours(name, graph, close, gradients):
    """They are called as they are; in training, with statistics of all rows."""
    torch.manual_seed(0)
    conv = WHOLE[name]().double()
    layer = FromPyG(conv, in_channels=5)
    assert not layer.bipartite
    adjacency = graph.adjacency("none", False)
    x = graph.x.requires_grad_()
    inputs, expected = [x, *layer.parameters()], conv(x, adjacency.edge_index())
    wanted = gradients(expected, inputs)
    found = layer(x, View.whole(adjacency, Noise(1)))
    close(found, expected)
    for got, want in zip(gradients(found, inputs), wanted, strict=True):
        close(got, want)


def test_dropout_inside_is_by_place(graph, close):
    layer = FromPyG(pyg.GATConv(5, 4, dropout=0.4)).double()
    adjacency = graph.adjacency("none", False)
    one, other = (layer(graph.x, View.whole(adjacency, Noise(seed))) for seed in (1, 2))
    close(one, layer(graph.x, View.whole(adjacency, Noise(1))))
    with pytest.raises(AssertionError, match="differs"):
        close(one, other)
    layer.eval()
    close(layer(graph.x, View.whole(adjacency)), layer.conv(graph.x, adjacency.edge_index()))


def test_gcn_on_a_timeline_reads_the_models_matrix(graph, close):
    conv = pyg.GCNConv(5, 4).double()
    adjacency = graph.adjacency("symmetric", True)
    frames = torch.stack([graph.x, 2 * graph.x])
    found = FromPyG(conv)(frames, View.whole([adjacency, adjacency]))
    close(found[1], conv(2 * graph.x, graph.edge_index))
    with pytest.raises(ConfigError, match="a step of a timeline"):
        FromPyG(pyg.ChebConv(5, 4, 2)).double()(frames, View.whole([adjacency, adjacency]))
    numbers = trisect.Timeline.generate("evolving", vertices=20, steps=4, features=5, communities=2)
    rows = Model([FromPyG(pyg.GCNConv(5, 2))], normalisation="row")
    with pytest.raises(ConfigError, match="make them symmetric and true"):
        trisect.fit(rows, numbers, "node-classification", epochs=1)


EDGED = {
    "gatv2": lambda: pyg.GATv2Conv(5, 2, heads=2, add_self_loops=False, edge_dim=3),
    "gine": lambda: pyg.GINEConv(nn.Sequential(nn.Linear(5, 4)), edge_dim=3),
    "transformer": lambda: pyg.TransformerConv(5, 4, edge_dim=3),
    "resgated": lambda: pyg.ResGatedGraphConv(5, 4, edge_dim=3),
    "nnconv": lambda: pyg.NNConv(5, 4, nn.Linear(3, 20), aggr="add"),
}


@pytest.mark.parametrize("name", list(EDGED))
def test_features_of_edges_reach_the_convolution(name, graph, close):
    conv = EDGED[name]().double()
    layer = FromPyG(conv, in_channels=5, edge_channels=3 if name == "nnconv" else None)
    assert layer.edge_channels == 3
    adjacency = graph.adjacency("none", False)
    features = torch.randn(adjacency.entries, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    edged = adjacency.with_features(features)
    expected = conv(graph.x, adjacency.edge_index(), edge_attr=features)
    close(layer(graph.x, View.whole(edged)), expected)
    close(layer(graph.x, InBlocks([edged])), expected)
    with pytest.raises(AssertionError, match="differs"):
        close(layer(graph.x, View.whole(adjacency.with_features(features.flip(0)))), expected)
    with pytest.raises(ConfigError, match="reads 3 features of each edge, and the edges have none"):
        layer(graph.x, View.whole(adjacency))


def test_features_of_edges_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"say how many: FromPyG\(conv, edge_channels=…\)"):
        FromPyG(EDGED["nnconv"](), in_channels=5)
    with pytest.raises(ConfigError, match="takes no edge_attr"):
        FromPyG(pyg.SAGEConv(5, 4), edge_channels=3)
    assert FromPyG(pyg.TransformerConv(5, 4)).edge_channels == 0
    layer = FromPyG(pyg.TransformerConv(5, 2, edge_dim=3))
    data = {"x": torch.randn(3, 5), "y": [0, 1, 0], "splits": {"train": [True] * 3}}
    graph = trisect.Graph.from_edges([0, 1, 2], [1, 2, 0], **data)
    model = Model([layer], normalisation="none", self_loops=False)
    with pytest.raises(ConfigError, match=r"reads 3 features of an edge, and the data have none \(give edge_x\)"):
        trisect.fit(model, graph, "node-classification", epochs=1)
    edged = trisect.Graph.from_edges([0, 1, 2], [1, 2, 0], **data, edge_x=torch.randn(3, 3))
    trisect.fit(model, edged, "node-classification", epochs=1)
    with pytest.warns(UserWarning, match="3 features an edge, and no layer of the model reads them"):
        trisect.fit("gcn", edged, "node-classification", epochs=1)
