from __future__ import annotations

import builtins
import gzip
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trisect.data import ingest, load, read_directory
from trisect.data.ingest import tables as tables_module
from trisect.data.records import Record, StaticRecord, TextNames, TimelineRecord
from trisect.errors import DataError

pa = pytest.importorskip("pyarrow")


def table(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def names_of(record: Record) -> list[str]:
    return [str(v) for v in (range(record.vertices) if record.names is None else np.asarray(record.names))]


def events(record: Record) -> Counter[tuple[Any, ...]]:
    """The multiset of (source, target, step, weight, class) by the user's own ids."""
    names = names_of(record)
    step = np.zeros(len(record.src), int)
    if isinstance(record, TimelineRecord):
        step = np.repeat(np.arange(record.steps), np.diff(record.offsets))
    weight = np.ones(len(record.src)) if record.weight is None else record.weight
    kinds = getattr(record, "edge_y", None)
    classes = record.meta.get("edge_classes")
    kind = [""] * len(record.src) if kinds is None or classes is None else [classes[k] for k in kinds]
    rows = zip(record.src, record.dst, step.tolist(), weight.tolist(), kind, strict=True)
    return Counter((names[a], names[b], t, round(w, 3), k) for a, b, t, w, k in rows)


ids = st.text(alphabet=st.characters(categories=("L", "N"), include_characters="-_."), min_size=1, max_size=6)
row = st.tuples(ids, ids, st.integers(0, 500), st.integers(0, 400).map(lambda k: k / 4), st.sampled_from(["x", "y"]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(row, min_size=1, max_size=30), period=st.integers(1, 100), parquet=st.booleans())
def test_ingest_gives_back_the_same_events(
    rows: list[tuple[str, str, int, float, str]], period: int, parquet: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("table")
    if parquet:
        import pyarrow.parquet

        columns = dict(zip("abtwk", map(list, zip(*rows, strict=True)), strict=True))
        path = folder / "e.parquet"
        pyarrow.parquet.write_table(pa.table(columns), path)
    else:
        path = table(folder / "e.csv", "a,b,t,w,k\n" + "".join(f"{a},{b},{t},{w},{k}\n" for a, b, t, w, k in rows))
    ingest(path, "a", "b", "t", period, "w", edge_label="k", out=folder / "g")
    record = load({"path": folder / "g"})
    start = min(t for _, _, t, _, _ in rows)
    expected = Counter((a, b, (t - start) // period, round(w, 3), k) for a, b, t, w, k in rows)
    assert events(record) == expected
    a, b, t, w, k = rows[0]
    wrong = expected - Counter([(a, b, (t - start) // period, round(w, 3), k)])
    assert events(record) != wrong, "the comparison notices one missing event"


def test_ids_and_moments(tmp_path: Path) -> None:
    path = table(
        tmp_path / "e.csv",
        'from, to,when\nbob, al,2024-01-02T00:00:00\nal,zoë,2024-01-01\n"bob",al,2024-01-01 12:00:00\n',
    )
    ingest(path, "from", "to", "when", "12h", out=tmp_path / "g")
    record = read_directory(tmp_path / "g", verify=True)
    assert isinstance(record, TimelineRecord)
    assert isinstance(record.names, TextNames)
    assert names_of(record) == ["al", "bob", "zoë"]
    assert (record.names[2], record.names[-1], list(record.names[[1, 0]])) == ("zoë", "zoë", ["bob", "al"])
    assert events(record) == Counter(
        {("al", "zoë", 0, 1, ""): 1, ("bob", "al", 1, 1, ""): 1, ("bob", "al", 2, 1, ""): 1}
    )
    assert isinstance(record.src, np.memmap)
    daily = load({"path": tmp_path / "g", "period": "1d"})
    assert isinstance(daily, TimelineRecord)
    assert daily.offsets.tolist() == [0, 2, 3]


def test_moments_with_a_zone(tmp_path: Path) -> None:
    path = table(tmp_path / "e.csv", "a,b,t\n1,2,2024-01-01T23:00:00Z\n2,1,2024-01-02T01:00:00+01:00\n")
    record = load({"path": path, "time": "t", "period": "1h"})
    assert isinstance(record, TimelineRecord)
    assert record.offsets.tolist() == [0, 1, 2]


@pytest.mark.parametrize("ids", [["0", "1", "2"], ["7", "100", "-3"], ["007", "7", "8"], ["1.5", "2", "3"]])
def test_numbers_as_ids(ids: list[str], tmp_path: Path) -> None:
    path = table(tmp_path / "e.csv", "a,b\n" + "".join(f"{x},{y}\n" for x in ids for y in ids))
    record = load({"path": path})
    whole = all(str(int(float(x))) == x for x in ids)
    assert names_of(record) == sorted(ids, key=int if whole else str)
    assert (record.names is None) == (ids == ["0", "1", "2"])
    assert len(record.src) == 9


@pytest.mark.parametrize("packed", [False, True])
def test_edge_list_text(packed: bool, tmp_path: Path) -> None:
    text = "# Directed graph\n# FromNodeId\tToNodeId\n10\t20\n30  10\n% odd\n 20 30 \n\n10\t20\n"
    path = tmp_path / ("s.txt.gz" if packed else "s.txt")
    with gzip.open(path, "wt") if packed else open(path, "w") as file:
        file.write(text)
    record = load({"path": path})
    assert isinstance(record, StaticRecord)
    expected = Counter({("10", "20", 0, 1, ""): 2, ("30", "10", 0, 1, ""): 1, ("20", "30", 0, 1, ""): 1})
    assert events(record) == expected


def test_text_list_of_names_with_times(tmp_path: Path) -> None:
    path = table(tmp_path / "s.edges", "ann bob 3\nbob  cid 1\n")
    record = load({"path": path, "src": 0, "dst": 1, "time": 2, "period": 1})
    assert events(record) == Counter({("bob", "cid", 0, 1, ""): 1, ("ann", "bob", 2, 1, ""): 1})


def test_labels(tmp_path: Path) -> None:
    path = table(tmp_path / "e.csv", "a,b\nx,y\ny,z\n")
    labels = table(tmp_path / "l.csv", "id,label\ny,bad\nw,good\nx,good\n")
    record = load({"path": path, "labels": str(labels)})
    assert names_of(record) == ["w", "x", "y", "z"], "a vertex of the labels alone is an isolated vertex"
    assert record.y is not None
    assert record.y.tolist() == [1, 1, 0, -1]
    assert record.meta["classes"] == ["bad", "good"]
    numbers = table(tmp_path / "n.csv", "id,label\nx,1\ny,-1\nz,0\n")
    record = load({"path": path, "labels": numbers})
    assert record.y is not None
    assert record.y.tolist() == [1, -1, 0]
    assert "classes" not in record.meta
    np.save(tmp_path / "y.npy", np.array([2, 0, 1]))
    record = load({"path": path, "labels": tmp_path / "y.npy"})
    assert record.y is not None
    assert record.y.tolist() == [2, 0, 1]
    np.save(tmp_path / "y.npy", np.array([2, 0]))
    with pytest.raises(DataError, match="2 entries but there are 3 vertices"):
        load({"path": path, "labels": tmp_path / "y.npy"})
    table(labels, "id,label\ny,bad\ny,good\n")
    with pytest.raises(DataError, match=r"second row for an id in line 3"):
        load({"path": path, "labels": labels})


@pytest.mark.parametrize(
    ("options", "text", "words"),
    [
        ({"src": "sorce"}, "source,b\n1,2\n", "src is 'sorce' .* did you mean 'source'"),
        (
            {"time": "t", "period": 1},
            "a,b,t\n1,2,3\n1,2,x\n",
            r"1 bad row of 2: time 't' is no number .* in 1 \(line 3: 'x'\)",
        ),
        (
            {"time": "t", "period": "1d"},
            "a,b,t\n1,2,2024-01-01\n1,2,soon\n",
            r"time 't' is no number .* in 1 \(line 3: 'soon'\)",
        ),
        ({"time": "t", "period": 1}, "a,b,t\n1,2,3\n1,2,\n", r"time 't' is missing in 1 \(line 3\)"),
        ({"time": "t", "period": 1}, "a,b,t\n1,2,3\n1,2,inf\n", r"time 't' is not finite in 1 \(line 3: 'inf'\)"),
        ({"time": "t", "period": -1}, "a,b,t\n1,2,3\n", "period is -1"),
        ({"time": "t", "period": 7}, "a,b,t\n1,2,2024-01-01\n", "with a unit"),
        ({"time": "t"}, "a,b,t\n1,2,1\n1,2,99999999\n", "period is missing"),
        ({"period": 7}, "a,b\n1,2\n", "no time column"),
        ({"time": "t", "period": 1, "time_unit": "sec"}, "a,b,t\n1,2,1\n", "unknown time unit 'sec'"),
        ({}, "", "is empty"),
        ({}, "a,b\n", "is empty"),
        ({}, "# only\n", "is empty"),
        ({}, "a\n1\n", "dst would be column 2"),
        ({"weight": "w"}, "a,b,w\n1,2,3\n2,3,nan\n", r"weight 'w' is missing in 1 \(line 3: 'nan'\)"),
        ({"weight": "w"}, "a,b,w\n1,2,3\n2,3,q\n", r"weight 'w' is no finite number in 1 \(line 3: 'q'\)"),
        ({"weight": "w"}, "a,b,w\n1,2,3\n2,3,\n", r"weight 'w' is missing in 1 \(line 3\).*--on-missing drop"),
        ({}, "a,b\n1,2\n,3\n", r"src 'a' is missing in 1 \(line 3\)"),
        ({}, "a,b\n1,2\n3, \n", r"dst 'b' is missing in 1 \(line 3\)"),
        ({}, "a,b\n1,2\n3\n", r"columns is another one in 1 \(line 3: 1 instead of 2\)"),
    ],
)
def test_bad_tables(options: dict[str, Any], text: str, words: str, tmp_path: Path) -> None:
    path = table(tmp_path / "e.csv", text)
    with pytest.raises(DataError, match=words) as caught:
        ingest(path, out=tmp_path / "g", **options)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == [path], "nothing is left behind"


def test_bad_rows_far_into_the_file_are_counted_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_module, "_BLOCK", 4096)
    rows = [f"u{k},v{k},{k}" for k in range(5000)]
    rows[4321] = "u,v,never"
    path = table(tmp_path / "e.csv", "a,b,t\n" + "\n".join(rows) + "\n")
    with pytest.raises(DataError, match=r"1 bad row of 5,000: .*line 4323: 'never'"):
        load({"path": path, "time": "t", "period": 10})


def test_missing_file_and_occupied_directory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        ingest(tmp_path / "none.csv", out=tmp_path / "g")
    with pytest.raises(DataError, match="does not exist"):
        ingest(tmp_path / "none.parquet", out=tmp_path / "g")
    path = table(tmp_path / "e.csv", "a,b\n1,2\n")
    table(tmp_path / "bad.parquet", "no parquet")
    with pytest.raises(DataError, match="give a readable Parquet"):
        ingest(tmp_path / "bad.parquet", out=tmp_path / "g")
    full = tmp_path / "full"
    full.mkdir()
    table(full / "mine.txt", "keep")
    with pytest.raises(DataError, match="not empty"):
        ingest(path, out=full)
    assert [item.name for item in full.iterdir()] == ["mine.txt"]
    empty = tmp_path / "empty"
    empty.mkdir()
    ingest(path, out=empty)
    assert load({"path": empty}).vertices == 2
    with pytest.raises(DataError, match=r"folder .* does not exist"):
        ingest(path, out=tmp_path / "no" / "g")


def test_many_batches_agree_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = [f"n{a},n{b},{t},{t % 7}" for a, b, t in rng.integers(0, 300, (8000, 3)).tolist()]
    path = table(tmp_path / "e.csv", "a,b,t,w\n" + "\n".join(rows) + "\n")
    options = {"path": path, "time": "t", "period": 10, "weight": "w"}
    whole = load(options)
    monkeypatch.setattr(tables_module, "_BLOCK", 1000)  # more than a hundred batches: dictionaries are joined often
    parts = load(options)
    assert isinstance(whole, TimelineRecord)
    assert isinstance(parts, TimelineRecord)
    assert names_of(whole) == names_of(parts)
    for name in ("src", "dst", "offsets", "weight", "time"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name)), name
    assert events(parts) != events(load({**options, "period": 20}))


@pytest.fixture
def no_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)


NUMERIC = "a,b,t,w,k\n5,7,10,0.5,1\n7,9,3,1.5,0\n5,7,10,2,1\n"


def test_plain_numbers_need_no_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path / "e.csv", NUMERIC)
    options = {"path": path, "time": "t", "period": 5, "weight": "w", "edge_label": "k"}
    with_arrow = load(options)
    monkeypatch.setattr(tables_module, "have_pyarrow", lambda: False)
    without = load(options)
    assert events(with_arrow) == events(without)
    assert names_of(with_arrow) == names_of(without) == ["5", "7", "9"]
    assert events(load({**options, "path": table(tmp_path / "f.csv", NUMERIC.replace("9,3", "5,3"))})) != events(
        without
    )


@pytest.mark.usefixtures("no_pyarrow")
def test_without_pyarrow(tmp_path: Path) -> None:
    path = table(tmp_path / "s.txt", "# x\n1 2\n2  3\n")
    assert events(load({"path": path})) == Counter({("1", "2", 0, 1, ""): 1, ("2", "3", 0, 1, ""): 1})
    with pytest.raises(DataError, match=r"holds 'x' in row 2; .*trisect\[parquet\]"):
        load({"path": table(tmp_path / "e.csv", "a,b\n1,2\nx,3\n")})
    with pytest.raises(DataError, match=r"Parquet, which needs pyarrow.*trisect\[parquet\]"):
        load({"path": table(tmp_path / "e.parquet", "")})
    with pytest.raises(DataError, match="whole numbers"):
        load({"path": table(tmp_path / "d.csv", "a,b\n1.5,2\n2,3\n")})


def test_progress_is_reported(tmp_path: Path) -> None:
    path = table(tmp_path / "e.csv", "a,b\n" + "1,2\n" * 1000)
    shares: list[float] = []
    ingest(path, out=tmp_path / "g", progress=shares.append)
    assert shares
    assert shares[-1] == 1.0
    assert shares == sorted(shares)


WRITE = """
import sys
import numpy as np, pyarrow as pa, pyarrow.csv as csv
rng = np.random.default_rng(0)
names = pa.array([f"user-{k:06x}" for k in range(1_000_000)])
with open(sys.argv[1], "wb") as file:
    writer = None
    for _ in range(10):
        pick = [pa.array(rng.integers(0, 1_000_000, 1_000_000)) for _ in range(2)]
        time = pa.array(rng.integers(1_600_000_000, 1_650_000_000, 1_000_000))
        batch = pa.record_batch([names.take(pick[0]), names.take(pick[1]), time], names=["a", "b", "ts"])
        writer = writer or csv.CSVWriter(file, batch.schema)
        writer.write(batch)
    writer.close()
"""
INGEST = """
import resource, sys
from trisect.data import ingest
ingest(sys.argv[1], "a", "b", "ts", "1d", out=sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_ten_million_rows_within_three_gib(tmp_path: Path) -> None:
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 1024, "the unit of ru_maxrss is KiB here"
    path, out = tmp_path / "e.csv", tmp_path / "g"
    subprocess.run([sys.executable, "-c", WRITE, path], check=True)
    done = subprocess.run([sys.executable, "-c", INGEST, path, out], check=True, capture_output=True, text=True)
    record = read_directory(out)
    assert (record.vertices, len(record.src)) == (1_000_000, 10_000_000)
    assert int(done.stdout) < 3 << 30
