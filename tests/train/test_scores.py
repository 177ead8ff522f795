"""scores.json: what a run counts of its scores is the same under a cut, and is there for every task that has scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import trisect


def scores_of(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "scores.json").read_text()))


def test_ranks_count_what_one_process_counts(tmp_path: Path, community):
    options = {"layers": 2, "hidden": 8, "epochs": 4, "precision": "float64", "progress": False}
    for name, layout in (("one", "vertex=1"), ("two", "vertex=2")):
        trisect.fit("gcn", community, layout=layout, out=tmp_path / name, **options)
    one, two = scores_of(tmp_path / "one"), scores_of(tmp_path / "two")
    assert set(one) == {"val", "test"}
    for split in one:
        assert one[split]["confusion"] == two[split]["confusion"]
        assert one[split]["calibration"] == two[split]["calibration"]
        assert [c["points"] for c in one[split]["curves"]] == [c["points"] for c in two[split]["curves"]]
    summary = json.loads((tmp_path / "two" / "summary.json").read_text())
    confusion = two["test"]["confusion"]
    right = sum(row[k] for k, row in enumerate(confusion))
    assert summary["metrics"]["test"]["accuracy"] == pytest.approx(right / sum(map(sum, confusion)))


@pytest.mark.parametrize(
    ("task", "of"),
    [
        ({"name": "link-prediction", "eval_negatives": 5}, "links"),
        ({"name": "link-prediction", "eval_negatives": "all", "memory": 2}, "links"),
        ({"name": "edge-classification"}, "predicted class"),
        ({"name": "node-regression", "horizon": 1}, None),
    ],
)
def test_tasks_on_timelines(tmp_path: Path, record, task: dict[str, Any], of: str | None):
    timeline = trisect.Timeline.from_record(record)
    trisect.fit("gcn", timeline, task, layers=1, hidden=4, epochs=1, out=tmp_path / "run", progress=False)
    if of is None:
        assert not (tmp_path / "run" / "scores.json").exists()
        return
    scores = scores_of(tmp_path / "run")
    assert scores["test"]["rows"] > 0
    assert scores["test"]["calibration"]["of"] in (of, "class 1")
    metrics = json.loads((tmp_path / "run" / "summary.json").read_text())["metrics"]["test"]
    if task.get("eval_negatives") == 5 and len(metrics["per_step"]["step"]) == 1:
        assert scores["test"]["curves"][0]["auc"] == pytest.approx(metrics["auc"], abs=5e-3)
