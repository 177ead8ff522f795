"""The summary has the same keys under every layout and from `fit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import trisect
from trisect.cli.main import run_command
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.train.run.summary import seconds_per_epoch

CONFIG = """
data: {generate: community, vertices: 120, classes: 3, features: 8, per_class: 10}
model: {name: gcn, layers: 2, hidden: 8}
task: node-classification
train: {epochs: 2}
"""
LEAST = {"version", "layout", "world", "epochs", "seconds_per_epoch", "loss", "metrics", "communication", "transfer"}
LEAST |= {"memory", "staleness", "partition", "parameters", "plan"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "c.yaml").write_text(CONFIG)
    summaries = {}
    for layout in ("vertex=1", "layer=2", "chunks=4", "vertex=2"):
        out = Path(folder, layout)
        assert run_command(["train", str(folder / "c.yaml"), "--layout", layout, "--out", str(out)]) == 0
        summaries[layout] = json.loads((out / "summary.json").read_text())
    return summaries


def nested(summary: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """The keys of each section; those of `partition` and `staleness` are the cut's, and metrics of the last epoch's."""
    return {
        key: tuple(value)
        for key, value in summary.items()
        if isinstance(value, dict) and key not in ("partition", "staleness", "layout")
    }


def test_every_summary_has_the_same_keys(written: dict[str, dict[str, Any]], community: Graph) -> None:
    fitted = [trisect.fit("gcn", community, epochs=2, hidden=4, layout=layout).summary for layout in ("", "layer=2")]
    keys = {tuple(summary) for summary in (*written.values(), *fitted)}
    assert len(keys) == 1
    assert set(keys.pop()) >= LEAST
    sections = [nested(summary) for summary in (*written.values(), *fitted)]
    assert all(section == sections[0] for section in sections)
    assert sections[0]["communication"][:2] == ("bytes_per_epoch", "by_axis")
    inner = [
        {name: tuple(v) for name, v in s["communication"].items() if isinstance(v, dict)} for s in written.values()
    ]
    assert all(one == {"by_axis": ("vertex", "layer", "time", "weights")} for one in inner)
    splits = {tuple(metrics) for s in (*written.values(), *fitted) for metrics in s["metrics"].values()}
    assert len(splits) == 1
    for summary in (*written.values(), *fitted):
        assert (summary["partition"] is None) == (summary["world"] == 1)
        assert set(summary["plan"]) == {"seconds_per_epoch", "bytes_per_epoch", "memory_bytes"}
        json.dumps(summary, allow_nan=False)


def test_a_timeline_has_the_keys_of_a_graph(written: dict[str, dict[str, Any]], timeline: Timeline) -> None:
    options = {"epochs": 2, "hidden": 4, "layout": "time=2"}
    summary = trisect.fit("cd-gcn", timeline, "link-prediction", **options).summary  # type: ignore[arg-type]
    assert tuple(summary) == tuple(written["vertex=1"])
    others = {key: keys for key, keys in nested(written["vertex=1"]).items() if key != "metrics"}
    assert {key: keys for key, keys in nested(summary).items() if key != "metrics"} == others


def test_parameters_are_those_of_all_stages(written: dict[str, dict[str, Any]]) -> None:
    counts = {summary["parameters"] for summary in written.values()}
    assert counts == {8 * 8 + 8 + 8 * 3 + 3}


def test_seconds_per_epoch() -> None:
    assert seconds_per_epoch([3.0, 1.0, 2.0, float("nan")]) == {"best": 1.0, "median": 2.0}
    assert seconds_per_epoch([]) == {"best": None, "median": None}
