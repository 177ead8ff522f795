"""Rows that came later, joined to a record: what all rows give when they are read together under one encoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trisect.data import read_table
from trisect.data.ids import IdIndex, positions_of, read_ids, with_new_ids
from trisect.data.ingest.ingest import Table
from trisect.data.later import LaterRows
from trisect.data.records import TextNames, TimelineRecord
from trisect.errors import DataError

pytest.importorskip("pyarrow")


def _events(steps: range, vertices: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    time = np.repeat(np.arange(steps.start, steps.stop), 6) * 10 + rng.integers(1, 10, 6 * len(steps))
    return {
        "a": [f"v{k}" for k in rng.integers(0, vertices, len(time))],
        "b": [f"v{k}" for k in rng.integers(0, vertices, len(time))],
        "t": time,
        "w": rng.random(len(time)).astype(np.float32),
        "kind": [("card", "cash", "wire")[k] for k in rng.integers(0, 3, len(time))],
    }


def _attributes(vertices: range, times: range, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    when = rng.integers(times.start, times.stop, len(vertices))
    ids = [f"v{k}" for k in vertices]
    return {"id": ids, "since": when, "size": rng.random(len(ids)), "colour": [("r", "g")[k % 2] for k in vertices]}


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {name: [*first[name], *second[name]] for name in first}


@pytest.mark.parametrize("changing", [False, True])
@pytest.mark.parametrize("period", [10, "distinct"])
def test_as_read_together(changing: bool, period: Any) -> None:
    old, new = _events(range(5), 8, 1), _events(range(6, 9), 12, 2)
    accounts, more = _attributes(range(8), range(1, 30), 3), _attributes(range(8, 11), range(20, 80), 4)
    more = _joined(more, {"id": ["v3"], "since": [75], "size": [9.0], "colour": ["blue"]}) if changing else more
    columns: dict[str, Any] = {"src": "a", "dst": "b", "time": "t", "period": period, "weight": "w"}
    columns |= {"id": "id", "vertex_time": "since" if changing else None, "undirected": True}
    if not changing:
        accounts.pop("since"), more.pop("since")
    first = read_table(old, Table(**columns, vertices=accounts, edge_features="kind"))
    together = Table(**columns, vertices=_joined(accounts, more), encoding=first.meta["encoding"])
    expected = read_table(_joined(old, new), together)
    said: list[str] = []
    record = LaterRows(new, more, say=said.append).join(first)
    assert isinstance(record, TimelineRecord)
    assert isinstance(expected, TimelineRecord)
    assert record.names is not None
    assert expected.names is not None
    order = positions_of(expected.names, expected.vertices, record.names)
    assert sorted(order) == list(range(expected.vertices))
    assert np.array_equal(record.offsets, expected.offsets)
    for name in ("time", "weight", "edge_x"):
        assert np.array_equal(getattr(record, name), getattr(expected, name)), name
    for name in ("src", "dst"):
        assert np.array_equal(order[getattr(record, name)], getattr(expected, name))
    assert record.x is not None
    assert expected.x is not None
    assert np.array_equal(record.x, expected.x[..., order, :])
    assert not np.array_equal(record.x, expected.x)
    assert any("never seen in training" in line for line in said)
    assert any("colour=other" in line for line in said) == changing


def test_a_period_that_was_cut_off_is_completed() -> None:
    first = read_table({"a": [0, 1], "b": [1, 2], "t": [0, 11]}, Table("a", "b", "t", 10))
    said: list[str] = []
    record = LaterRows({"a": [2, 0], "b": [0, 2], "t": [15, 44]}, say=said.append).join(first)
    assert isinstance(record, TimelineRecord)
    assert record.offsets.tolist() == [0, 1, 3, 3, 3, 4]
    assert "1 rows of the table fall into step 1, the last trained one" in said[0]
    assert "2 events follow the 2 trained steps (steps 2 to 4, 2 of them empty)" in said[1]


def test_late_rows_are_refused_before_anything_else() -> None:
    first = read_table({"a": [0, 1], "b": [1, 2], "t": [0, 11]}, Table("a", "b", "t", 10))
    with pytest.raises(DataError, match="1 of 2 rows of the table are not later than the last trained time, 11"):
        LaterRows({"a": [2, 0], "b": [0, 2], "t": [11, 44]}).join(first)
    with pytest.raises(DataError, match="give rows that came after it"):
        LaterRows({"a": [2], "b": [0], "t": [3]}, on_late="drop").join(first)


def test_ids_of_numbers_and_text() -> None:
    names = TextNames.of(["7", "x", "12"])
    assert positions_of(names, 3, np.array([12, 7, 8])).tolist() == [2, 0, -1]
    assert positions_of(None, 4, read_ids(["3", "0", "4"])).tolist() == [3, 0, -1]
    assert positions_of(np.array([9, 2, 5]), 3, np.array([5, 9, 1])).tolist() == [2, 0, -1]
    for own, count, ids in (
        (names, 3, np.array([12, 7, 8])),
        (names, 3, read_ids(["x", "8"])),
        (None, 4, read_ids(["3", "y"])),
        (None, 4, np.array([3, 0, 4])),
        (np.array([9, 2, 5]), 3, np.array([5, 9, 1])),
        (np.array([9, 2, 5]), 3, read_ids(["5", "z"])),
    ):
        assert IdIndex(own, count).positions(ids).tolist() == positions_of(own, count, ids).tolist()
    where, joined, count = with_new_ids(None, 2, np.array([1, 2]))
    assert (where.tolist(), joined, count) == ([1, 2], None, 3)
    where, joined, count = with_new_ids(None, 2, read_ids(["1", "y"]))
    assert where.tolist() == [1, 2]
    assert joined is not None
    assert joined[:].tolist() == ["0", "1", "y"]
