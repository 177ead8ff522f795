"""What was predicted beside what was measured, and the planned epoch, from the files of a run."""

from __future__ import annotations

import json

import pytest

import trisect
from trisect.report.planned import Compared, compare, planned_spans, predictions, rests_on
from trisect.report.run_view import RunView

PLAN = {
    "expected": {
        "seconds_per_epoch": 0.5,
        "bytes_per_epoch": 1000,
        "bytes_are_exact": True,
        "memory_by_rank": [1 << 20, 2 << 20],
        "cluster": {"name": "<b>mine", "source": "guessed"},
    },
    "schedule": [["0F0 0 0.25", "0U0 0.25 0.1"], ["0F0 0 0.125"]],
}
SUMMARY = {
    "seconds_per_epoch": {"best": 0.3, "median": 0.4},
    "communication": {"bytes_per_epoch": 1000},
    "memory": {"peak_rss_bytes": [1 << 20, 4 << 20]},
}


def test_rows_and_table():
    rows = compare(PLAN, SUMMARY)
    assert [(row.name, round(row.error or 0.0, 3)) for row in rows] == [
        ("Time of an epoch", 0.25),
        ("Sent an epoch", 0.0),
        ("Peak memory of rank 0", 0.0),
        ("Peak memory of rank 1", -0.5),
    ]
    assert [row.exact for row in rows] == [False, True, False, False]
    assert "<b>mine were guessed" in rests_on(PLAN)
    assert Compared("x", "bytes", 5.0, 0.0).error is None


def test_the_rank_that_takes_most_of_many():
    many = {"expected": {"memory_by_rank": [100] * 20}}
    rows = compare(many, {"memory": {"peak_rss_bytes": [*range(19), 400]}})
    assert [(row.name, row.measured) for row in rows] == [("Peak memory of rank 19", 400)]


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"expected": None, "schedule": None},
        {"expected": {"seconds_per_epoch": "<script>", "memory_by_rank": [None, {}], "bytes_per_epoch": True}},
        {"expected": {"seconds_per_epoch": float("nan"), "memory_by_rank": 3}, "schedule": [[5, "0F0", "0F0 nan 1"]]},
        {"schedule": [None, ["0F0 1e400 1", "0F0 0 -1"]]},
    ],
)
def test_files_of_others_give_nothing(plan: dict[str, object]):
    assert compare(plan, SUMMARY) == []
    assert compare(plan, {}) == []
    assert planned_spans(plan) == []


def test_a_run_has_both(tmp_path):
    graph = trisect.Graph.generate("community", vertices=200, degree=4)
    out = tmp_path / "run"
    options = {"layers": 2, "hidden": 8, "epochs": 2, "progress": False}
    trisect.fit("gcn", graph, layout="vertex=2", out=out, **options)
    plan, summary = (json.loads((out / name).read_text()) for name in ("plan.json", "summary.json"))
    rows = {row.name: row for row in compare(plan, summary)}
    assert set(rows) == {"Time of an epoch", "Sent an epoch", "Peak memory of rank 0", "Peak memory of rank 1"}
    assert rows["Sent an epoch"].error == 0
    spans = planned_spans(plan)
    assert len(spans) == 2
    assert any(name.startswith("0WhF") for name, _, _ in spans[0])
    last = max(start + took for rank in spans for _, start, took in rank)
    assert last == pytest.approx(plan["expected"]["seconds_per_epoch"], rel=0.05)
    page = (out / "report.html").read_text()
    assert '"title":"Planned","origin":"what the planner expected before the run"' in page
    assert "Predicted and measured" in page


def test_the_table_escapes_and_rounds(make_run, forge):
    directory = make_run(vertex=2)
    forge(directory, "plan.json", lambda plan: {**plan, **PLAN})
    measured = {**SUMMARY, "communication": {"bytes_per_epoch": 1000, "by_axis": {"vertex": 1000}}}
    forge(directory, "summary.json", lambda summary: {**summary, **measured})
    table = str(predictions(RunView.of(directory)))
    assert "+25.0%" in table
    assert "-50.0%" in table
    assert "&lt;b&gt;mine were guessed" in table
