"""The summary has the same keys under every layout and from `fit`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

import trisect
from trisect.cli.main import run_command
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.train.run.summary import seconds_per_epoch

GRAPH = """
data: {generate: community, vertices: 120, classes: 3, features: 8, per_class: 10}
model: {name: gcn, layers: 2, hidden: 8}
task: node-classification
train: {epochs: 2}
"""
TIMELINE = """
data: {generate: evolving, vertices: 40, steps: 8, communities: 2, features: 4}
model: {name: cd-gcn, layers: 2, hidden: 4}
task: link-prediction
train: {epochs: 2}
"""
LEAST = {"version", "layout", "world", "epochs", "seconds_per_epoch", "loss", "metrics", "communication", "transfer"}
LEAST |= {"memory", "staleness", "partition", "parameters", "plan"}
# sections that are null where there is nothing to say: exact training, one rank, what the layout does not cut, no check
NULL = {"staleness", "staleness.loss", "partition", "partition.parts", "partition.chunks", "partition.runs"}
Written = dict[str, dict[str, Any]]


def trained(folder: Path, config: str, layouts: Sequence[str]) -> Written:
    (folder / "c.yaml").write_text(config)
    summaries = {}
    for layout in layouts:
        out = Path(folder, layout)
        assert run_command(["train", str(folder / "c.yaml"), "--layout", layout, "--out", str(out)]) == 0
        summaries[layout] = json.loads((out / "summary.json").read_text())
    return summaries


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory, community: Graph) -> Written:
    layouts = ("vertex=1", "chunks=4", "vertex=2", "layer=2", "layer=2,chunks=4", "vertex=2,layer=2")
    written = trained(tmp_path_factory.mktemp("graphs"), GRAPH, layouts)
    return {**written, "fit": trisect.fit("gcn", community, epochs=2, hidden=4).summary}


@pytest.fixture(scope="module")
def timelines(tmp_path_factory: pytest.TempPathFactory, timeline: Timeline) -> Written:
    written = trained(tmp_path_factory.mktemp("timelines"), TIMELINE, ("vertex=1", "time=2", "vertex=2"))
    fitted = trisect.fit("cd-gcn", timeline, "link-prediction", epochs=2, hidden=4, layout="layer=2").summary
    return {**written, "fit": fitted}


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Give all that is no section, by the keys that lead to it."""
    if not isinstance(value, dict):
        return {path: value}
    return {k: v for key, inner in value.items() for k, v in leaves(inner, f"{path}.{key}".strip(".")).items()}


def beneath(keys: Iterable[str], section: str) -> set[str]:
    return {key for key in keys if key.startswith(f"{section}.")}


def same_keys(summaries: Iterable[dict[str, Any]], *, but: Sequence[str] = ()) -> bool:
    """Say whether all have the same nested keys, but those beneath a section that is null, or that is left out."""
    found = [leaves(summary) for summary in summaries]
    everything = {key for one in found for key in one}
    sections = {section for section in NULL if beneath(everything, section)}
    full = everything - sections - {key for section in but for key in (section, *beneath(everything, section))}
    for one in found:
        absent = {section for section in sections if section in one and one[section] is None}
        expected = full.difference(*(beneath(full, section) for section in absent)) | absent
        own = set(one) - {key for section in but for key in (section, *beneath(one, section))}
        if own != expected:
            return False
    return True


def test_every_summary_has_the_same_keys(graphs: Written, timelines: Written) -> None:
    assert same_keys(graphs.values())
    assert same_keys(timelines.values())
    # measures and rules are those of a task
    assert same_keys([*graphs.values(), *timelines.values()], but=("metrics", "baselines"))
    assert not same_keys([*graphs.values(), *timelines.values()])
    for summary in (*graphs.values(), *timelines.values()):
        assert set(summary) >= LEAST
        assert tuple(summary) == tuple(graphs["vertex=1"])
        assert tuple(summary["communication"]["by_axis"]) == ("vertex", "layer", "time", "weights")
        assert set(summary["plan"]) == {"seconds_per_epoch", "bytes_per_epoch", "memory_bytes"}
        assert all(summary["metrics"][split] for split in ("train", "val", "test"))
        json.dumps(summary, allow_nan=False)


def test_what_is_null_is_not_there(graphs: Written, timelines: Written) -> None:
    for summaries in (graphs, timelines):
        for layout, summary in summaries.items():
            assert (summary["partition"] is None) == (summary["world"] == 1), layout
            assert (summary["staleness"] is None) == ("chunks" not in layout), layout
            partition = summary["partition"] or {"parts": None, "runs": None}
            assert (partition["parts"] is None) == (summary["layout"]["vertex"] == 1), layout
            assert (partition["runs"] is None) == (summaries is graphs or summary["world"] == 1), layout
    parts = [summaries["vertex=2"]["partition"]["parts"] for summaries in (graphs, timelines)]
    assert [sum(part["rows"]) for part in parts] == [120, 40]
    assert all(part["volume"] > 0 and part["vertex_imbalance"] >= 1 for part in parts)


@pytest.mark.parametrize("change", ["a key less", "a key more", "null", "a section of another"])
def test_another_key_is_seen(graphs: Written, change: str) -> None:
    """The negative control of the comparison."""
    other: dict[str, Any] = json.loads(json.dumps(graphs["vertex=2"]))
    if change == "a key less":
        del other["partition"]["parts"]["cut"]
    elif change == "a key more":
        other["memory"]["pages"] = 1
    elif change == "null":
        other["metrics"]["train"] = None
    else:
        other["metrics"]["val"] = {"auc": 0.5}
    assert not same_keys([*graphs.values(), other])


def test_parameters_are_those_of_all_stages(graphs: Written) -> None:
    counts = {summary["parameters"] for layout, summary in graphs.items() if layout != "fit"}
    assert counts == {8 * 8 + 8 + 8 * 3 + 3}


def test_seconds_per_epoch() -> None:
    assert seconds_per_epoch([3.0, 1.0, 2.0, float("nan")]) == {"best": 1.0, "median": 2.0}
    assert seconds_per_epoch([]) == {"best": None, "median": None}
