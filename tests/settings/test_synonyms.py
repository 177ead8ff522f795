"""Names of other libraries are accepted wherever ours are, and unknown ones are refused with the nearest."""

from __future__ import annotations

from typing import Any

import pytest

import trisect
from trisect.config import TrainOptions, apply_overrides, parse_config
from trisect.errors import ConfigError

PLAIN: dict[str, Any] = {
    "data": {"generate": "community"},
    "model": {"name": "gcn", "hidden_channels": 8, "num_layers": 3},
    "task": "node-classification",
    "train": {"optimiser": "sgd"},
}


def test_in_a_file_and_on_the_command_line() -> None:
    config = parse_config(PLAIN)
    assert (config.model.hidden, config.model.layers, config.train.optimizer) == (8, 3, "SGD")
    assert {"hidden", "layers"} < config.resolved()["model"].keys()
    more = ("model.hidden=4", "model.num_layers=5", "train.optimizer.name=adamw", "train.optimizer.eps=1e-3")
    config = parse_config(apply_overrides(PLAIN, more))
    assert (config.model.hidden, config.model.layers) == (4, 5)
    assert config.train.optimizer == {"name": "AdamW", "eps": 1e-3}
    assert parse_config(config.resolved()) == config


def test_in_python() -> None:
    assert TrainOptions(optimiser="adamw") == TrainOptions(optimizer="AdamW")
    ours = trisect.nn.build("gcn", 4, 2, hidden=6, layers=3, seed=1).state_dict()
    theirs = trisect.nn.build("gcn", 4, 2, hidden_channels=6, num_layers=3, seed=1).state_dict()
    assert all((ours[name] == theirs[name]).all() for name in ours)
    graph = trisect.Graph.generate("community", vertices=60, features=4, classes=2)
    one = trisect.plan("gcn", graph, devices=2, hidden=6, cluster="8xa100")
    assert one.layout == trisect.plan("gcn", graph, devices=2, hidden_channels=6, cluster="8xa100").layout


@pytest.mark.parametrize(
    ("section", "spoilt", "words"),
    [
        ("model", {"hidden": 3}, "model has both hidden(_channels)? and its other name"),
        ("train", {"optimizer": "adam"}, "train has both optimi.er and its other name"),
        ("train", {"optimizr": "adam"}, r"train\.optimizr is not a setting; did you mean train\.optimizer"),
    ],
)
def test_both_names_and_unknown_ones_are_refused(section: str, spoilt: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config({**PLAIN, section: {**PLAIN[section], **spoilt}})
    with pytest.raises(ConfigError, match="model gcn has both"):
        trisect.nn.build("gcn", 4, 2, hidden_channels=6, hidden=3)
