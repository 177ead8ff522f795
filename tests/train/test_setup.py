"""What the loop is handed: above all, which parameters belong to spatial layers, whatever a program calls them."""

from __future__ import annotations

from typing import Any

import pytest

from trisect import fit
from trisect.config import TrainOptions
from trisect.data.generators.generate import generate
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.train.fit import model_maker
from trisect.train.setup import Setup

GROUPS = {"conv": 0.3, "dense": 0.0}


@pytest.fixture(scope="module")
def evolving() -> Timeline:
    return Timeline.from_record(generate("evolving", vertices=60, steps=13, communities=3, features=5))


def losses(data: Timeline, layout: str, decay: Any) -> list[float]:
    task = {"name": "node-classification", "decoder": "linear"}
    return fit("gcn", data, task, layout, epochs=6, lr=0.05, weight_decay=decay, layers=2, hidden=4).loss


@pytest.mark.parametrize("layout", ["blocks=2", pytest.param("time=2", marks=pytest.mark.slow)])
def test_weight_decay_by_group_is_that_of_one_process(evolving: Timeline, layout: str) -> None:
    expected = losses(evolving, "", GROUPS)
    assert losses(evolving, layout, GROUPS) == pytest.approx(expected, rel=1e-5)
    for other in (0.0, 0.3, {"conv": 0.0, "dense": 0.3}):
        assert losses(evolving, "", other) != pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("model", ["gcn", "cd-gcn"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_parameters_of_spatial_layers_have_the_names_that_are_trained(
    evolving: Timeline, model: str, blocks: int
) -> None:
    maker = model_maker(model, {"layers": 2, "hidden": 4}, 0)
    task = {"name": "node-classification", "decoder": "linear"}
    setup = Setup.of(maker, evolving, task, TrainOptions(), Layout(blocks=blocks))
    names = {name for name, _ in setup.modules.named_parameters()}
    assert set(setup.conv_parameters) == {name for name in names if name.startswith("model.layers.")}
    assert any(name.startswith("decoder.") for name in names)
