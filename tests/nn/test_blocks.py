"""Layers on blocks of the graph: the rows of a block are those of the whole, gradients and dropout included."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from trisect.errors import ConfigError, RunError
from trisect.nn import (
    Context,
    DropoutLayer,
    GATLayer,
    GCN2Layer,
    GCNLayer,
    GINLayer,
    LinearLayer,
    Model,
    ReadoutLayer,
    ResGCNLayer,
    SAGELayer,
    build,
)
from trisect.noise import Noise
from trisect.ops.message import Message

INNER = {"activation": "relu", "dropout": 0.4, "norm": "layer", "residual": True}
LAYERS = {
    "gcn narrow": (lambda: GCNLayer(5, 3, activation="relu", dropout=0.4), "symmetric", True),
    "gcn wide": (lambda: GCNLayer(5, 8, activation="rrelu", dropout=0.4), "symmetric", True),
    "gcn equal": (lambda: GCNLayer(5, 5, **INNER), "symmetric", True),
    "sage narrow": (lambda: SAGELayer(5, 3, activation="relu", dropout=0.4), "row", False),
    "sage equal": (lambda: SAGELayer(5, 5, **INNER), "row", False),
    "sage max": (lambda: SAGELayer(5, 7, reduce="max"), "none", False),
    "gcnii": (lambda: GCN2Layer(5, layer=2, activation="relu", dropout=0.4), "symmetric", True),
    "resgcn+": (lambda: ResGCNLayer(5, dropout=0.4), "symmetric", True),
    "gat": (lambda: GATLayer(5, 2, heads=3, activation="elu", dropout=0.4), "none", True),
    "gat drop": (lambda: GATLayer(5, 2, heads=3, attention_dropout=0.4), "none", True),
    "gat mean": (lambda: GATLayer(5, 5, heads=2, concat=False, **INNER), "none", True),
    "gin narrow": (lambda: GINLayer(5, 3, train_eps=True, mlp_norm="layer", dropout=0.4), "none", False),
    "gin wide": (lambda: GINLayer(5, 8, train_eps=True), "none", False),
    "linear": (lambda: LinearLayer(5, 3, activation="relu", dropout=0.4), "none", False),
    "dropout": (lambda: DropoutLayer(5, 0.4), "none", False),
    "readout": (lambda: ReadoutLayer(5, 3, dropout=0.4), "none", False),
}
BOUNDS = [0, 1, 9, 9, 20, 23]


SPATIAL = [name for name, (make, _, _) in LAYERS.items() if make().spatial]
PREAGGREGATING = [name for name, (make, _, _) in LAYERS.items() if make().preaggregates]


@pytest.fixture(params=list(LAYERS))
def case(request, graph):
    make, kind, loops = LAYERS[request.param]
    torch.manual_seed(0)
    return make().double(), graph.adjacency(kind, loops), graph


def in_blocks(layer, x, h0, adjacency, noise, apart=False):
    """The layer on blocks of rows with all columns, in pieces put side by side."""
    prepared = layer.prepare(x, Context(noise)) if apart else None
    pieces = []
    for start, stop in pairwise(BOUNDS):
        block = adjacency.rows_between(start, stop)
        rows = None if noise is None else noise.rows(start, stop)
        context = Context(rows, {"h0": h0[start:stop]}, noise)
        if not layer.spatial:
            pieces.append(layer(x[start:stop], block, context))
        elif apart:
            pieces.append(layer.combine(Message(prepared), x[start:stop], block, context))
        else:
            pieces.append(layer(x, block, context))
    return torch.cat(pieces)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("noise", [None, Noise(3, epoch=2, layer=1)])
def test_blocks_equal_the_whole(case, close, gradients, noise, apart):
    layer, adjacency, graph = case
    x, h0 = graph.x.requires_grad_(), torch.sin(graph.x.detach()).requires_grad_()
    inputs = [x, h0, *layer.parameters()]
    whole = layer(x, adjacency, Context(noise, {"h0": h0}))
    pieces = in_blocks(layer, x, h0, adjacency, noise, apart)
    close(pieces, whole, 1e-12)
    for got, want in zip(gradients(pieces, inputs), gradients(whole, inputs), strict=True):
        close(got, want)


@pytest.mark.parametrize("case", SPATIAL, indirect=True)
def test_a_halo_block_reads_its_columns_alone(case, close):
    """Rows 4..11 with the columns 2..20: the rows' own features start in the middle of x."""
    layer, _, graph = case
    inside = (graph.edge_index >= 2).all(0) & (graph.edge_index < 21).all(0)
    adjacency = replace(graph, edge_index=graph.edge_index[:, inside]).adjacency("row", True)
    noise = Noise(3)
    h0 = torch.cos(graph.x)
    whole = layer(graph.x, adjacency, Context(noise, {"h0": h0}))
    block = adjacency.rows_between(4, 12).columns_between(2, 21)
    assert block.self_start == 2
    context = Context(noise.rows(4, 12), {"h0": h0[4:12]}, noise.rows(2, 21))
    close(layer(graph.x[2:21], block, context), whole[4:12], 1e-12)


def test_block_comparison_fails_with_the_noise_of_other_rows(graph, close):
    layer = GCNLayer(5, 3, dropout=0.4).double()
    noise, block = Noise(1), graph.adjacency().rows_between(9, 20)
    whole = layer(graph.x, graph.adjacency(), Context(noise))[9:20]
    close(layer(graph.x, block, Context(noise.rows(9, 20))), whole, 1e-12)
    with pytest.raises(AssertionError, match="differs"):
        close(layer(graph.x, block, Context(noise.rows(8, 19))), whole)


@pytest.mark.parametrize("case", SPATIAL, indirect=True)
def test_message_channels_are_what_prepare_gives(case):
    layer, _, graph = case
    assert layer.prepare(graph.x, Context()).shape == (23, layer.message_channels)


@pytest.mark.parametrize("case", PREAGGREGATING, indirect=True)
def test_known_aggregation_gives_the_same(case, close, gradients):
    layer, adjacency, graph = case
    context = Context(Noise(5), {"h0": torch.cos(graph.x)})
    whole = layer(graph.x, adjacency, context)
    known = layer.combine_aggregated(adjacency.dense() @ graph.x, graph.x, context)
    close(known, whole)
    parameters = list(layer.parameters())
    for got, want in zip(gradients(known, parameters), gradients(whole, parameters), strict=True):
        close(got, want)


MODELS = ["gcn", "sage", "gcnii", "resgcn+", "gat", "gin"]


@pytest.mark.parametrize("name", MODELS)
def test_dropout_does_not_depend_on_the_order_of_vertices(name, graph, close):
    model = build(name, 5, 4, layers=3, hidden=8, input_dropout=0.3).double()
    order = torch.randperm(23, generator=torch.Generator().manual_seed(1))
    place = torch.empty_like(order)
    place[order] = torch.arange(23)
    here = graph.adjacency(model.normalisation, model.self_loops)
    there = replace(graph, edge_index=place[graph.edge_index]).adjacency(model.normalisation, model.self_loops)
    expected = model(graph.x, here, Noise(4, epoch=1))
    close(model(graph.x[order], there, Noise(4, epoch=1, vertices=order))[place], expected)
    with pytest.raises(AssertionError, match="differs"):
        close(model(graph.x[order], there, Noise(4, epoch=1))[place], expected)


@pytest.mark.parametrize("name", MODELS)
def test_noise_changes_with_epoch_and_is_absent_in_evaluation(name, graph):
    model = build(name, 5, 4, layers=3, hidden=8).double()
    adjacency = graph.adjacency(model.normalisation, model.self_loops)
    first, again = model(graph.x, adjacency, Noise(1, epoch=0)), model(graph.x, adjacency, Noise(1, epoch=0))
    other, none = model(graph.x, adjacency, Noise(1, epoch=1)), model(graph.x, adjacency)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, none)
    assert torch.equal(none, model.eval()(graph.x, adjacency))


def test_layers_of_one_model_draw_different_masks(graph):
    x = torch.ones(23, 5)
    model = Model([DropoutLayer(5, 0.5), DropoutLayer(5, 0.5)])
    kept = (model(x, graph.adjacency(), Noise(0)) > 0).double().mean()
    assert 0.12 < float(kept) < 0.4


def test_drawing_for_unknown_columns_is_refused(graph):
    block = graph.adjacency().rows_between(0, 5)
    with pytest.raises(RunError, match="columns"):
        ResGCNLayer(5, dropout=0.5).double()(graph.x, block, Context(Noise(0).rows(0, 5)))


def test_models_refuse_layers_that_do_not_fit():
    with pytest.raises(ConfigError, match="reads 4 channels, but layer 0 gives 3"):
        Model([GCNLayer(5, 3), GCNLayer(4, 2)])
    with pytest.raises(ConfigError, match="h0"):
        Model([LinearLayer(5, 3), GCN2Layer(3)])
    with pytest.raises(ConfigError, match="empty"):
        Model([])
