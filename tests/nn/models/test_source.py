"""A stage builds its own layers and no others, with the parameters that they have in the whole model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trisect.nn import NAMES, GCNLayer, LinearLayer, Model
from trisect.nn.models.source import AnyModel, HandedModel, NamedModel, outline_of, stage_of
from trisect.nn.temporal.dynamic import DynamicModel


def on_meta(model: AnyModel) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.is_meta}


@pytest.mark.parametrize("out", [3, None])
@pytest.mark.parametrize("name", NAMES)
def test_a_stage_has_the_parameters_of_the_whole_model(name: str, out: int | None) -> None:
    maker = NamedModel(name, {"layers": 4, "hidden": 8}, 5)
    state = torch.random.get_rng_state()
    whole = maker(6, out, 2)
    count = len(whole.layers)
    own = range(1, count)
    stage = maker.stage(6, out, own, 2, last=True)
    assert torch.equal(torch.random.get_rng_state(), state)
    parameters = dict(whole.named_parameters())
    assert dict(stage.named_parameters()).keys() == parameters.keys()
    assert on_meta(stage) == {key for key in parameters if key.startswith("layers.0.")}
    for key, value in stage.named_parameters():
        if not value.is_meta:
            assert torch.equal(value, parameters[key])
    other = replace(maker, seed=6).stage(6, out, own, 2, last=True)
    assert any(not torch.equal(value, parameters[key]) for key, value in other.named_parameters() if not value.is_meta)


@pytest.mark.parametrize("name", NAMES)
def test_an_outline_takes_no_memory(name: str) -> None:
    maker = NamedModel(name, {"hidden": 8}, 0)
    outline, whole = outline_of(maker, 6, 3, 2), maker(6, 3, 2)
    assert on_meta(outline) == {key for key, _ in whole.named_parameters()}
    assert (outline.in_channels, outline.out_channels) == (whole.in_channels, whole.out_channels)
    assert (outline.normalisation, outline.self_loops) == (whole.normalisation, whole.self_loops)


def test_the_head_belongs_to_the_last_stage() -> None:
    maker = NamedModel("cd-gcn", {"layers": 2, "hidden": 8}, 0)
    first, last = maker.stage(6, 3, range(1), last=False), maker.stage(6, 3, range(1, 2), last=True)
    assert any(key.startswith("head.") for key in on_meta(first))
    assert not any(key.startswith("head.") for key in on_meta(last))


def test_a_model_that_was_handed_over_is_cut_and_the_callers_own_is_not() -> None:
    def made() -> Model:
        return Model([GCNLayer(4, 4), GCNLayer(4, 4), LinearLayer(4, 2)])

    mine, handed = made(), HandedModel(made())
    assert not on_meta(stage_of(mine, 4, 2, range(1, 2), last=False))
    cut = stage_of(handed, 4, 2, range(1, 2), last=False)
    assert {key.split(".")[1] for key in on_meta(cut)} == {"0", "2"}
    assert not isinstance(cut, DynamicModel)
