"""Each mistake of a user: exit code 2, one sentence, no traceback, nothing written, nothing overwritten."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def refused(trisect, tmp_path):
    """Run a command that must be refused; returns its sentence."""

    def call(*arguments: str | Path) -> str:
        before = contents(tmp_path)
        shown = trisect(*arguments)
        assert shown.code == 2, shown.out + shown.err
        assert shown.err.startswith("trisect: ")
        assert shown.err.count("\n") == 1
        assert "Traceback" not in shown.err + shown.out
        assert contents(tmp_path) == before
        return shown.err

    return call


def change(path: Path, **sections: object) -> Path:
    settings = yaml.safe_load(path.read_text())
    for name, value in sections.items():
        if isinstance(value, dict) and isinstance(settings.get(name), dict) and name != "data":
            settings[name].update(value)
        else:
            settings[name] = value
    target = path.with_name("changed.yaml")
    target.write_text(yaml.safe_dump(settings))
    return target


def graph(path: Path, **changes: np.ndarray) -> Path:
    """An archive of twelve vertices in a ring (the format of heterophilous sets), with arrays replaced."""
    n = 12
    edges = np.stack([np.arange(n), (np.arange(n) + 1) % n], 1)
    masks = np.zeros((1, n), bool)
    arrays = {
        "edges": edges,
        "node_features": np.eye(n, dtype=np.float32),
        "node_labels": np.arange(n) % 2,
        "train_masks": masks | (np.arange(n) < 6),
        "val_masks": masks | ((np.arange(n) >= 6) & (np.arange(n) < 9)),
        "test_masks": masks | (np.arange(n) >= 9),
    }
    np.savez(path, **{**arrays, **changes})
    return path


def test_a_sound_archive_trains(trisect, small, tmp_path):
    config = change(small, data={"path": str(graph(tmp_path / "graph.npz"))})
    shown = trisect("train", config, "--out", "run")
    assert shown.code == 0, shown.err


@pytest.mark.parametrize("command", ["train", "check"])
def test_missing_configuration(refused, command):
    assert "none.yaml does not exist" in refused(command, "none.yaml")


@pytest.mark.parametrize("command", ["train", "check"])
def test_unknown_example(refused, command):
    assert "did you mean 'timeline'?" in refused(command, "timelin")


@pytest.mark.parametrize("command", ["train", "check"])
def test_not_yaml(refused, command, tmp_path):
    (tmp_path / "bad.yaml").write_text("data: [unclosed")
    assert "is not YAML" in refused(command, "bad.yaml")


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("train.epoch=3", "train.epoch is not a setting; did you mean train.epochs?"),
        ("model.layer=3", "model.layer is not a setting; did you mean model.layers?"),
        ("model.activation=reluu", "reluu"),
        ("data.vertces=3", "did you mean 'vertices'?"),
        ("data.vertices=many", "data.vertices is 'many'"),
        ("task.splt=3", "task.splt is not a setting; did you mean task.split?"),
        ("train.epochs=ten", "train.epochs is 'ten', but must be a whole number."),
        ("train.device=cuda:7", "train.device is 'cuda:7'"),
        ("train.device=abacus", "train.device is 'abacus'"),
        ("train.monitor=val.accurcy", "did you mean 'val.accuracy'?"),
        ("train.monitor=accuracy", "train.monitor is 'accuracy', but must look like val.accuracy."),
        ("data.smoothing={kind: edge-life, length: 2}", "data.smoothing is for timelines"),
        ("model.name=cd-gcn", "timeline"),
        ("layout.layer=99", "layout.layer is 99, and the model has"),
        ("layout.chunks=9999", "layout.vertex × layout.chunks is 1 × 9999, more than the graph's"),
        ("layout.blocks=2", "layout.blocks is 2, but the data are one graph, which has no steps; leave blocks out"),
        (
            "layout={vertex: 2, chunks: 2, spatial: redistribute}",
            "layout.spatial is redistribute, but chunks read history",
        ),
        ("layout.time=2", "layout.time is 2, but the data are one graph, which has no steps; leave time out"),
    ],
)
def test_settings(refused, small, command, override, sentence):
    assert sentence in refused(command, small, "--set", override)


@pytest.mark.parametrize("command", ["train", "check"])
def test_an_exchange_that_a_layer_refuses(refused, small, command):
    """The sentence is said by the command itself and names no rank: no rank has started."""
    words = ("--set", "model.name=gatv2", "--layout", "vertex=2,spatial=redistribute")
    assert refused(command, small, *words).startswith(
        "trisect: layout.spatial is redistribute, but layer 0 of the model"
    )


@pytest.mark.parametrize("command", ["train", "check"])
def test_layout_with_a_typing_mistake(refused, small, command):
    assert "layout.vertx is not a setting" in refused(command, small, "--layout", "vertx=2")


@pytest.mark.parametrize("command", ["train", "check"])
def test_missing_data(refused, small, tmp_path, command):
    assert "none.npz" in refused(command, change(small, data={"path": "none.npz"}))
    assert "--data-dir" in refused(command, change(small, data={"name": "cora"}))
    assert "cora" in refused(command, change(small, data={"name": "cora"}), "--data-dir", tmp_path)


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize("damage", ["text", "truncated"])
def test_corrupt_archive(refused, small, tmp_path, command, damage):
    path = graph(tmp_path / "graph.npz")
    path.write_bytes(b"this is no archive" if damage == "text" else path.read_bytes()[:500])
    assert "graph.npz" in refused(command, change(small, data={"path": str(path)}))


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize(
    ("arrays", "word"),
    [
        ({"node_labels": np.zeros(7, np.int64)}, "label"),
        ({"train_masks": np.zeros((1, 12), bool)}, "train"),
        ({"train_masks": np.ones((1, 5), bool)}, "train"),
        ({"edges": np.array([[0, 40]])}, "x has the shape [12, 12]; it must be [41, features]"),
        ({"node_features": np.full((12, 2), np.nan, np.float32)}, "x[0, 0] is nan"),
    ],
)
def test_arrays_that_do_not_fit(refused, small, tmp_path, command, arrays, word):
    path = graph(tmp_path / "graph.npz", **arrays)
    assert word in refused(command, change(small, data={"path": str(path)}))


@pytest.mark.parametrize("command", ["train", "check"])
def test_timeline_shorter_than_the_window(refused, small_timeline, command):
    sentence = refused(command, small_timeline, "--set", "data.smoothing={kind: edge-life, length: 50}")
    assert "data.smoothing.length is 50, but the timeline has 8 steps" in sentence
    sentence = refused(command, small_timeline, "--set", "model.name=tm-gcn", "--set", "model.window=50")
    assert "model.window is 50, but the timeline has 8 steps" in sentence


def test_output_directory_that_holds_another_run(trisect, refused, small, tmp_path):
    assert trisect("train", small, "--out", "run").code == 0
    assert "already holds a run" in refused("train", small, "--out", "run")
    assert "already holds a run" in refused("check", small, "--out", "run")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("precious")
    assert "is not empty" in refused("train", small, "--out", "thesis")
    assert "is a file" in refused("train", small, "--out", "thesis/chapter.txt")


def test_resuming_what_is_not_there(refused, small, tmp_path):
    assert "holds no run" in refused("train", "--out", "none", "--resume")
    assert "no run of small under runs/" in refused("train", small, "--resume")


def test_resuming_another_run(trisect, refused, small):
    assert trisect("train", small, "--out", "run").code == 0
    sentence = refused("train", "--out", "run", "--resume", "--set", "model.hidden=16")
    assert "model.hidden is 16, but the run in run was made with 8" in sentence


def damage(run: Path, epochs: list[int]) -> None:
    for epoch in epochs:
        path = run / "checkpoints" / f"epoch-{epoch:06d}" / "rank-00000.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)


def test_damaged_checkpoints(trisect, refused, small, tmp_path):
    assert trisect("train", small, "--out", "run", "--set", "train.keep=9").code == 0
    damage(tmp_path / "run", [2, 4, 6])
    for arguments in (["train", "--resume", "--out", "run"], ["predict", "run", "--out", "x.npz"]):
        assert "does not match the hash in its manifest" in refused(*arguments)


def test_a_damaged_checkpoint_is_passed_over(trisect, small, tmp_path):
    assert trisect("train", small, "--out", "run", "--set", "train.keep=9").code == 0
    damage(tmp_path / "run", [6])
    shown = trisect("train", "--resume", "--out", "run")
    assert shown.code == 0
    assert "epoch-000006 is damaged" in shown.out
    assert "Continuing from epoch-000004 instead." in shown.out


@pytest.mark.parametrize("command", ["report", "predict"])
def test_no_run(refused, tmp_path, command):
    assert "holds no run" in refused(command, "nowhere")
    (tmp_path / "empty").mkdir()
    assert "holds no run" in refused(command, "empty")


def test_predict_to_a_bad_place(trisect, refused, small):
    assert trisect("train", small, "--out", "run").code == 0
    assert "must end in .parquet or .npz" in refused("predict", "run", "--out", "x.csv")
    assert "does not exist" in refused("predict", "run", "--out", "no/where/x.npz")


def test_unknown_measurement(refused):
    assert "unknown measurement 'spmn'" in refused("bench", "spmn")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("train", "{small}", "--set", "epochs=5"), "epochs is not a setting; did you mean train.epochs?"),
        (("train", "{small}", "--epochs", "5"), "--set train.epochs=20; trisect train --help shows what there is."),
        (("train", "{small}", "--devices", "two"), "it must be a whole number; trisect train --help"),
        (("data", "foo"), "No such command 'foo'; trisect data --help shows what there is."),
        (("report",), "trisect report --help shows what there is."),
        (("check", "tabs.yaml"), "at line 2; indent with spaces, not with tabs."),
        (("check", "empty.yaml"), "empty.yaml is empty, but a configuration is a mapping with the keys data, model"),
        (("train", "edges.csv"), "of a table make a graph first, with trisect data ingest."),
        (("data", "ingest", ".", "-o", "new"), "the table . is a directory; give a file."),
        (("data", "ingest", "one.csv", "-o", "new"), "has 1 column, and dst would be column 2; check what separates"),
        (("data", "info", "no/such"), "no/such does not exist; check the path, or give the name of a data set"),
        (("predict", "."), ". holds no run: there is no config.yaml in it; give the directory of a run."),
    ],
)
def test_what_newcomers_type(refused, small, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tabs.yaml").write_text("data:\n\tpath: payments\n")
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "edges.csv").write_text("from,to\na,b\n")
    (tmp_path / "one.csv").write_text("from\na\nb\n")
    assert sentence in refused(*(str(small) if word == "{small}" else word for word in arguments))
