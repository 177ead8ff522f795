"""PyG's convolutions as layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trisect.errors import ConfigError
from trisect.nn import Context, FromPyG, GCNLayer, Model
from trisect.nn.initial import generator_for
from trisect.noise import Noise

pyg = pytest.importorskip("torch_geometric.nn")


def gin(width=4):
    return pyg.GINConv(nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, width)))


WRAPPED = {
    "sage": lambda: FromPyG(pyg.SAGEConv(5, 4), "relu", 0.3),
    "gat": lambda: FromPyG(pyg.GATConv(5, 2, heads=2, add_self_loops=False), "elu", 0.3),
    "gin": lambda: FromPyG(gin(), "relu", in_channels=5),
    "graph": lambda: FromPyG(pyg.GraphConv(5, 4), edge_weight="edge_weight"),
    "transformer": lambda: FromPyG(pyg.TransformerConv(5, 4)),
}


@pytest.mark.parametrize("name", list(WRAPPED))
def test_blocks_equal_the_whole_and_pyg_itself(name, graph, close, gradients):
    layer = WRAPPED[name]().double()
    assert (layer.in_channels, layer.out_channels) == (5, 4)
    adjacency, noise = graph.adjacency("row", False), Noise(1)
    x = graph.x.requires_grad_()
    whole = layer(x, adjacency, Context(noise))
    blocks = [(0, 7), (7, 8), (8, 23)]
    pieces = torch.cat([layer(x, adjacency.rows_between(a, b), Context(noise.rows(a, b))) for a, b in blocks])
    close(pieces, whole, 1e-12)
    inputs = [x, *layer.parameters()]
    for got, want in zip(gradients(pieces, inputs), gradients(whole, inputs), strict=True):
        close(got, want)
    with pytest.raises(AssertionError, match="differs"):
        close(layer(x, adjacency, Context(Noise(2))) + 1e-3, whole)


def test_plain_result_is_pygs(graph, close):
    conv = pyg.SAGEConv(5, 4).double()
    close(FromPyG(conv)(graph.x, graph.adjacency("none", False), Context()), conv(graph.x, graph.edge_index))


def test_weights_reach_the_convolution(graph, close):
    conv = pyg.GraphConv(5, 4).double()
    adjacency = graph.adjacency("row", False)
    expected = conv(graph.x, adjacency.edge_index(), adjacency.edge_weight())
    close(FromPyG(conv, edge_weight="edge_weight")(graph.x, adjacency, Context()), expected)
    with pytest.raises(AssertionError, match="differs"):
        close(FromPyG(conv)(graph.x, adjacency, Context()), expected)


def test_in_a_model_and_seeded(graph):
    model = Model([FromPyG(pyg.SAGEConv(5, 8), "relu", 0.5), GCNLayer(8, 3)], normalisation="row", self_loops=False)
    model.double().reset_parameters(3)
    first = model(graph.x, graph.adjacency("row", False))
    before = torch.get_rng_state()
    model.reset_parameters(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(model(graph.x, graph.adjacency("row", False)), first)
    model.layers[0].reset_parameters(generator_for(4, 0))
    assert not torch.equal(model(graph.x, graph.adjacency("row", False)), first)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FromPyG(pyg.GCNConv(5, 4)), "bipartite"),
        (lambda: FromPyG(pyg.GCN2Conv(5, 0.1), in_channels=5), "bipartite"),
        (lambda: FromPyG(pyg.GATConv(5, 4)), "add_self_loops=False"),
        (lambda: FromPyG(pyg.GATConv(5, 4, add_self_loops=False, dropout=0.01)), "dropout"),
        (lambda: FromPyG(gin()), "in_channels"),
        (lambda: FromPyG(pyg.SAGEConv(-1, 4)), "in_channels"),
        (lambda: FromPyG(pyg.SAGEConv(5, 4), out_channels=3), "gives 4"),
        (
            lambda: FromPyG(
                pyg.GINConv(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))), in_channels=5
            ),
            "batch norm",
        ),
    ],
)
def test_convolutions_that_a_cut_would_change_are_refused(make, message):
    torch.manual_seed(0)
    with pytest.raises(ConfigError, match=message):
        make()
