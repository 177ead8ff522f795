"""trace.json is a Chrome trace that a viewer takes whole: fields, types, rows without overlaps, names of rows."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import trisect
from trisect.graph.graph import Graph
from trisect.train.run.trace import chrome_trace

METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def flaws(trace: dict[str, Any]) -> list[str]:
    """Say what a viewer of the Chrome trace format would refuse, drop or show without a name."""
    said: list[str] = []
    named: dict[str, set[Any]] = {name: set() for name in METADATA}
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in trace["traceEvents"]:
        if not (isinstance(event["name"], str) and type(event["pid"]) is int and type(event["tid"]) is int):
            said.append(f"names of the wrong type: {event}")
        if event["ph"] == "M":
            key, kind = METADATA[event["name"]]
            if not isinstance(event["args"][key], kind):
                said.append(f"metadata without {key}: {event}")
            whole = event["name"].startswith("process")
            named[event["name"]].add(event["pid"] if whole else (event["pid"], event["tid"]))
        elif event["ph"] == "X":
            times = event["ts"], event["dur"]
            if not all(isinstance(each, float) and math.isfinite(each) and each >= 0 for each in times):
                said.append(f"times of the wrong kind: {event}")
            else:
                rows.setdefault((event["pid"], event["tid"]), []).append(times)
            if not (isinstance(event["cat"], str) and isinstance(event["args"], dict)):
                said.append(f"no category or no arguments: {event}")
        else:
            said.append(f"a phase that is neither X nor M: {event}")
    for row, spans in rows.items():
        for (start, length), (following, _) in pairwise(spans):
            if round(start * 1e3) + round(length * 1e3) > round(following * 1e3):
                said.append(f"row {row}: a span of {length} us at {start} reaches over the next at {following}")
        if any(row not in named[name] for name in ("thread_name", "thread_sort_index")):
            said.append(f"row {row} has no name")
        if any(row[0] not in named[name] for name in ("process_name", "process_sort_index")):
            said.append(f"process {row[0]} has no name")
    return said


def event(name: str, start: float, seconds: float, **fields: Any) -> dict[str, Any]:
    return {"name": name, "start": 1.7e9 + start, "seconds": seconds, **fields}


EVENTS = {
    0: [
        event("0F0", 1.0, 0.5, epoch=1),
        event("0B0", 1.4999, 0.5, epoch=1),  # clocks overlap
        event("guard", 2.0, 0.0, why="stale"),
        event("0F0~e", 3.0, 0.25, epoch=1, evaluation=True),
        event("0F0", 2.5, 0.25, epoch=2),  # written later than it came
    ],
    1: [event("1F0", 0.75, 0.5, epoch=1)],
}


def test_what_viewers_ask_for() -> None:
    trace = chrome_trace(EVENTS)
    assert flaws(trace) == []
    spans = [one for one in trace["traceEvents"] if one["ph"] == "X" and one["pid"] == 0]
    assert [(one["name"], one["ts"], one["dur"]) for one in spans if one["tid"] == 1] == [
        ("epoch 1", pytest.approx(250_000.0), pytest.approx(999_900.0)),
        ("epoch 2", pytest.approx(1_750_000.0), pytest.approx(250_000.0)),
        ("evaluation after 1", pytest.approx(2_250_000.0), pytest.approx(250_000.0)),
    ]
    assert [(one["name"], one["cat"]) for one in spans if one["tid"] == 0] == [
        ("0F0", "forward"),
        ("0B0", "backward"),
        ("guard", "run"),
        ("0F0", "forward"),
        ("0F0~e", "forward"),
    ]
    assert spans[-1]["args"] == {"epoch": 1, "evaluation": True}
    assert chrome_trace({}) == {"traceEvents": [], "displayTimeUnit": "ms"}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("dur", 5e6, "reaches over"),
        ("ts", math.nan, "wrong kind"),
        ("pid", "rank 0", "wrong type"),
        ("tid", 7, "no name"),
    ],
)
def test_a_flaw_is_seen(field: str, value: Any, said: str) -> None:
    trace = chrome_trace(EVENTS)
    span = next(one for one in trace["traceEvents"] if one["ph"] == "X" and one["tid"] == 0)
    span[field] = value
    assert any(said in flaw for flaw in flaws(trace))


def test_the_trace_of_a_run(community: Graph, tmp_path: Path) -> None:
    trisect.fit("gcn", community, layers=2, hidden=8, epochs=3, eval_every=2, out=tmp_path / "run", progress=False)
    trace = json.loads((tmp_path / "run" / "trace.json").read_text())
    assert flaws(trace) == []
    spans = [one for one in trace["traceEvents"] if one["ph"] == "X"]
    epochs = [one["name"] for one in spans if one["cat"] == "epoch"]
    assert epochs == ["epoch 1", "epoch 2", "evaluation after 2", "epoch 3", "evaluation after 3"]
    assert {"forward", "backward", "step"} <= {one["cat"] for one in spans}
