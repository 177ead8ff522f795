"""The summary has the same keys under every layout and from `fit`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trisect
from trisect.cli.main import run_command
from trisect.graph.graph import Graph
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
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "c.yaml").write_text(CONFIG)
    found = {}
    for layout in ("vertex=1", "layer=2", "chunks=4"):
        out = Path(folder, layout)
        assert run_command(["train", str(folder / "c.yaml"), "--layout", layout, "--out", str(out)]) == 0
        found[layout] = json.loads((out / "summary.json").read_text())
    return found


def test_every_summary_has_the_same_keys(written: dict[str, dict[str, object]], community: Graph) -> None:
    fitted = [trisect.fit("gcn", community, epochs=2, hidden=4, layout=layout).summary for layout in ("", "layer=2")]
    keys = {tuple(summary) for summary in (*written.values(), *fitted)}
    assert len(keys) == 1
    assert set(keys.pop()) >= LEAST
    for summary in (*written.values(), *fitted):
        assert (summary["partition"] is None) == (summary["world"] == 1)
        assert set(summary["plan"]) == {"seconds_per_epoch", "bytes_per_epoch", "memory_bytes"}  # type: ignore[call-overload]
        json.dumps(summary, allow_nan=False)


def test_parameters_are_those_of_all_stages(written: dict[str, dict[str, object]]) -> None:
    counts = {summary["parameters"] for summary in written.values()}
    assert counts == {8 * 8 + 8 + 8 * 3 + 3}


def test_seconds_per_epoch() -> None:
    assert seconds_per_epoch([3.0, 1.0, 2.0, float("nan")]) == {"best": 1.0, "median": 2.0}
    assert seconds_per_epoch([]) == {"best": None, "median": None}
