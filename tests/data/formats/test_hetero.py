"""PyG's `HeteroData`: one numbering of all vertices, relations, and features of several widths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import trisect
from trisect.errors import ConfigError, DataError
from trisect.nn import HeteroLayer, HeteroLinearLayer, LinearLayer, Model, RGCNLayer, SAGELayer

pyg = pytest.importorskip("torch_geometric.data")


def _data(*, split: bool = True) -> Any:
    """Authors (4 features) write papers (2 features); papers cite papers; terms have no features."""
    generator = torch.Generator().manual_seed(2)
    data = pyg.HeteroData()
    data["author"].x = torch.randn(9, 4, generator=generator)
    data["paper"].x = torch.randn(14, 2, generator=generator)
    data["term"].num_nodes = 5
    data["paper"].y = torch.arange(14) % 3
    if split:
        data["paper"].train_mask = torch.arange(14) < 9
        data["paper"].val_mask = torch.arange(14) == 9
        data["paper"].test_mask = torch.arange(14) > 9
    for kind, (a, b, count) in {
        ("author", "writes", "paper"): (9, 14, 40),
        ("paper", "cites", "paper"): (14, 14, 30),
        ("term", "in", "paper"): (5, 14, 12),
        ("paper", "by", "author"): (14, 9, 35),
    }.items():
        pairs = torch.stack([torch.randint(n, (count,), generator=generator) for n in (a, b)])
        data[kind].edge_index = torch.unique(pairs, dim=1)
    return data


def test_types_are_numbered_one_after_the_other() -> None:
    data = _data()
    graph = trisect.Graph.from_pyg(data)
    assert [tuple(kind) for kind in graph.vertex_types] == [("author", 9, 4), ("paper", 14, 2), ("term", 5, 0)]
    assert graph.relations == ("author__writes__paper", "paper__cites__paper", "term__in__paper", "paper__by__author")
    assert graph.x is not None
    assert graph.x.shape == (28, 4 + 3)
    assert torch.equal(graph.x[9:23, :2], data["paper"].x)
    assert torch.equal(graph.x[:, 4:].argmax(1), torch.tensor([0] * 9 + [1] * 14 + [2] * 5))
    assert graph.y is not None
    assert graph.y.tolist() == [-1] * 9 + data["paper"].y.tolist() + [-1] * 5
    assert graph.splits["train"].nonzero()[:, 0].tolist() == list(range(9, 18))
    for name in (("author", "writes", "paper"), "writes", "author__writes__paper"):
        row, column = graph.relation(name).coordinates()
        pairs = {(int(a), int(b) + 9) for a, b in data["author", "writes", "paper"].edge_index.t()}
        assert {(int(a), int(b)) for a, b in zip(column, row, strict=True)} == pairs


def test_an_r_gcn_over_types_is_pygs() -> None:
    """A projection of each type, then R-GCN on the homogeneous form of the same object."""
    nn = pytest.importorskip("torch_geometric.nn")
    data = _data()
    graph = trisect.Graph.from_pyg(data)
    matrix = graph.normalised("none", self_loops=False, dtype=torch.float64)
    first, layer = HeteroLinearLayer([4, 2, 0], 6).double(), RGCNLayer(6, 3, 4).double()
    found = layer(first(graph.x.double(), g := trisect.View.whole(matrix, relations=graph.relations)), g)
    plain = data.to_homogeneous(node_attrs=[])
    theirs = nn.RGCNConv(6, 3, 4).double()
    with torch.no_grad():
        theirs.weight.copy_(layer.weight.transpose(1, 2))
        theirs.root.copy_(layer.weight_root.t())
    rows = [data["author"].x.double() @ first.weights[0].t(), data["paper"].x.double() @ first.weights[1].t()]
    x = torch.cat([rows[0] + first.biases[0], rows[1] + first.biases[1], first.biases[2].expand(5, -1)])
    wanted = theirs(x, plain.edge_index, plain.edge_type)
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-10)
    assert first.biases[2].abs().min() > 0
    found.square().sum().backward()
    own = [parameter.grad.clone() for parameter in first.parameters() if parameter.numel()]
    first.zero_grad()
    wanted.square().sum().backward()
    for gradient, parameter in zip(own, [p for p in first.parameters() if p.numel()], strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=0.0, atol=1e-10)


def test_layers_by_relation_over_types_are_pygs() -> None:
    """Without a root and a bias of their own, sums of relations are HeteroConv's for every type that has some."""
    nn = pytest.importorskip("torch_geometric.nn")
    data = _data()
    graph = trisect.Graph.from_pyg(data)
    matrix = graph.normalised("none", self_loops=False, dtype=torch.float64)
    layers = {name: SAGELayer(5, 3, root_weight=False, bias=False) for name in graph.relations}
    layer = HeteroLayer(layers).double()
    convs = {}
    for kind, own in zip(data.edge_types, layers.values(), strict=True):
        convs[kind] = nn.SAGEConv((5, 5), 3, root_weight=False, bias=False).double()
        convs[kind].lin_l.weight = own.weight
    x = torch.randn(28, 5, dtype=torch.float64)
    wanted = nn.HeteroConv(convs)({"author": x[:9], "paper": x[9:23], "term": x[23:]}, data.edge_index_dict)
    found = layer(x, trisect.View.whole(matrix, relations=graph.relations))
    torch.testing.assert_close(found[:23], torch.cat([wanted["author"], wanted["paper"]]), rtol=0.0, atol=1e-10)


def test_types_keep_what_other_relations_give() -> None:
    """Two layers of convolutions with roots and biases are those of HeteroConv, with every gradient."""
    nn = pytest.importorskip("torch_geometric.nn")
    data = _data()
    data["paper", "of", "term"].edge_index = data["term", "in", "paper"].edge_index.flip(0)
    graph = trisect.Graph.from_pyg(data)
    types = [kind.name for kind in graph.vertex_types]
    matrix = graph.normalised("none", self_loops=False, dtype=torch.float64)
    widths = ((5, 6), (6, 3))
    layers = [
        HeteroLayer({name: SAGELayer(*width) for name in graph.relations}, types=types, last=last).double()
        for width, last in zip(widths, (False, True), strict=True)
    ]
    x = torch.randn(28, 5, dtype=torch.float64)
    theirs, rows = [], {"author": x[:9], "paper": x[9:23], "term": x[23:]}
    for layer, width in zip(layers, widths, strict=True):
        convs = {}
        for kind, own in zip(data.edge_types, layer.layers, strict=True):
            torch.nn.init.normal_(own.bias)
            convs[kind] = nn.SAGEConv(width[:1] * 2, width[1]).double()
            with torch.no_grad():
                convs[kind].lin_l.weight.copy_(own.weight)
                convs[kind].lin_l.bias.copy_(own.bias)
                convs[kind].lin_r.weight.copy_(own.weight_root)
        theirs.append(convs)
        rows = nn.HeteroConv(convs)(rows, data.edge_index_dict)
    kinds = torch.nn.functional.one_hot(torch.tensor([0] * 9 + [1] * 14 + [2] * 5), 3).double()
    g = trisect.View.whole(matrix, relations=graph.relations)
    found = layers[1](layers[0](torch.cat([x, kinds], 1), g), g)
    wanted = torch.cat([rows[name] for name in types])
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-10)
    scale = torch.randn(found.shape, dtype=torch.float64)
    (found * scale).sum().backward()
    (wanted * scale).sum().backward()
    for layer, convs in zip(layers, theirs, strict=True):
        for own, conv in zip(layer.layers, convs.values(), strict=True):
            torch.testing.assert_close(own.weight.grad, conv.lin_l.weight.grad, rtol=0.0, atol=1e-10)
            torch.testing.assert_close(own.bias.grad, conv.lin_l.bias.grad, rtol=0.0, atol=1e-10)
            torch.testing.assert_close(own.weight_root.grad, conv.lin_r.weight.grad, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("layout", ["", "vertex=2", "layer=2"])
def test_layers_of_types_train_under_a_cut(layout: str) -> None:
    graph, losses = trisect.Graph.from_pyg(_data()), []
    types = [kind.name for kind in graph.vertex_types]
    for each in dict.fromkeys(["", layout]):
        torch.manual_seed(0)
        layers = [
            HeteroLinearLayer([4, 2, 0], 6, types=True, activation="relu"),
            HeteroLayer({name: SAGELayer(6, 5) for name in graph.relations}, types=types, activation="relu"),
            HeteroLayer({name: SAGELayer(5, 3) for name in graph.relations[:2]}, types=types, last=True),
        ]
        run = trisect.fit(Model(layers), graph, layout=each, epochs=3, precision="float64", progress=False)
        losses.append(run.summary["loss"])
    assert losses[0] == pytest.approx(losses[-1], rel=1e-12)
    assert len(set(losses[0])) == 3


@pytest.mark.parametrize("layout", ["", "vertex=2"])
def test_a_model_by_name_projects_each_type(layout: str) -> None:
    options: dict[str, Any] = {"epochs": 3, "hidden": 8, "dropout": 0.3, "precision": "float64", "progress": False}
    run = trisect.fit("rgcn", _data(), layout=layout, **options)
    assert isinstance(run.model.layers[0], HeteroLinearLayer)
    assert run.model.layers[0].widths == (4, 2, 0)
    if layout:
        alone = trisect.fit("rgcn", _data(), **options)
        assert run.summary["loss"] == pytest.approx(alone.summary["loss"], rel=1e-12)


def _without_rows() -> Any:
    data = _data()
    data["paper"].y = torch.zeros(3)
    return data


def _beyond() -> Any:
    data = _data()
    data["term", "in", "paper"].edge_index = torch.tensor([[9], [0]])
    return data


def _without_count() -> Any:
    data = _data()
    data["venue"].name = "nothing that tells how many"
    return data


def _two_labelled() -> Any:
    data = _data()
    data["author"].y = torch.zeros(9)
    return data


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (_data, {"target": "papers"}, r"unknown type of vertices 'papers'; did you mean 'paper'\?"),
        (_data, {"target": "author"}, "vertices of type 'author' have no y; those of paper have"),
        (_two_labelled, {}, r"vertices of 2 types have y \(author, paper\); name one with target"),
        (_without_rows, {}, "y of 'paper' has 3 rows for 14 vertices"),
        (_beyond, {}, r"edges \('term', 'in', 'paper'\) hold term 9, and there are 5"),
        (_without_count, {}, r"vertices of type 'venue' have no x and no num_nodes"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_objects_that_do_not_fit_are_refused(make: Callable[[], Any], options: dict[str, str], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        trisect.Graph.from_pyg(make(), **options)


def test_models_that_do_not_fit_types_are_refused() -> None:
    layers = [HeteroLinearLayer([4, 1, 1], 6), RGCNLayer(6, 3, 4)]
    with pytest.raises(
        ConfigError, match="reads types of other widths, and the data have features of 4, 2, 0 channels"
    ):
        trisect.fit(Model(layers), _data(), epochs=1, progress=False)
    with pytest.raises(ConfigError, match="the model reads 5 relations, and the data have 4"):
        trisect.fit(Model([HeteroLinearLayer([4, 2, 0], 6), RGCNLayer(6, 3, 5)]), _data(), epochs=1, progress=False)
    with pytest.warns(UserWarning, match="types of vertices, and the first layer reads the features of all by one"):
        trisect.fit(Model([LinearLayer(7, 6), RGCNLayer(6, 3, 4)]), _data(), epochs=1, progress=False)
