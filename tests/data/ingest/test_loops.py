"""Rows whose source and target are one vertex: counted, said, and kept or left out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from trisect.cli.app import app
from trisect.data.ingest.ingest import Table, read_table
from trisect.data.later import LaterRows
from trisect.data.records import TimelineRecord
from trisect.errors import DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline

pytest.importorskip("pyarrow")

EDGES: dict[str, Any] = {
    "a": ["x", "y", "z", "w", "x"],
    "b": ["y", "y", "x", "w", "z"],
    "t": [3, 1, 2, 4, 5],
    "w": [1.0, 2.0, 3.0, 4.0, 5.0],
    "k": ["p", "q", "p", "q", "q"],
}
COLUMNS: dict[str, Any] = {"src": "a", "dst": "b", "weight": "w", "edge_label": "k", "edge_features": "w"}


def _ends(record: Any) -> list[str]:
    return [f"{record.names[s]}{record.names[d]}" for s, d in zip(record.src, record.dst, strict=True)]


def test_loops_are_counted_and_kept() -> None:
    record = read_table(EDGES, Table(**COLUMNS))
    assert _ends(record) == ["xy", "yy", "zx", "ww", "xz"]
    assert record.meta["rows"]["self_loops"] == 2
    said = [note for note in record.meta["notes"] if "self-loops" in note]
    assert len(said) == 1
    assert said[0].startswith("2 of 5 rows of the table are self-loops")
    assert "kept" in said[0]
    without = read_table({name: [values[0]] for name, values in EDGES.items()}, Table(**COLUMNS))
    assert without.meta["rows"]["self_loops"] == 0
    assert not any("self-loops" in note for note in without.meta["notes"])


@pytest.mark.parametrize("time", [None, "t"])
def test_dropped_as_if_they_had_never_been_there(time: str | None) -> None:
    there = [k for k in range(5) if EDGES["a"][k] != EDGES["b"][k]]
    rest = {name: [values[k] for k in there] for name, values in EDGES.items()}
    more = {"time": time, "period": 1} if time else {}
    record = read_table(EDGES, Table(**COLUMNS, **more, self_loops="drop"))
    expected = read_table(rest, Table(**COLUMNS, **more))
    assert _ends(record) == _ends(expected)
    assert record.vertices == expected.vertices + 1  # w has no other edge, and stays
    for name in ("weight", "edge_x", "edge_y", "time"):
        left, right = getattr(record, name, None), getattr(expected, name, None)
        assert left is right is None or np.array_equal(left, right), name
    if isinstance(record, TimelineRecord) and isinstance(expected, TimelineRecord):
        assert record.offsets.tolist() == expected.offsets.tolist()
    assert any("2 of 5 rows" in note and "were dropped" in note for note in record.meta["notes"])


def test_later_rows_are_treated_alike() -> None:
    columns: dict[str, Any] = {"src": "a", "dst": "b", "time": "t", "period": 1}
    new = {"a": ["x", "y", "v"], "b": ["x", "z", "z"], "t": [8, 7, 6]}
    for choice, count in (("keep", 3), ("drop", 2)):
        first = read_table(EDGES, Table(**columns, self_loops=choice))  # type: ignore[arg-type]
        said: list[str] = []
        joined = LaterRows(new, say=said.append).join(first)
        assert isinstance(joined, TimelineRecord)
        assert len(joined.src) == len(first.src) + count
        assert joined.time is not None
        assert joined.time[-2:].tolist() == ([7, 8] if choice == "keep" else [6, 7])
        assert sum("1 of 3 rows of the table are self-loops" in line for line in said) == 1


@pytest.mark.parametrize("more", [{}, {"time": "t", "period": 1}, {"time": "t", "period": "distinct"}])
def test_later_rows_that_are_loops_alone_leave_the_graph_as_it_is(more: dict[str, Any]) -> None:
    first = read_table(EDGES, Table(src="a", dst="b", **more, self_loops="drop"))
    said: list[str] = []
    joined = LaterRows({"a": ["x", "v"], "b": ["x", "v"], "t": [8, 9]}, say=said.append).join(first)
    assert _ends(joined) == _ends(first)
    assert joined.vertices == first.vertices + 1
    if isinstance(joined, TimelineRecord) and isinstance(first, TimelineRecord):
        assert joined.offsets.tolist() == first.offsets.tolist()
    assert any("2 of 2 rows of the table are self-loops" in line and "dropped" in line for line in said)


def test_the_count_is_of_the_rows_that_are_left() -> None:
    rows = {"a": ["x", "y", None, "", "z"], "b": ["x", "z", "y", "x", "z"]}
    record = read_table(rows, Table(on_missing="drop"))
    assert any(line.startswith("2 of 5 rows of the table were dropped") for line in record.meta["notes"])
    left = "2 of the 3 rows that are left of the table are self-loops"
    assert any(line.startswith(left) for line in record.meta["notes"])
    said: list[str] = []
    LaterRows({**rows, "t": [6] * 5}, on_missing="drop", say=said.append).join(read_table(EDGES, Table("a", "b")))
    assert any(line.startswith(left) for line in said)


def test_python_is_warned_of_them_unless_it_chose() -> None:
    timeline = {"time": "t", "period": 1}
    for make in (
        lambda table, **more: Graph.from_table(table, "a", "b", **more),
        lambda table, **more: Timeline.from_table(table, "a", "b", **timeline, **more),
    ):
        with pytest.warns(UserWarning, match="2 of 5 rows of the table are self-loops") as caught:
            make(EDGES)
        assert [warning.filename for warning in caught] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make(EDGES, self_loops="keep"), make(EDGES, self_loops="drop")
            make({name: values[:1] for name, values in EDGES.items()})


def test_wrong_choices() -> None:
    with pytest.raises(DataError, match="unknown value of self_loops 'remove'"):
        read_table(EDGES, Table(**COLUMNS, self_loops="remove"))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="has self-loops alone"):
        read_table({"a": [1, 2], "b": [1, 2]}, Table(self_loops="drop"))


def test_the_command_says_them_and_drops_them(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("a,b\nx,y\ny,y\n")
    kept = CliRunner().invoke(app, ["data", "ingest", str(tmp_path / "e.csv"), "-o", str(tmp_path / "kept")])
    assert "1 of 2 rows" in kept.output
    assert "--self-loops drop" in kept.output
    dropped = CliRunner().invoke(
        app, ["data", "ingest", str(tmp_path / "e.csv"), "--self-loops", "drop", "-o", str(tmp_path / "dropped")]
    )
    assert dropped.exit_code == 0
    assert "were dropped" in dropped.output
    assert np.load(tmp_path / "dropped" / "src.npy").tolist() == [0]
