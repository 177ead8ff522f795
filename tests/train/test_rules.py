"""Simple rules of a run: told before the first epoch, the same under every layout and after a resume, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import trisect
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.report.watch.follow import Follower
from trisect.tasks import link_prediction
from trisect.train.rules import Rules, beside

OPTIONS: dict[str, Any] = {"epochs": 4, "hidden": 4, "layers": 2, "checkpoint_every": 2}


def baselines(out: Path) -> Any:
    return json.loads((out / "summary.json").read_text())["baselines"]


@pytest.fixture
def labelled(timeline: Timeline) -> Timeline:
    generator = torch.Generator().manual_seed(3)
    y = torch.randint(0, 2, (timeline.vertices,), generator=generator)
    return Timeline(**{**vars(timeline), "y": y, "splits": {}})


@pytest.mark.parametrize("layout", ["layer=2,chunks=2", pytest.param("vertex=2,layer=2", marks=pytest.mark.slow)])
def test_a_graph_has_the_same_rules_under_every_layout(
    community: Graph, layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = trisect.fit("gcn", community, progress=False, **OPTIONS)
    two = trisect.fit("gcn", community, layout=layout, out=tmp_path / "run", **OPTIONS)
    assert set(one.summary["baselines"]["test"]) == {"majority", "logistic", "logistic_neighbours"}
    assert two.summary["baselines"] == one.summary["baselines"] == baselines(tmp_path / "run")
    values = {name: own["accuracy"] for name, own in one.summary["baselines"]["val"].items()}
    best = max(values, key=lambda name: values[name])
    beside = f"{best.replace('_', ' ')} {values[best]:.4g}"
    lines = capsys.readouterr().out.splitlines()
    told = next(k for k, line in enumerate(lines) if line.startswith(f"Simple rules, val accuracy: {beside}, "))
    assert told < lines.index(next(line for line in lines if line.startswith("epoch 1/4")))
    assert all(f" ({beside})  " in line for line in lines if line.startswith("epoch "))
    assert Follower(tmp_path / "run").beside == beside
    assert "Beside simple rules" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("layout", ["vertex=2", pytest.param("time=2,blocks=2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("task", ["link-prediction", "node-classification"])
def test_a_timeline_has_the_same_rules_under_every_layout(labelled: Timeline, task: str, layout: str) -> None:
    one = trisect.fit("cd-gcn", labelled, task, progress=False, **OPTIONS)
    two = trisect.fit("cd-gcn", labelled, task, layout, progress=False, **OPTIONS)
    assert one.summary["baselines"]["test"]
    assert two.summary["baselines"] == one.summary["baselines"]


def test_a_run_that_goes_on_has_the_rules_that_it_had(community: Graph, tmp_path: Path) -> None:
    whole = trisect.fit("gcn", community, out=tmp_path / "whole", progress=False, **OPTIONS)
    trisect.fit("gcn", community, out=tmp_path / "part", progress=False, **{**OPTIONS, "epochs": 2})
    on = trisect.fit("gcn", community, layout="vertex=2", out=tmp_path / "part", resume=True, progress=False, **OPTIONS)
    assert on.summary["baselines"] == whole.summary["baselines"] != {}


def test_rules_are_not_measured_where_they_are_not_wanted(
    community: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trisect.fit("gcn", community, out=tmp_path / "run", rules=False, **OPTIONS)
    assert run.summary["baselines"] == {}
    shown = capsys.readouterr().out
    assert "imple rule" not in shown
    assert "val accuracy" in shown
    assert "Beside simple rules" not in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("layout", ["", "vertex=2"])
def test_a_run_goes_on_where_rules_fail(community: Graph, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("no rule today")

    monkeypatch.setattr("trisect.tasks.node_classification.fitted_rules", fail)
    with pytest.warns(UserWarning, match=r"could not be measured \(RuntimeError: no rule today\); the run goes on"):
        run = trisect.fit("gcn", community, layout=layout, progress=False, **OPTIONS)
    assert run.summary["baselines"] == {}
    assert run.loss


def test_rules_of_links_are_announced(timeline: Timeline, capsys: pytest.CaptureFixture[str]) -> None:
    for layout in ("", "vertex=2"):
        trisect.fit("cd-gcn", timeline, "link-prediction", layout=layout, **OPTIONS)
        assert capsys.readouterr().out.count("Measuring simple rules on val and test.") == 1


def test_pairs_are_drawn_once_for_rules_and_run(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    sample = link_prediction.sample_distinct

    def counted(key: int, *arguments: Any) -> Any:
        drawn.append(key)
        return sample(key, *arguments)

    monkeypatch.setattr(link_prediction, "sample_distinct", counted)
    trisect.fit("cd-gcn", timeline, "link-prediction", progress=False, **OPTIONS)
    assert len(drawn) == len(set(drawn)) > 0


def test_rules_that_read_many_features_are_announced(
    community: Graph, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trisect.fit("gcn", community, **OPTIONS)
    assert "Measuring simple rules" not in capsys.readouterr().out
    monkeypatch.setattr("trisect.train.rules._MANY", 100)
    trisect.fit("gcn", community, **OPTIONS)
    assert capsys.readouterr().out.count("Measuring simple rules on val and test.") == 1


@pytest.mark.parametrize(
    ("monitor", "shown"), [("val.loss", "val map"), ("train.map", "val map"), ("val.mrr", "val mrr")]
)
def test_rules_are_shown_where_they_lack_what_is_monitored(
    timeline: Timeline, monitor: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trisect.fit("cd-gcn", timeline, "link-prediction", monitor=monitor, **OPTIONS)
    told = capsys.readouterr().out
    assert f"Simple rules, {shown}: " in told
    split, _, name = shown.partition(" ")
    values = {rule: own[name] for rule, own in run.summary["baselines"][split].items()}
    best = max(values, key=lambda rule: values[rule])
    named = "" if monitor == f"{split}.{name}" else f"{shown} "
    assert f" ({best.replace('_', ' ')} {named}{values[best]:.4g})" in told


def test_rules_are_shown_by_test_where_val_has_none() -> None:
    measures = {"val": {}, "test": {"recency": {"map": 0.5, "auc": 0.75}}}
    assert beside(measures, "val.auc") == "recency test auc 0.75"
    assert beside(measures, "val.loss") == "recency test map 0.5"
    assert beside({}, "val.loss") == ""
    assert Rules(measures).describe("val.map") == "Simple rules, test map: recency 0.5."  # type: ignore[arg-type]


def test_a_monitored_error_stands_beside_the_lowest_one(timeline: Timeline, capsys: pytest.CaptureFixture[str]) -> None:
    y = torch.randn(timeline.steps, timeline.vertices, generator=torch.Generator().manual_seed(1)).cumsum(0)
    numbers = Timeline(**{**vars(timeline), "y": y, "splits": {}})
    run = trisect.fit("cd-gcn", numbers, "node-regression", **OPTIONS)
    losses = {name: own["loss"] for name, own in run.summary["baselines"]["val"].items()}
    assert set(losses) == {"mean", "last_value", "ridge", "ridge_neighbours"}
    best = min(losses, key=lambda name: losses[name])
    assert f"({best.replace('_', ' ')} {losses[best]:.4g})" in capsys.readouterr().out
