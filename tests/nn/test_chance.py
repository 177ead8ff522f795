"""Chance by place: neither the order of vertices nor that of layers shares a number; and models that do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trisect.errors import ConfigError
from trisect.nn import DropoutLayer, GCN2Layer, GCNLayer, LinearLayer, Model, build
from trisect.noise import Noise
from trisect.views.view import View

MODELS = ["gcn", "sage", "gcnii", "resgcn+", "gat", "gin"]


@pytest.mark.parametrize("name", MODELS)
def test_dropout_does_not_depend_on_the_order_of_vertices(name, graph, close):
    model = build(name, 5, 4, layers=3, hidden=8, input_dropout=0.3).double()
    order = torch.randperm(23, generator=torch.Generator().manual_seed(1))
    place = torch.empty_like(order)
    place[order] = torch.arange(23)
    here = graph.adjacency(model.normalisation, model.self_loops)
    there = replace(graph, edge_index=place[graph.edge_index]).adjacency(model.normalisation, model.self_loops)
    expected = model(graph.x, View.whole(here, Noise(4, epoch=1)))
    close(model(graph.x[order], View.whole(there, Noise(4, epoch=1, vertices=order)))[place], expected)
    with pytest.raises(AssertionError, match="differs"):
        close(model(graph.x[order], View.whole(there, Noise(4, epoch=1)))[place], expected)


@pytest.mark.parametrize("name", MODELS)
def test_noise_changes_with_epoch_and_is_absent_in_evaluation(name, graph):
    model = build(name, 5, 4, layers=3, hidden=8).double()
    adjacency = graph.adjacency(model.normalisation, model.self_loops)
    noises = (Noise(1, epoch=0), Noise(1, epoch=0), Noise(1, epoch=1), None)
    first, again, other, none = (model(graph.x, View.whole(adjacency, noise)) for noise in noises)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, none)
    assert torch.equal(none, model.eval()(graph.x, View.whole(adjacency)))


def test_layers_of_one_model_draw_different_masks(graph):
    x = torch.ones(23, 5)
    model = Model([DropoutLayer(5, 0.5), DropoutLayer(5, 0.5)])
    kept = (model(x, View.whole(graph.adjacency(), Noise(0))) > 0).double().mean()
    assert 0.12 < float(kept) < 0.4


def test_models_refuse_layers_that_do_not_fit():
    with pytest.raises(ConfigError, match="reads 4 channels, but layer 0 gives 3"):
        Model([GCNLayer(5, 3), GCNLayer(4, 2)])
    with pytest.raises(ConfigError, match="h0"):
        Model([LinearLayer(5, 3), GCN2Layer(3)])
    with pytest.raises(ConfigError, match="empty"):
        Model([])
