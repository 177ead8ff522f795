"""`fit(out=…)`: the files of `trisect train`, resumed to the same end, in one process and under layouts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import trisect
from trisect.errors import CheckpointError, ConfigError, DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.nn import GCNLayer
from trisect.train.from_config import resolve
from trisect.train.run.run_directory import read_config

OPTIONS: dict[str, Any] = {"layers": 2, "hidden": 8, "checkpoint_every": 2, "dropout": 0.3}


def files(folder: Path) -> set[str]:
    kept = {path.relative_to(folder).parts[0] for path in folder.rglob("*") if path.is_file()}
    return kept - {"tensorboard"}


ALL = {
    "config.yaml",
    "plan.json",
    "metrics.jsonl",
    "scores.json",
    "events",
    "checkpoints",
    "summary.json",
    "trace.json",
    "report.html",
}


def test_a_run_directory_that_resumes(community: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = trisect.fit("gcn", community, epochs=6, out=tmp_path / "whole", **OPTIONS)
    shown = capsys.readouterr().out
    assert "240 vertices" in shown
    assert "gcn: 2 layers of 8, " in shown
    assert "epoch 6/6  loss" in shown
    assert "val accuracy" in shown
    assert files(tmp_path / "whole") == ALL
    assert json.loads((tmp_path / "whole" / "summary.json").read_text()) == whole.summary
    assert len((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()) == 6
    assert yaml.safe_load((tmp_path / "whole" / "config.yaml").read_text())["train"]["monitor"] == "val.accuracy"

    part = tmp_path / "part"
    trisect.fit("gcn", community, epochs=4, out=part, progress=False, **OPTIONS)
    assert capsys.readouterr().out == ""
    with pytest.raises(CheckpointError, match=r"already holds a run.*resume=True"):
        trisect.fit("gcn", community, epochs=6, out=part, **OPTIONS)
    other = replace(community, x=None if community.x is None else community.x + 1)
    with pytest.raises(CheckpointError, match=r"data\.object is .*sha256"):
        trisect.fit("gcn", other, epochs=6, out=part, resume=True, **OPTIONS)
    run = trisect.fit("gcn", community, epochs=6, out=part, resume=True, **OPTIONS)
    assert "Continuing after epoch 4." in capsys.readouterr().out
    assert run.loss == whole.loss
    for name, value in whole.model.state_dict().items():
        assert torch.equal(run.model.state_dict()[name], value)
    with pytest.raises(ConfigError, match="out is not given"):
        trisect.fit("gcn", community, resume=True)


def test_classes_have_their_names_in_the_report(tmp_path: Path) -> None:
    edges = {"from": list("abcdefgh"), "to": list("bcdefgha")}
    accounts = {"id": list("abcdefgh"), "size": list(range(8)), "kind": ["honest", "fraud"] * 4}
    graph = Graph.from_table(edges, vertices=accounts, id="id", label_column="kind")
    assert graph.class_names == ["fraud", "honest"]
    trisect.fit("gcn", graph, hidden=4, epochs=1, out=tmp_path / "table", progress=False)
    assert json.loads((tmp_path / "table" / "scores.json").read_text())["classes"] == ["fraud", "honest"]
    assert "honest" in (tmp_path / "table" / "report.html").read_text()

    ring = torch.arange(30)
    timeline = Timeline.from_events(
        ring, (ring + 1) % 30, ring % 6, period=1, y=ring % 2, class_names=["odd", "even"], edge_y=ring % 3,
        edge_class_names=["lost", "drawn", "won"],
    )  # fmt: skip
    trisect.fit("cd-gcn", timeline, "edge-classification", hidden=4, epochs=1, out=tmp_path / "events", progress=False)
    assert json.loads((tmp_path / "events" / "scores.json").read_text())["classes"] == ["lost", "drawn", "won"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"y": [0, 1, 2], "class_names": ["a", "b"]}, "class_names has 2 names for 3 classes"),
        ({"class_names": ["a", "b"]}, "class_names has 2 names, and there are no classes"),
        ({"y": [0, 1, 1], "class_names": "ab"}, "class_names is a str; give a list of texts"),
    ],
)
def test_names_that_do_not_fit_their_classes(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        Graph.from_edges([0, 1], [1, 2], vertices=3, **more)


def test_what_a_file_cannot_hold_is_said_where_it_is_read(community: Graph, tmp_path: Path) -> None:
    assert community.x is not None
    trisect.fit([GCNLayer(community.x.shape[1], 10)], community, epochs=1, out=tmp_path / "run", progress=False)
    config = read_config(tmp_path / "run")
    assert config.model.name == "custom"
    assert "GCNLayer" in config.model.options["object"]
    with pytest.raises(DataError, match=r"handed to trisect\.fit in Python"):
        resolve(config)
    plain = config.resolved()
    named = config.model_validate({**plain, "data": {"generate": "community"}})
    with pytest.raises(ConfigError, match=r"model\.name is custom"):
        resolve(named)


def test_made_up_features_are_named(community: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    trisect.fit("gcn", replace(community, x=None), epochs=1, hidden=4)
    assert "The data have no features; log(1 + in-degree)" in capsys.readouterr().out
    trisect.fit("gcn", community, epochs=1, hidden=4)
    assert "no features" not in capsys.readouterr().out


def test_a_recorder_receives_each_epoch_once(community: Graph, tmp_path: Path) -> None:
    class Kept:
        def __init__(self) -> None:
            self.epochs: list[int] = []
            self.states: list[int] = []

        def epoch(self, record: Any) -> None:
            self.epochs.append(record["epoch"])

        def event(self, *_: Any, **__: Any) -> None:
            pass

        def checkpoint(self, tensors: Any, meta: Any, *, best: bool) -> None:
            self.states.append(meta["epoch"])

    kept = Kept()
    trisect.fit("gcn", community, epochs=4, out=tmp_path / "run", recorder=kept, progress=False, **OPTIONS)
    assert kept.epochs == [1, 2, 3, 4]
    assert kept.states == [2, 4]


@pytest.mark.parametrize("layout", ["vertex=2", "time=2"])
def test_memory_and_simple_rules_are_the_same_under_a_cut(timeline: Timeline, layout: str, tmp_path: Path) -> None:
    task = {"name": "link-prediction", "memory": 3, "eval_negatives": 20}
    options: dict[str, Any] = {"epochs": 3, "hidden": 4, "lr": 0.05, "precision": "float64", "progress": False}
    one = trisect.fit("cd-gcn", timeline, task, **options)
    two = trisect.fit("cd-gcn", timeline, task, layout, out=tmp_path / "run", **options)
    assert two.loss == pytest.approx(one.loss, rel=1e-10)
    for split in ("val", "test"):
        assert two.metrics[split]["map"] == pytest.approx(one.metrics[split]["map"], rel=1e-8)
        for rule, measures in one.summary["baselines"][split].items():
            assert two.summary["baselines"][split][rule] == pytest.approx(measures, rel=1e-12)
    assert set(one.summary["baselines"]["test"]) == {"edgebank", "edgebank_window", "recency", "popularity"}
    assert files(tmp_path / "run") == ALL
    assert "Beside simple rules" in (tmp_path / "run" / "report.html").read_text()
    forgetful = trisect.fit("cd-gcn", timeline, {**task, "memory": 0}, **options)
    assert forgetful.loss != pytest.approx(one.loss, rel=1e-6)


NOTEBOOK = """
import sys
import torch
import trisect
from trisect.nn import GCNLayer, LinearLayer

class Doubled(LinearLayer):
    def forward(self, x, g):
        return 2 * super().forward(x, g)

graph = trisect.Graph.generate("community", vertices=200, classes=3, features=8, per_class=10)

def layers():
    torch.manual_seed(0)
    return [GCNLayer(8, 8, activation="relu"), Doubled(8, 3)]

options = dict(layout=sys.argv[1], out="run", checkpoint_every=1)
trisect.fit(layers(), graph, epochs=2, **options)
run = trisect.fit(layers(), graph, epochs=3, resume=True, **options)
print(run.loss == trisect.fit(layers(), graph, epochs=3, layout=sys.argv[1], progress=False).loss)
"""


def test_classes_of_the_main_module_under_a_layout(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    (tmp_path / "script.py").write_text(NOTEBOOK)
    done = subprocess.run(
        [sys.executable, "script.py", "layer=2"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "2 ranks: layer=2." in lines
    assert "Model of 2 layers, 99 parameters" in lines
    assert any(line.startswith("epoch 2/2  loss") for line in lines)
    assert "Continuing after epoch 2." in lines
    assert lines[-1] == "True"
    assert files(tmp_path / "run") == ALL
