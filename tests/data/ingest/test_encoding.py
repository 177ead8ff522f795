from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trisect.data import Encoding, encode, load, read_directory
from trisect.data.describe import notes
from trisect.data.ingest import tables
from trisect.data.ingest.ingest import Table, ingest, read_table
from trisect.errors import DataError

pa = pytest.importorskip("pyarrow")

EDGES = "a,b,t\nx,y,1\ny,z,2\nz,x,3\n"
ACCOUNTS = (
    "account,age,country,opened,fraud\n"
    "x,20,DE,2024-01-01,0\n"
    "y,40,FR,2024-01-03,1\n"
    "z,,DE,2024-01-05,0\n"
    "w,60,,2024-01-07,1\n"
)


def files(folder: Path, edges: str = EDGES, accounts: str = ACCOUNTS) -> tuple[Path, Path]:
    (folder / "e.csv").write_text(edges)
    (folder / "v.csv").write_text(accounts)
    return folder / "e.csv", folder / "v.csv"


def read(folder: Path, edges: str = EDGES, accounts: str = ACCOUNTS, **more: Any) -> Any:
    path, vertices = files(folder, edges, accounts)
    return read_table(path, Table(vertices=vertices, **more))


def test_each_kind_of_column(tmp_path: Path) -> None:
    record = read(tmp_path, features="age,country,opened")
    assert np.asarray(record.names).tolist() == ["w", "x", "y", "z"], "a vertex without edges is kept"
    encoding = Encoding.of(record.meta["encoding"]["vertices"])
    assert encoding.features == (
        *("age", "age is missing"),
        *("country=DE", "country=FR", "country=other", "country is missing"),
        "opened",
    )
    deviation = np.std([20, 40, 60])
    assert record.x is not None
    np.testing.assert_allclose(record.x[:, 0], [20 / deviation, -20 / deviation, 0, 0], atol=1e-6)
    assert record.x[:, 1].tolist() == [0, 0, 0, 1]
    assert record.x[:, 2:6].tolist() == [[0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]]
    np.testing.assert_allclose(record.x[:, 6], np.array([3, -3, -1, 1]) / np.sqrt(5), atol=1e-6)
    assert record.y is None
    assert any("all rows" in note for note in record.meta["notes"])


def test_statistics_are_those_of_training_vertices(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    accounts = "id,amount,fraud\n" + "".join(f"{k},{rng.normal(k, 1)},{k % 2}\n" for k in range(50))
    record = read(tmp_path, "a,b\n0,1\n1,2\n", accounts, label_column="fraud")
    train = record.splits["train"]
    x = record.x[:, 0]
    assert abs(float(x[train].mean())) < 1e-6
    assert abs(float(x[train].std()) - 1) < 1e-6
    assert abs(float(x.mean())) > 1e-6, "statistics of all vertices would give a mean of 0"
    assert record.meta["encoding"]["vertices"]["statistics"] == "training vertices"
    assert "fraud" not in [column["column"] for column in record.meta["encoding"]["vertices"]["columns"]]
    assert record.y.tolist() == [k % 2 for k in range(50)]


def test_categories_of_training_vertices_alone(tmp_path: Path) -> None:
    accounts = "id,kind,fraud\n" + "".join(f"{k},{'c' + str(k)},{k % 2}\n" for k in range(20))
    record = read(tmp_path, "a,b\n0,1\n", accounts, label_column="fraud", categories=100)
    encoding = Encoding.of(record.meta["encoding"]["vertices"])
    assert len(encoding.columns[0].categories) == int(record.splits["train"].sum()) == 12
    others = record.x[~record.splits["train"]]
    assert others[:, -1].tolist() == [1.0] * 8, "a category that training does not have is 'other'"


def test_many_categories_share_one(tmp_path: Path) -> None:
    rows = ["a"] * 5 + ["b"] * 3 + ["c"] * 4 + ["d", "e"]
    accounts = "id,kind\n" + "".join(f"{k},{kind}\n" for k, kind in enumerate(rows))
    record = read(tmp_path, "a,b\n0,1\n", accounts, categories=2)
    encoding = Encoding.of(record.meta["encoding"]["vertices"])
    assert encoding.features == ("kind=a", "kind=c", "kind=other")
    assert record.x.sum(0).tolist() == [5, 4, 5]
    assert any("5 categories; 2 have a feature" in note for note in record.meta["notes"])


def test_new_data_are_encoded_alike(tmp_path: Path) -> None:
    path, vertices = files(tmp_path)
    ingest(path, out=tmp_path / "g", vertices=vertices, label_column="fraud")
    record = read_directory(tmp_path / "g")
    assert json.loads((tmp_path / "g" / "encoding.json").read_text())["vertices"]["columns"][0]["column"] == "age"
    encoding = Encoding.read(tmp_path / "g")
    order = [1, 2, 3, 0]  # the table's order among the sorted ids
    assert record.x is not None
    np.testing.assert_array_equal(encode(vertices, encoding), record.x[order])
    new = encode({"age": [30, None], "country": ["PL", "FR"], "opened": ["2030-01-01", "2024-01-01"]}, encoding)
    assert new.shape == (2, len(encoding.features))
    assert new[0, encoding.features.index("country=other")] == 1.0
    assert new[1, encoding.features.index("age is missing")] == 1.0
    assert not np.array_equal(new[0], new[1])
    with pytest.raises(DataError, match="no such column"):
        encode({"age": [1]}, encoding)
    with pytest.raises(DataError, match=r"1 bad row of 1: 'age' is no finite number"):
        encode({"age": ["old"], "country": ["DE"], "opened": ["2024-01-01"]}, encoding)
    with pytest.raises(DataError, match="keeps no encoding of edges"):
        Encoding.read(tmp_path / "g", "edges")


def test_a_kind_may_be_named(tmp_path: Path) -> None:
    accounts = "id,code\n0,7\n1,8\n2,7\n"
    assert read(tmp_path, "a,b\n0,1\n", accounts).x.shape == (3, 1)
    record = read(tmp_path, "a,b\n0,1\n", accounts, features=["code:category"])
    assert record.x.tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0]]
    with pytest.raises(DataError, match=r"unknown kind of the column 'code': 'categry'; did you mean 'category'"):
        read(tmp_path, "a,b\n0,1\n", accounts, features="code:categry")
    with pytest.raises(DataError, match="named twice"):
        read(tmp_path, "a,b\n0,1\n", accounts, features="code,code")
    with pytest.raises(DataError, match="'id' is the id"):
        read(tmp_path, "a,b\n0,1\n", accounts, features="id")


def test_a_mistake_among_numbers_is_a_bad_row(tmp_path: Path) -> None:
    accounts = "id,age\n" + "".join(f"{k},{k}\n" for k in range(20)) + "20,unknown\n"
    with pytest.raises(DataError, match=r"1 bad row of 21: 'age' is no finite number .*age:category.*line 22"):
        read(tmp_path, "a,b\n0,1\n", accounts)
    record = read(tmp_path, "a,b\n0,1\n", accounts, on_missing="drop")
    assert record.vertices == 20, "the id of a dropped row is no vertex"
    assert any("1 of 21 rows" in note for note in record.meta["notes"])


def test_a_column_that_does_not_vary(tmp_path: Path) -> None:
    record = read(tmp_path, "a,b\n0,1\n", "id,one,none\n0,5,\n1,5,\n")
    assert record.x.tolist() == [[0, 0, 1], [0, 0, 1]], "the constant, the empty column, and its flag"


def test_vertices_without_a_row(tmp_path: Path) -> None:
    record = read(tmp_path, "a,b\n0,1\n1,2\n", "id,age\n0,10\n1,30\n")
    assert record.x.tolist() == [[-1, 0], [1, 0], [0, 1]]
    assert any("1 of 3 vertices have no row" in note for note in record.meta["notes"])


def test_attributes_that_change(tmp_path: Path) -> None:
    accounts = "id,when,level\nx,2,10\ny,0,30\nx,1,20\nx,9,99\ny,-5,40\n"
    edges = "a,b,t\nx,y,0\ny,z,1\nz,x,3\n"
    path, vertices = files(tmp_path, edges, accounts)
    record = read_table(path, Table(time="t", period=1, vertices=vertices, vertex_time="when"))
    encoding = Encoding.of(record.meta["encoding"]["vertices"])
    assert encoding.features == ("level", "level is missing")
    mean, scale = encoding.columns[0].mean, encoding.columns[0].scale
    assert record.x is not None
    assert record.x.shape == (4, 3, 2)
    level = record.x[:, :, 0] * scale + mean
    missing = record.x[:, :, 1]
    assert missing.tolist() == [[1, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]]
    np.testing.assert_allclose(level[1:, 0], [20, 10, 10], atol=1e-4)
    np.testing.assert_allclose(level[:, 1], [30] * 4, atol=1e-4, err_msg="the earlier value of y is overtaken")
    assert any("1 rows of" in note and "after the last event" in note for note in record.meta["notes"])
    with pytest.raises(DataError, match="second row for an id in line 4"):
        read_table(path, Table(time="t", period=1, vertices=vertices))
    with pytest.raises(DataError, match="no column of times of edges"):
        read_table(path, Table(vertices=vertices, vertex_time="when"))
    with pytest.raises(DataError, match="table of their own"):
        read_table(path, Table(time="t", period=1, vertices=vertices, vertex_time="when", label_column="level"))


def test_features_of_edges(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("a,b,t,amount,kind\nx,y,3,10,card\ny,z,1,30,\nz,x,2,20,wire\n")
    ingest(tmp_path / "e.csv", time="t", period=1, out=tmp_path / "g", edge_features="amount,kind")
    record = read_directory(tmp_path / "g", verify=True)
    assert record.edge_x is not None
    encoding = Encoding.read(tmp_path / "g", "edges")
    assert encoding.features == ("amount", "kind=card", "kind=wire", "kind=other", "kind is missing")
    deviation = np.std([10, 20, 30])
    np.testing.assert_allclose(record.edge_x[:, 0], np.array([10, 0, -10]) / deviation, atol=1e-6)
    assert record.edge_x[:, 1:].tolist() == [[0, 0, 0, 1], [0, 1, 0, 0], [1, 0, 0, 0]], "in the order of the times"
    static = load({"path": tmp_path / "e.csv", "edge_features": ["amount"]})
    assert static.edge_x is not None
    np.testing.assert_allclose(static.edge_x[:, 0], np.array([-10, 10, 0]) / deviation, atol=1e-6)


def test_labels_are_refused_where_they_are_ambiguous(tmp_path: Path) -> None:
    path, vertices = files(tmp_path)
    with pytest.raises(
        DataError, match=r"4 columns that may be the label \(age, country, opened, fraud\).*label_column"
    ):
        read_table(path, Table(labels=vertices))
    record = read_table(path, Table(labels=vertices, label_column="fraud"))
    assert record.y is not None
    assert record.y.tolist() == [1, 0, 1, 0]
    assert record.x is None
    country = read_table(path, Table(labels=vertices, label_column="country"))
    assert country.y is not None
    assert country.y.tolist() == [-1, 0, 1, 0], "an empty label is none"
    assert country.meta["classes"] == ["DE", "FR"]
    with pytest.raises(DataError, match=r"no id of the table .* \(column 'age'\) occurs in an edge"):
        read_table(path, Table(labels=vertices, label_column="fraud", id="age", on_missing="drop"))
    with pytest.raises(DataError, match="did you mean 'fraud'"):
        read_table(path, Table(labels=vertices, label_column="fraude"))
    with pytest.raises(DataError, match="no table has labels"):
        read_table(path, Table(label_column="fraud"))
    with pytest.raises(DataError, match="no table of vertices"):
        read_table(path, Table(features="age"))


def test_decimals_are_targets_and_whole_decimals_classes(tmp_path: Path) -> None:
    path, labels = files(tmp_path, accounts="id,y\nx,0.5\ny,\nz,2\n")
    record = read_table(path, Table(labels=labels))
    assert record.y is not None
    assert record.y.dtype == np.float32
    assert np.isnan(record.y[1])
    assert record.y[[0, 2]].tolist() == [0.5, 2.0]
    labels.write_text("id,y\nx,1.0\ny,-1\nz,0.0\n")
    record = read_table(path, Table(labels=labels))
    assert record.y is not None
    assert record.y.tolist() == [1, -1, 0]
    assert "classes" not in record.meta


def test_targets_are_split_so_that_statistics_are_those_of_training_vertices(tmp_path: Path) -> None:
    table = {"id": [f"v{k}" for k in range(20)], "age": list(range(20)), "score": [k + 0.5 for k in range(19)] + [None]}
    edges = {"a": table["id"], "b": table["id"][1:] + table["id"][:1]}
    record = read_table(edges, Table(vertices=table, label_column="score"))
    assert {name: int(mask.sum()) for name, mask in record.splits.items()} == {"train": 11, "val": 4, "test": 4}
    order = [int(name[1:]) for name in np.asarray(record.names)]
    train = [age for age, chosen in zip(order, record.splits["train"], strict=True) if chosen]
    assert record.meta["encoding"]["vertices"]["columns"][0]["mean"] == pytest.approx(np.mean(train))
    assert notes(record) == ["targets: 19, from 0.5 to 18.5, mean 9.5; none: 1"]


def test_labels_beside_a_table_of_vertices(tmp_path: Path) -> None:
    path, vertices = files(tmp_path)
    (tmp_path / "l.csv").write_text("who,what\nz,bad\nx,good\n")
    record = read_table(path, Table(labels=tmp_path / "l.csv", vertices=vertices, features="age"))
    assert record.y is not None
    assert record.y.tolist() == [-1, 1, -1, 0]
    assert record.x is not None
    assert record.x.shape == (4, 2)


def test_both_directions_share_their_features(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("a,b,w\n0,1,1\n1,0,3\n1,2,2\n")
    ingest(tmp_path / "e.csv", out=tmp_path / "g", edge_features="w")
    record = load({"path": tmp_path / "g", "symmetrise": True})
    assert record.edge_x is not None
    assert record.edge_x.shape == (2, 1)
    np.testing.assert_allclose(
        record.edge_x, 0, atol=1e-6, err_msg="the mean of 1 and 3, and 2, which is the mean of all"
    )
    plain = load({"path": tmp_path / "g"})
    assert plain.edge_x is not None
    assert abs(plain.edge_x[0, 0]) > 1


def test_columns_of_types_that_are_no_features() -> None:
    lists = pa.array([[1], [2]])
    with pytest.raises(DataError, match="src 'a' is of the type list"):
        read_table({"a": lists, "b": [0, 1]}, Table())
    with pytest.raises(DataError, match=r"column 'l' is of the type list.*; leave it out"):
        read_table({"a": [0, 1], "b": [1, 0], "l": lists}, Table(edge_features="l"))
    with pytest.raises(DataError, match="time 't' is of the type list"):
        read_table({"a": [0, 1], "b": [1, 0], "t": lists}, Table(time="t", period=1))


def test_texts_that_name_a_vertex_are_no_features_unless_asked_for(tmp_path: Path) -> None:
    accounts = "id,email,age\n" + "".join(f"{k},{k}@example.org,{k}\n" for k in range(40))
    record = read(tmp_path, "a,b\n0,1\n", accounts)
    assert Encoding.of(record.meta["encoding"]["vertices"]).features == ("age",)
    assert any("'email'" in note and "is left out" in note for note in record.meta["notes"])
    asked = read(tmp_path, "a,b\n0,1\n", accounts, features="email,age")
    assert asked.x.shape == (40, 34)


@pytest.mark.parametrize("value", ["seen", 2.5, "2024-05-01"])
def test_a_column_that_begins_with_nothing(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"a": list(range(10)), "b": [0] * 10, "v": pa.array([None] * 7 + [value] * 3)}
    whole = read_table(columns, Table(edge_features="v"))
    monkeypatch.setattr(tables, "ROWS", 2)
    parts = read_table(columns, Table(edge_features="v"))
    assert whole.edge_x is not None
    assert parts.edge_x is not None
    np.testing.assert_array_equal(whole.edge_x, parts.edge_x)
    assert parts.edge_x[:, -1].tolist() == [1] * 7 + [0] * 3
