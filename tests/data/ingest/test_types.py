"""A column of relations, and several tables of vertices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import trisect
from trisect.cli.app import app
from trisect.data.formats.store import read_directory
from trisect.data.ingest.ingest import ingest
from trisect.errors import ConfigError, DataError

EDGES = {
    "from": ["a1", "a2", "a1", "p1", "p2", "a1"],
    "to": ["p1", "p1", "p2", "p2", "p3", "p1"],
    "kind": ["writes", "writes", "reads", "cites", "cites", "reads"],
}
AUTHORS = {"id": ["a2", "a1"], "age": [30.0, 50.0], "land": ["x", "y"]}
PAPERS = {"id": ["p1", "p2", "p3"], "field": ["u", "v", "u"]}


def _frame(columns: Mapping[str, Any]) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns)


def _written(folder: Path, name: str, columns: Mapping[str, list[Any]]) -> Path:
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    (folder / name).write_text("\n".join([",".join(columns), *rows, ""]))
    return folder / name


def test_a_column_of_relations() -> None:
    graph = trisect.Graph.from_table(_frame(EDGES), relation="kind")
    assert graph.relations == ("cites", "reads", "writes")
    assert graph.names is not None
    ids = list(graph.names)
    row, column = graph.relation("reads").coordinates()
    found = {(str(ids[int(j)]), str(ids[int(i)])) for i, j in zip(row, column, strict=True)}
    assert found == {("a1", "p2"), ("a1", "p1")}


def test_relations_of_events_keep_their_order(tmp_path: Path) -> None:
    times = {**EDGES, "time": [5, 4, 3, 2, 1, 0]}
    for timeline in (
        trisect.Timeline.from_table(_frame(times), relation="kind", time="time", period=2),
        trisect.Timeline.from_record(
            read_directory(  # type: ignore[arg-type]
                ingest(
                    _written(tmp_path, "e.csv", times), time="time", period=2, relation="kind", out=tmp_path / "stored"
                )
            )
        ),
    ):
        assert timeline.relations == ("cites", "reads", "writes")
        assert timeline.edge_x is not None
        assert timeline.edge_x.argmax(1).tolist() == [1, 0, 0, 1, 2, 2]
        assert timeline.snapshot(2).edge_channels == 3


def test_tables_of_types_stand_side_by_side(tmp_path: Path) -> None:
    graph = trisect.Graph.from_table(
        _frame(EDGES), relation="kind", vertices={"author": _frame(AUTHORS), "paper": _frame(PAPERS)}
    )
    assert [tuple(kind) for kind in graph.vertex_types] == [("author", 2, 4), ("paper", 3, 3)]
    assert graph.x is not None
    assert graph.x.shape == (5, 4 + 2)
    assert graph.names is not None
    kinds = dict(zip(map(str, graph.names), graph.x[:, 4:].argmax(1).tolist(), strict=True))
    assert kinds == {"a1": 0, "a2": 0, "p1": 1, "p2": 1, "p3": 1}
    x = dict(zip(map(str, graph.names), graph.x.numpy(), strict=True))
    assert x["a1"][0] == pytest.approx(1.0)
    assert x["a2"][0] == pytest.approx(-1.0)
    assert np.array_equal(x["p1"], x["p3"])
    assert not np.array_equal(x["p1"], x["p2"])
    assert (x["p1"][3], x["a1"][5]) == (0.0, 0.0)


def test_the_command_reads_a_table_for_each_type(tmp_path: Path) -> None:
    edges, authors = _written(tmp_path, "edges.csv", EDGES), _written(tmp_path, "authors.csv", AUTHORS)
    papers = _written(tmp_path, "papers.csv", {**PAPERS, "label": ["s", "t", "s"]})
    words = ["data", "ingest", str(edges), "--relation", "kind", "--label-column", "label", "-o", str(tmp_path / "out")]
    given = ["--vertices", f"author={authors}", "--vertices", f"paper={papers}"]
    ended = CliRunner().invoke(app, [*words, *given])
    assert ended.exit_code == 0, ended.output
    assert "3 (reads: 2, writes: 2, cites: 2)" in ended.output or "relations" in ended.output
    record = read_directory(tmp_path / "out")
    assert record.meta["vertex_types"][1] == {"name": "paper", "vertices": 3, "features": 3}
    assert record.y is not None
    assert record.y.tolist() == [-1, -1, 0, 1, 0]
    graph = trisect.Graph.from_record(record)  # type: ignore[arg-type]
    assert [kind.name for kind in graph.vertex_types] == ["author", "paper"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"relation": "kin"}, "relation is 'kin' but the table.*did you mean 'kind'"),
        ({"vertices": {"author": AUTHORS, "paper": PAPERS}, "features": "age"}, "vertices has 2 tables; it is for one"),
        (
            {"vertices": {"author": AUTHORS, "paper": {**PAPERS, "id": ["p1", "p2", "a1"]}}},
            "the id a1 is in the tables",
        ),
        ({"vertices": {"author": AUTHORS, "paper": {"id": ["p1"], "field": ["u"]}}}, "2 vertices are in no table"),
        ({"vertices": {"author": AUTHORS, "paper": PAPERS}, "label_column": "x"}, "no table of vertices has"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], sentence: str) -> None:
    frames = {name: _frame(frame) for name, frame in options.get("vertices", {}).items()}
    with pytest.raises(DataError, match=sentence):
        trisect.Graph.from_table(_frame(EDGES), **{**options, **({"vertices": frames} if frames else {})})


def test_a_row_without_a_relation_is_bad() -> None:
    edges = _frame({**EDGES, "kind": ["writes", "writes", None, "cites", "", "reads"]})
    with pytest.raises(DataError, match="2 bad rows of 6: 'kind' is empty, and each edge needs a relation"):
        trisect.Graph.from_table(edges, relation="kind")
    left = trisect.Graph.from_table(edges, relation="kind", on_missing="drop")
    assert left.edges == 3  # two of the four that are left are between the same vertices
    assert [left.relation(name).entries for name in left.relations] == [1, 1, 2]
    with pytest.raises(ConfigError, match="edges have relations or features"):
        trisect.Graph.from_table(_frame(EDGES), relation="kind", edge_features="kind")
