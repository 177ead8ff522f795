"""What would give wrong features or labels without a word is refused, or said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trisect.data.ingest.ingest import Table, read_table
from trisect.errors import DataError

pytest.importorskip("pyarrow")

EDGES = "a,b,when,amount,kind\nx,y,1,2.5,web\ny,z,2,3,app\nz,x,3,4,web\n"
ACCOUNTS = "account,age,fraud\nx,20,0\ny,40,1\nz,30,0\nw,60,1\n"


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    (tmp_path / "e.csv").write_text(EDGES)
    (tmp_path / "v.csv").write_text(ACCOUNTS)
    return tmp_path / "e.csv"


def test_a_label_is_no_feature_though_another_option_names_its_table(edges: Path) -> None:
    accounts = edges.with_name("v.csv")
    record = read_table(edges, Table(vertices=accounts, labels=accounts, label_column="fraud"))
    assert [column["column"] for column in record.meta["encoding"]["vertices"]["columns"]] == ["age"]
    assert any("'fraud' of the table" in note and "no feature" in note for note in record.meta["notes"])
    with pytest.raises(DataError, match="'fraud' is the label; it is no feature"):
        read_table(edges, Table(vertices=accounts, labels=accounts, label_column="fraud", features="age,fraud"))


@pytest.mark.parametrize("word", ["nan", "NA", "null", "None", ""])
def test_a_missing_number_is_no_label(edges: Path, word: str) -> None:
    labels = {"id": ["x", "y", "z"], "label": ["0", "1", word]}
    record = read_table(edges, Table(labels=labels))
    assert record.y is not None
    assert record.y.tolist() == [0, 1, -1]
    targets = read_table(edges, Table(labels={**labels, "label": ["0.5", "1", word]}))
    assert targets.y is not None
    assert targets.y.dtype == np.float32
    assert np.isnan(targets.y).tolist() == [False, False, True]


def test_among_texts_the_same_word_is_a_class_and_said(edges: Path) -> None:
    record = read_table(edges, Table(labels={"id": ["x", "y", "z"], "label": ["none", "major", "minor"]}))
    assert record.meta["classes"] == ["major", "minor", "none"]
    assert any("a class called 'none'" in note for note in record.meta["notes"])


def test_what_is_not_used_is_said(edges: Path) -> None:
    notes = read_table(edges, Table(vertices=edges.with_name("v.csv"), weight="amount")).meta["notes"]
    assert any(note.endswith("e.csv: when, kind.") for note in notes)
    assert any(note.startswith("1 of 4 ids of the table") and "no edge" in note for note in notes)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"src": "a", "dst": "a"}, "src and dst are both the column 'a'"),
        ({"edge_features": "a"}, "'a' of the table .* is the src"),
        ({"edge_label": "kind", "edge_features": "kind", "time": "when"}, "is the edge label; it is no feature"),
        ({"edge_label": "amount", "time": "when"}, "edge label holds the decimal 2.5"),
        ({"vertices": "v.csv", "label_column": "account"}, "label_column is 'account', which is the column of ids"),
        ({"labels": {"id": ["p", "q"], "label": [0, 1]}}, "no id of the table of labels"),
        ({"labels": {"id": ["x", "y"], "label": ["inf", "1"]}}, "label 'label' holds 'inf'"),
    ],
)
def test_refused(edges: Path, columns: dict[str, Any], words: str) -> None:
    if isinstance(columns.get("vertices"), str):
        columns = {**columns, "vertices": edges.with_name("v.csv")}
    with pytest.raises(DataError, match=words):
        read_table(edges, Table(**columns))


@pytest.mark.parametrize("labels", [np.array(3), np.array(["a", "b", "c"]), np.zeros((3, 1, 1)), np.ones(3, complex)])
def test_labels_of_a_wrong_shape_or_type(edges: Path, labels: Any) -> None:
    np.save(edges.with_name("l.npy"), labels)
    with pytest.raises(DataError, match="give a number a vertex"):
        read_table(edges, Table(labels=edges.with_name("l.npy")))


def test_times_finer_than_microseconds(edges: Path) -> None:
    table = {
        "a": [1, 2],
        "b": [2, 1],
        "t": ["2024-01-01T00:00:00.123456789", "2024-01-01T00:00:01.123456Z"],
        "d": np.array(["2024-01", "2024-02"], "datetime64[M]"),
    }
    record = read_table(table, Table(time="t", period="1s"))
    assert record.time is not None  # type: ignore[union-attr]
    assert np.diff(record.time).tolist() == [1_000_000]  # type: ignore[union-attr]
    months = read_table(table, Table(time="d", period="1d"))
    assert months.steps == 32  # type: ignore[union-attr]


def test_numbers_that_float32_does_not_hold_are_bad_rows(edges: Path) -> None:
    table = {"a": [1, 2], "b": [2, 1], "w": [1.0, 1e300]}
    for columns in ({"weight": "w"}, {"edge_features": "w"}):
        with pytest.raises(DataError, match=r"'w' is no finite number.*row 2: 1e\+300"):
            read_table(table, Table(**columns))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"weight 'w' is of the type .*; give numbers"):
        read_table({**table, "w": [[1], [2]]}, Table(weight="w"))


def _written(path: Path, text: str) -> Path:
    """Write the text as CSV, or its columns as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    if path.suffix == ".csv":
        path.write_text(text)
    else:
        names, *rows = (line.split(",") for line in text.split())
        parquet.write_table(pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=names), path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("header", "columns", "words"),
    [
        ("a,b,w,w", {"weight": "w"}, r"weight is 'w', and the table .* has 2 columns of this name; rename all but one"),
        ("a,b,a,w", {}, "src is 'a', and the table .* has 2 columns of this name"),
        ("a,b,t,t", {"time": "t", "period": 1}, "time is 't'"),
        ("a,b,k,k", {"edge_features": "k"}, "the edge feature is 'k'"),
    ],
)
def test_a_column_that_occurs_twice(
    tmp_path: Path, suffix: str, header: str, columns: dict[str, Any], words: str
) -> None:
    table = _written(tmp_path / f"e{suffix}", f"{header}\n1,2,3,4\n5,6,7,8\n")
    with pytest.raises(DataError, match=words):
        read_table(table, Table(**columns))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_of_one_name_that_nothing_reads(tmp_path: Path, suffix: str) -> None:
    record = read_table(_written(tmp_path / f"e{suffix}", "a,b,c,c\n1,2,3,4\n"), Table())
    assert record.vertices == 2
    assert any(note.endswith(f"e{suffix}: c, c.") for note in record.meta["notes"])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_feature_of_vertices_that_occurs_twice(edges: Path, suffix: str) -> None:
    vertices = _written(edges.with_name(f"twice{suffix}"), "account,age,age\nx,20,0\ny,40,1\n")
    with pytest.raises(DataError, match=r"the feature is 'age', and the table .* has 2 columns of this name"):
        read_table(edges, Table(vertices=vertices))


@pytest.mark.parametrize("name", ["e.xlsx", "E.XLS", "e.ods", "e.feather", "e.json", "e.zip"])
@pytest.mark.parametrize("role", ["edges", "vertices", "labels"])
def test_a_file_of_another_format(edges: Path, name: str, role: str) -> None:
    other = edges.with_name(name)
    other.write_bytes(b"PK\x03\x04 whatever,1\n")
    with pytest.raises(DataError, match=rf"the table .*{name} is .*, which is not read; .*CSV.*Parquet") as caught:
        read_table(other, Table()) if role == "edges" else read_table(edges, Table(**{role: other}))
    if name == "e.xlsx":
        assert "pandas.read_excel" in str(caught.value)


@pytest.mark.parametrize("name", ["e.csv", "e.tsv", "e.txt"])
def test_a_spreadsheet_by_another_name(edges: Path, name: str) -> None:
    edges.with_name(name).write_bytes(b"PK\x03\x04\x14\x00\x06\x00,\n1,2\n")
    with pytest.raises(DataError, match=rf"the table .*{name} is a spreadsheet or another zip.*pandas.read_excel"):
        read_table(edges.with_name(name), Table())


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_labels_of_which_each_column_occurs_twice(edges: Path, suffix: str) -> None:
    labels = _written(edges.with_name(f"y{suffix}"), "id,y,y\nx,0,0\ny,1,1\n")
    with pytest.raises(DataError, match=r"label_column is 'y', and the table .* has 2 columns .*; rename all but one"):
        read_table(edges, Table(labels=labels))


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ("web,r", r"1 of 2 categories \(r\) is unknown to the encoding and becomes kind=other"),
        ("q,r", r"2 of 2 categories \(q, r\) are unknown to the encoding and become kind=other"),
    ],
)
def test_categories_that_a_given_encoding_does_not_know(edges: Path, kinds: str, words: str) -> None:
    own = read_table(edges, Table(edge_features="kind"))
    given = {"a": ["x", "y"], "b": ["y", "z"], "kind": kinds.split(",")}
    notes = read_table(given, Table(encoding=own.meta["encoding"])).meta["notes"]
    assert any(re.search(words, note) for note in notes)


def test_features_under_a_given_encoding_have_its_statistics(edges: Path) -> None:
    accounts = edges.with_name("v.csv")
    own = read_table(edges, Table(vertices=accounts, edge_features="amount"))
    given = read_table(edges, Table(vertices=accounts, encoding=own.meta["encoding"]))
    for notes, words in ((own.meta["notes"], "all rows"), (given.meta["notes"], "the given encoding keeps")):
        said = [note for note in notes if "are standardised with" in note]
        assert [words in note for note in said] == [True, True]
    assert all(
        "not of this table, but of the data that it was fitted on" in note
        for note in given.meta["notes"]
        if "are standardised with" in note
    )
