"""Models by name: options, refusals, and parameters as a function of (seed, layer)."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from trisect.errors import ConfigError
from trisect.graph.build import adjacency_from_edges
from trisect.nn import NAMES, DynamicModel, Model, build, options, recipe
from trisect.nn.models.registry import reads_edges
from trisect.views.trace import trace_of
from trisect.views.view import View

STATIC = ("gcn", "sage", "gcnii", "resgcn+", "gat", "gatv2", "gin", "gine", "rgcn")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layers", [1, 2, 5])
def test_every_model_builds_at_every_depth(name, layers):
    model = build(name, 7, 3, layers=layers, hidden=8, edge_channels=2)
    assert isinstance(model, Model if name in STATIC else DynamicModel)
    assert (model.in_channels, model.out_channels) == (7, 3)
    traces = [trace_of(layer, timeline=isinstance(model, DynamicModel)) for layer in model.stack]
    assert sum(trace.spatial for trace in traces) == layers


def test_names_are_those_of_the_contract():
    contract = {"gcn", "sage", "gcnii", "resgcn+", "gat", "gin"}
    contract |= {"cd-gcn", "wd-gcn", "evolvegcn-o", "evolvegcn-h", "tm-gcn"}
    assert contract <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_a_function_of_seed_and_layer(name):
    whole = build(name, 7, 3, layers=3, hidden=8, seed=5, edge_channels=2)
    parts = recipe(name, 7, 3, 2, layers=3, hidden=8)
    torch.manual_seed(99)
    drawn = 0
    for index in reversed(range(len(parts.layers))):
        alone = parts.layer(index, seed=5).state_dict()
        for key, value in whole.layers[index].state_dict().items():
            assert torch.equal(alone[key], value)
        others = parts.layer(index, seed=6).state_dict()
        drawn += sum(not torch.equal(others[key], value) for key, value in alone.items())
    assert drawn > 0


@pytest.mark.parametrize("name", NAMES)
def test_reset_gives_the_same_again(name):
    model = build(name, 7, 3, hidden=8, seed=5, edge_channels=2)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    model.reset_parameters(5)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_parameters_do_not_depend_on_precision():
    single = build("gcnii", 7, 3, layers=2, hidden=8, seed=1)
    double = build("gcnii", 7, 3, layers=2, hidden=8, seed=1).double()
    double.reset_parameters(1)
    for a, b in zip(single.parameters(), double.parameters(), strict=True):
        assert torch.equal(a, b.float())


def test_equal_layers_of_one_model_differ():
    model = build("gcnii", 7, 3, layers=2, hidden=8)
    first, second = [layer for layer in model.layers if trace_of(layer, timeline=False).spatial]
    assert not torch.equal(first.weight, second.weight)


@pytest.mark.parametrize("name", NAMES)
def test_outline_takes_no_memory(name):
    layers = recipe(name, 7, 3, 2, layers=2, hidden=8).outline()
    assert all(p.device.type == "meta" for layer in layers for p in layer.parameters())
    assert layers[0].in_channels == 7


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("grapsage", {}, "did you mean 'sage'"),
        ("gcn", {"hiden": 3}, "did you mean 'hidden'"),
        ("gcn", {"layers": 0}, "layers of model gcn is 0"),
        ("gcn", {"layers": True}, "layers of model gcn is True"),
        ("gcn", {"layers": 2.5}, "whole number"),
        ("gcn", {"dropout": 1.0}, "dropout of model gcn is 1.0"),
        ("gcn", {"dropout": "much"}, "give a number"),
        ("gcn", {"norm": "instance"}, "allowed: none, layer, batch"),
        ("gcn", {"residual": 1}, "true or false"),
        ("gat", {"hidden": 10, "heads": 4}, "multiple of heads"),
        ("tm-gcn", {"kind": "median"}, "allowed: mean, harmonic, ones"),
        ("recurrent", {"temporal": "mean", "concat": True}, "concat"),
        ("recurrent", {"spatial": "gat", "heads": 3}, "multiple of heads"),
    ],
)
def test_bad_options_are_refused(name, given, message):
    with pytest.raises(ConfigError, match=message):
        build(name, 5, 2, **given)


def test_bad_widths_are_refused():
    with pytest.raises(ConfigError, match="in_channels is 0"):
        build("gcn", 0, 2)


def test_options_can_be_read():
    known = options("gcnii")
    assert known["alpha"].default == 0.1
    assert known["norm"].allowed == ("none", "layer", "batch")
    assert known["layers"].kind is int
    assert known["dropout"].kind is float


def test_gcnii_shares_h0_undropped():
    """h0 is declared, and the dropout after the first linear layer leaves it whole."""
    model = build("gcnii", 7, 3, layers=2, hidden=8, dropout=0.9)
    assert [layer.writes for layer in model.layers][:2] == ["h0", None]
    assert [layer.reads for layer in model.layers][2] == ("h0",)
    assert model.layers[0].dropout == 0.0
    x = torch.ones(4, 7)
    h0 = model.layers[0](x, View.whole(adjacency_from_edges([0], [1], None, 4)))
    expected = torch.relu(torch.nn.functional.linear(x, model.layers[0].weight, model.layers[0].bias))
    assert torch.allclose(h0, expected, atol=1e-6)


def test_repr_is_short():
    assert repr(build("gcn", 16, 32, layers=1).layers[0]) == "GCNLayer(16, 32)"


def test_importing_the_package_does_not_import_pyg():
    code = (
        "import sys, trisect.nn; sys.exit(any(m.split('.')[0] in ('torch_geometric', 'pandas') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def test_models_that_read_edges():
    assert [name for name in NAMES if reads_edges(name)] == ["gatv2", "gine", "rgcn"]
    assert reads_edges("recurrent", spatial="gatv2", heads=2)
    assert not reads_edges("recurrent", spatial="gat")
    assert build("gatv2", 7, 3).edge_channels == 0
    assert build("recurrent", 7, 3, spatial="gine", edge_channels=2).edge_channels == 2
    with pytest.raises(ConfigError, match=r"gine reads features of edges, and the data have none; .* or use gin"):
        build("gine", 7, 3)
