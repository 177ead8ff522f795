"""Configurations are read strictly; a mistake is one sentence with the field, the value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from trisect.config import apply_overrides, load_config, parse_config, parse_layout
from trisect.errors import ConfigError, LayoutError, TrisectError

BASE = {
    "data": {"generate": "community", "vertices": 100},
    "model": {"name": "gcn", "layers": 4},
    "task": "node-classification",
}


def changed(*overrides: str, layout: str | None = None, **sections: object) -> object:
    return parse_config(apply_overrides({**BASE, **sections}, overrides, layout))


def test_options_of_generators_models_and_tasks_are_kept():
    config = changed("model.alpha=0.1", "task.negatives=5")
    assert config.data.options == {"vertices": 100}
    assert config.model.options == {"alpha": 0.1}
    assert config.task.name == "node-classification"
    assert config.task.options == {"negatives": 5}


def test_resolved_reads_back_equal_through_yaml():
    config = changed("train.lr=1e-3", "data.smoothing={kind: edge-life, length: 5}", "data.period=1d")
    again = parse_config(yaml.safe_load(yaml.safe_dump(config.resolved())))
    assert again == config
    assert again != changed("train.lr=2e-3")
    automatic = changed(layout="auto")
    assert automatic.layout.auto
    assert parse_config(automatic.resolved()) == automatic


def test_numbers_without_a_point_are_numbers():
    assert changed("train.lr=1e-3").train.lr == 1e-3
    assert changed("train.weight_decay=5E-4").train.weight_decay == 5e-4
    assert changed("train.lr=1").train.lr == 1.0


def test_layout_texts():
    config = changed("layout.chunks=4", layout="vertex=2,layer=3")
    layout = config.layout
    assert (layout.vertex, layout.layer, layout.time, layout.chunks, layout.world) == (2, 3, 1, 4, 6)
    assert parse_layout("time=2, temporal=carry").temporal == "carry"
    assert parse_layout("auto").auto
    with pytest.raises(LayoutError, match="must look like vertex=2,layer=2"):
        parse_layout("")


def test_transport():
    assert changed().layout.transport == "auto"
    assert changed(layout="vertex=2,transport=network").layout.transport == "network"
    with pytest.raises(ConfigError, match=r"layout\.transport"):
        changed("layout.transport=pigeon")


def test_a_layout_text_replaces_the_section():
    config = parse_config(apply_overrides({**BASE, "layout": {"chunks": 8, "layer": 4}}, layout="vertex=2"))
    assert (config.layout.vertex, config.layout.layer, config.layout.chunks) == (2, 1, 1)


def test_overrides_leave_the_original_alone():
    plain = {**BASE, "train": {"epochs": 3}}
    apply_overrides(plain, ["train.epochs=9", "model.name=sage"])
    assert plain["train"] == {"epochs": 3}
    assert BASE["model"]["name"] == "gcn"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("train.epoch=3", "train.epoch is not a setting; did you mean train.epochs?"),
        ("trian.epochs=3", "trian is not a setting; did you mean train?"),
        ("train.epochs=ten", "train.epochs is 'ten', but must be a whole number."),
        ("train.epochs=1.5", "train.epochs is 1.5, but must be a whole number."),
        ("train.epochs=true", "train.epochs is True, but must be a whole number."),
        ("train.epochs=0", "train.epochs is 0, but must be at least 1."),
        ("train.lr=-1", "train.lr is -1, but must be above 0."),
        ("train.lr=abc", "train.lr is 'abc', but must be a number."),
        ("train.lr=.nan", "train.lr is nan, but must be a finite number."),
        ("train.lr=null", "train.lr is empty, but must be a number."),
        ("train=3", "train is 3, but must be a mapping of settings."),
        ("model.dropout=1", "model.dropout is 1, but must be below 1."),
        ("task=7", "task is 7, but must be a mapping of settings."),
        ("data.name=cora", "data needs exactly one of name, path and generate, and has name and generate."),
        ("data={}", "data needs exactly one of name, path and generate, and has none of them."),
        ("data.smoothing.knd=edge-life", "data.smoothing.knd is not a setting; did you mean data.smoothing.kind?"),
        ("data.period=-1", "data.period is -1, but must be a number of seconds above 0 or a text like 1d."),
        ("layout.vertx=2", "layout.vertx is not a setting; did you mean layout.vertex?"),
        (
            "train.lr_schedule=onecycle",
            "train.lr_schedule is 'onecycle', but must be one of cosine, none, plateau.",
        ),
        (
            "task=graph-classification",
            "task.name is 'graph-classification', but must be one of custom, edge-classification, link-prediction,"
            " node-classification, node-regression; tasks that label whole graphs are not supported.",
        ),
        ("nonsense", "--set is 'nonsense', but must look like train.epochs=20."),
    ],
)
def test_mistakes(override: str, sentence: str):
    with pytest.raises(ConfigError) as error:
        changed(override)
    assert str(error.value) == sentence


def test_unknown_model_names_the_nearest():
    with pytest.raises(ConfigError, match=r"model\.name is 'gcn2', but must be one of .*; did you mean 'gcn"):
        changed("model.name=gcn2")


def test_a_missing_section_says_what_belongs_into_it():
    with pytest.raises(ConfigError, match=r"model is missing; it is a section with the keys name, layers"):
        parse_config({"data": {"name": "cora"}, "task": "node-classification"})
    with pytest.raises(ConfigError, match=r"modle is not a setting; did you mean model\?"):
        parse_config({"data": {"name": "cora"}, "task": "node-classification", "modle": {}})


@pytest.mark.parametrize("text", ["vertex", "vertex=", "vertex=x", "vertx=2", "vertex=0"])
def test_bad_layout_texts(text: str):
    with pytest.raises(LayoutError, match=r"(?i)layout"):
        parse_layout(text)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"data: [1, 2", "is not YAML"),
        (b"a: b: c", "is not YAML"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"", "a configuration is a mapping"),
        (b"- 1\n- 2", "a configuration is a mapping"),
        (b"train: {}\ntrain: {}\n", "'train' is given twice at line 2"),
        (b"x: !!python/object/apply:os.getcwd []", "is not YAML"),
    ],
)
def test_files_that_hold_no_configuration(tmp_path: Path, content: bytes, part: str):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(TrisectError, match="does not exist"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(TrisectError, match="is a directory"):
        load_config(tmp_path)
