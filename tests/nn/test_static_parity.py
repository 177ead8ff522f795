"""Each layer against PyG's convolution with the same weights: outputs and all gradients, float64, 1e-10."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import trisect
from trisect.nn import (
    GATLayer,
    GATv2Layer,
    GCN2Layer,
    GCNLayer,
    GINELayer,
    GINLayer,
    LinearLayer,
    ResGCNLayer,
    SAGELayer,
)
from trisect.views.trace import trace_of
from trisect.views.view import View

pyg = pytest.importorskip("torch_geometric.nn")


def copy(pairs):
    """Give the parameters of PyG's layer the values of ours."""
    with torch.no_grad():
        for theirs, ours in pairs:
            theirs.copy_(ours)


def compare(close, gradients, ours, theirs, x, pairs):
    """Outputs, gradient of x, gradients of the paired parameters."""
    close(ours, theirs)
    expected = gradients(theirs, [x, *[t for t, _ in pairs]])
    actual = gradients(ours, [x, *[o for _, o in pairs]])
    for got, want in zip(actual, expected, strict=True):
        close(got.view(want.shape), want)
    assert all(float(want.abs().max()) > 0 for want in expected)


def randomise(layer):
    """Biases start at zero, which would hide mistakes."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())) / 2
            )
    return layer.double()


@pytest.mark.parametrize("out", [3, 5, 8])
def test_gcn(graph, close, gradients, out):
    layer, conv = randomise(GCNLayer(5, out)), pyg.GCNConv(5, out).double()
    pairs = [(conv.lin.weight, layer.weight), (conv.bias, layer.bias)]
    copy(pairs)
    x = graph.x.requires_grad_()
    compare(close, gradients, layer(x, View.whole(graph.adjacency())), conv(x, graph.edge_index), x, pairs)


def test_gcn_comparison_fails_without_self_loops(graph, close):
    layer, conv = randomise(GCNLayer(5, 3)), pyg.GCNConv(5, 3).double()
    copy([(conv.lin.weight, layer.weight), (conv.bias, layer.bias)])
    with pytest.raises(AssertionError, match="differs"):
        close(layer(graph.x, View.whole(graph.adjacency("symmetric", False))), conv(graph.x, graph.edge_index))


@pytest.mark.parametrize("out", [3, 5, 8])
@pytest.mark.parametrize("root", [True, False])
def test_sage_mean(graph, close, gradients, out, root):
    layer = randomise(SAGELayer(5, out, root_weight=root))
    conv = pyg.SAGEConv(5, out, root_weight=root).double()
    pairs = [(conv.lin_l.weight, layer.weight), (conv.lin_l.bias, layer.bias)]
    if root:
        pairs.append((conv.lin_r.weight, layer.weight_root))
    copy(pairs)
    x = graph.x.requires_grad_()
    compare(close, gradients, layer(x, View.whole(graph.adjacency("row", False))), conv(x, graph.edge_index), x, pairs)


def test_sage_max(graph, close, gradients):
    layer, conv = randomise(SAGELayer(5, 3, reduce="max")), pyg.SAGEConv(5, 3, aggr="max").double()
    pairs = [(conv.lin_l.weight, layer.weight), (conv.lin_l.bias, layer.bias), (conv.lin_r.weight, layer.weight_root)]
    copy(pairs)
    x = graph.x.requires_grad_()
    compare(close, gradients, layer(x, View.whole(graph.adjacency("none", False))), conv(x, graph.edge_index), x, pairs)


@pytest.mark.parametrize("number", [1, 4])
def test_gcnii(graph, close, gradients, number):
    layer = randomise(GCN2Layer(5, alpha=0.2, lam=0.7, layer=number))
    conv = pyg.GCN2Conv(5, alpha=0.2, theta=0.7, layer=number).double()
    with torch.no_grad():
        conv.weight1.copy_(layer.weight.t())
    x, h0 = graph.x.requires_grad_(), torch.sin(graph.x.detach() * 3).requires_grad_()
    view = View.whole(graph.adjacency())
    view.shared["h0"] = h0
    ours = layer(x, view)
    theirs = conv(x, h0, graph.edge_index)
    close(ours, theirs)
    expected = gradients(theirs, [x, h0, conv.weight1])
    actual = gradients(ours, [x, h0, layer.weight])
    close(actual[0], expected[0])
    close(actual[1], expected[1])
    close(actual[2].t(), expected[2])


def test_gcnii_comparison_fails_at_another_depth(graph, close):
    layer, conv = randomise(GCN2Layer(5, layer=2)), pyg.GCN2Conv(5, alpha=0.1, theta=0.5, layer=3).double()
    with torch.no_grad():
        conv.weight1.copy_(layer.weight.t())
    view = View.whole(graph.adjacency())
    view.shared["h0"] = graph.x
    with pytest.raises(AssertionError, match="differs"):
        close(layer(graph.x, view), conv(graph.x, graph.x, graph.edge_index))


@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("heads", [1, 3])
def test_gat(graph, close, gradients, heads, concat):
    layer = randomise(GATLayer(5, 4, heads=heads, concat=concat))
    conv = pyg.GATConv(5, 4, heads=heads, concat=concat).double()
    pairs = [
        (conv.lin.weight, layer.weight),
        (conv.att_src, layer.att_src[None]),
        (conv.att_dst, layer.att_dst[None]),
        (conv.bias, layer.bias),
    ]
    copy(pairs)
    pairs = [pairs[0], (conv.att_src, layer.att_src), (conv.att_dst, layer.att_dst), pairs[3]]
    x = graph.x.requires_grad_()
    compare(close, gradients, layer(x, View.whole(graph.adjacency("none", True))), conv(x, graph.edge_index), x, pairs)


@pytest.mark.parametrize("hidden", [3, 9])
def test_gin(graph, close, gradients, hidden):
    layer = randomise(GINLayer(5, 4, hidden_channels=hidden, eps=0.3, train_eps=True))
    mlp = nn.Sequential(nn.Linear(5, hidden), nn.ReLU(), nn.Linear(hidden, 4))
    conv = pyg.GINConv(mlp, train_eps=True).double()
    pairs = [
        (mlp[0].weight, layer.weight1),
        (mlp[0].bias, layer.bias1),
        (mlp[2].weight, layer.weight2),
        (mlp[2].bias, layer.bias),
        (conv.eps, layer.eps),
    ]
    copy(pairs)
    x = graph.x.requires_grad_()
    compare(close, gradients, layer(x, View.whole(graph.adjacency("none", False))), conv(x, graph.edge_index), x, pairs)


def test_gin_keeps_a_fixed_eps():
    layer = GINLayer(2, 2, eps=0.25)
    assert float(layer.eps) == 0.25
    assert "eps" in layer.state_dict()
    assert all(name != "eps" for name, _ in layer.named_parameters())


def test_resgcn_is_its_formula(graph, close, gradients):
    layer = randomise(ResGCNLayer(5))
    x = graph.x.requires_grad_()
    z = torch.relu(nn.functional.layer_norm(x, (5,), layer.norm.weight, layer.norm.bias))
    dense = graph.adjacency().dense()
    formula = x + z @ layer.weight_root.t() + dense @ z @ layer.weight.t() + layer.bias
    ours = layer(x, View.whole(graph.adjacency()))
    close(ours, formula)
    inputs = [x, *layer.parameters()]
    for got, want in zip(gradients(ours, inputs), gradients(formula, inputs), strict=True):
        close(got, want)


def test_order_of_bias_norm_activation_and_residual(graph, close):
    layer = randomise(GCNLayer(5, 5, activation="elu", norm="layer", residual=True))
    y = graph.adjacency().dense() @ graph.x @ layer.weight.t() + layer.bias
    y = nn.functional.layer_norm(y, (5,), layer.norm.weight, layer.norm.bias)
    close(layer(graph.x, View.whole(graph.adjacency())), nn.functional.elu(y) + graph.x)


def test_linear_reads_no_neighbours(graph, close):
    layer = randomise(LinearLayer(5, 2, activation="relu"))
    assert trace_of(layer, timeline=False).calls == ()
    assert trace_of(randomise(GCNLayer(5, 2)), timeline=False).calls != ()
    close(
        layer(graph.x, View.whole(graph.adjacency())),
        torch.relu(nn.functional.linear(graph.x, layer.weight, layer.bias)),
    )


def with_edges(graph):
    """The adjacency with three features an edge, and PyG's edge_attr in the order of its edge_index."""
    adjacency = graph.adjacency("none", False)
    features = torch.randn(adjacency.entries, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return adjacency.with_features(features), features


@pytest.mark.parametrize(("heads", "concat"), [(1, True), (4, True), (3, False)])
def test_gatv2_with_edges(graph, close, gradients, heads, concat):
    layer = randomise(GATv2Layer(5, 4, 3, heads=heads, concat=concat))
    conv = pyg.GATv2Conv(5, 4, heads=heads, concat=concat, edge_dim=3, add_self_loops=False).double()
    torch.nn.init.zeros_(conv.lin_l.bias)
    pairs = [
        (conv.lin_l.weight, layer.weight),
        (conv.lin_r.weight, layer.target_weight),
        (conv.lin_r.bias, layer.target_bias),
        (conv.lin_edge.weight, layer.edge_weight),
        (conv.bias, layer.bias),
    ]
    copy(pairs)
    with torch.no_grad():
        conv.att.copy_(layer.att[None])
    adjacency, features = with_edges(graph)
    x = graph.x.requires_grad_()
    theirs = conv(x, adjacency.edge_index(), features)
    compare(close, gradients, layer(x, View.whole(adjacency)), theirs, x, [*pairs, (conv.att, layer.att)])


def test_loops_that_are_added_have_the_mean_of_their_row(graph, close):
    """As PyG's own loops with fill_value="mean", which are zeros where a vertex reads nothing."""
    layer = randomise(GATv2Layer(5, 4, 3, heads=2))
    conv = pyg.GATv2Conv(5, 4, heads=2, edge_dim=3, fill_value="mean").double()
    torch.nn.init.zeros_(conv.lin_l.bias)
    copy([(conv.lin_l.weight, layer.weight), (conv.lin_r.weight, layer.target_weight), (conv.bias, layer.bias)])
    copy([(conv.lin_r.bias, layer.target_bias), (conv.lin_edge.weight, layer.edge_weight), (conv.att, layer.att[None])])
    raw, features = with_edges(graph)
    source, target = raw.edge_index()
    data = trisect.Graph.from_edges(source, target, vertices=23, edge_x=features.float())
    adjacency = data.normalised("none", self_loops=True, dtype=torch.float64)
    expected = conv(graph.x, raw.edge_index(), features.float().double())
    close(layer(graph.x, View.whole(adjacency)), expected)
    halved = adjacency.with_features(0.5 * adjacency.features)
    with pytest.raises(AssertionError, match="differs"):
        close(layer(graph.x, View.whole(halved)), expected)


@pytest.mark.parametrize("width", [3, 6])
def test_gine_with_edges(graph, close, gradients, width):
    layer = randomise(GINELayer(5, 4, 3, hidden_channels=width, eps=0.25))
    mlp = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 4))
    conv = pyg.GINEConv(mlp, eps=0.25, edge_dim=3).double()
    pairs = [
        (conv.lin.weight, layer.edge_weight),
        (conv.lin.bias, layer.edge_bias),
        (mlp[0].weight, layer.weight1),
        (mlp[0].bias, layer.bias1),
        (mlp[2].weight, layer.weight2),
        (mlp[2].bias, layer.bias),
    ]
    copy(pairs)
    adjacency, features = with_edges(graph)
    x = graph.x.requires_grad_()
    theirs = conv(x, adjacency.edge_index(), features)
    compare(close, gradients, layer(x, View.whole(adjacency)), theirs, x, pairs)
