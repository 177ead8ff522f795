"""Graphs and timelines from the objects of other libraries; each test skips where its library is not installed."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from trisect.data.ingest.ingest import Table, read_table
from trisect.data.records import TimelineRecord
from trisect.errors import DataError
from trisect.graph import Graph, Timeline

ROWS: dict[str, list[Any]] = {
    "payer": ["ann", "bob", "ann", "cid"],
    "payee": ["bob", "cid", "bob", "ann"],
    "when": [datetime(2024, 5, day, 12, tzinfo=timezone.utc) for day in (3, 1, 1, 2)],
    "amount": [1.0, 2.0, 3.0, 4.0],
    "kind": ["card", None, "wire", "card"],
}


def pandas(rows: dict[str, list[Any]]) -> Any:
    frame = pytest.importorskip("pandas").DataFrame(rows)
    return frame.set_index(frame.index + 10)


def polars(rows: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(rows)


def lazy(rows: dict[str, list[Any]]) -> Any:
    return polars(rows).lazy()


def arrow(rows: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("pyarrow").table(rows)


def mapping(rows: dict[str, list[Any]]) -> Any:
    pytest.importorskip("pyarrow")
    return rows


FRAMES = pytest.mark.parametrize("frame", [pandas, polars, lazy, arrow, mapping])
Frame = Callable[[dict[str, list[Any]]], Any]


@FRAMES
def test_timeline_from_a_frame(frame: Frame) -> None:
    timeline = Timeline.from_table(
        frame(ROWS), "payer", "payee", "when", period="1d", weight="amount", edge_features="amount,kind"
    )
    assert (timeline.steps, timeline.vertices, timeline.total_events) == (3, 3, 4)
    assert list(np.asarray(timeline.names)) == ["ann", "bob", "cid"]
    assert [step.tolist() for step in timeline.events(0)] == [[1, 0], [2, 1]]
    assert timeline.weight is not None
    assert timeline.weight.tolist() == [2.0, 3.0, 4.0, 1.0]
    assert timeline.edge_x is not None
    assert timeline.edge_x[:, 1:].tolist() == [[0, 0, 0, 1], [0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    weekly = Timeline.from_table(frame(ROWS), "payer", "payee", "when", period=timedelta(days=7))
    assert weekly.steps == 1


@FRAMES
def test_graph_from_frames(frame: Frame) -> None:
    accounts = {"name": ["bob", "ann", "cid", "dan"], "age": [30, 10, None, 20], "fraud": [1, 0, 0, None]}
    graph = Graph.from_table(
        frame(ROWS),
        "payer",
        "payee",
        vertices=frame(accounts),
        label_column="fraud",
        edge_features="amount",
        merge="sum",
    )
    assert (graph.vertices, graph.edges) == (4, 3)
    assert graph.y is not None
    assert graph.y.tolist() == [0, 1, 0, -1]
    assert graph.x is not None
    assert graph.x.shape == (4, 2)
    assert graph.edge_x is not None
    assert graph.edge_x.shape == (3, 1)
    with pytest.raises(DataError, match="a graph has no times"):
        Graph.from_table(frame(ROWS), "payer", "payee", time="when", period="1d")
    with pytest.raises(DataError, match="did you mean 'payer'"):
        Graph.from_table(frame(ROWS), "payr", "payee")
    with pytest.raises(DataError, match=r"the table has 1 bad row of 4: src 'kind' is missing in 1 \(row 2\)"):
        Graph.from_table(frame(ROWS), "kind", "payee")


def test_categories_and_whole_numbers_of_pandas() -> None:
    library = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = library.DataFrame({"a": [7.0, None, 9.0], "b": [9, 7, 7], "code": library.Categorical([1, 2, 1])})
    record = read_table(frame, Table(edge_features="code", on_missing="drop"))
    assert np.asarray(record.names).tolist() == [7, 9], "ids with gaps are floats in pandas, and whole numbers here"
    assert record.edge_x is not None
    assert record.edge_x.tolist() == [[1, 0], [1, 0]]


def test_categories_of_polars() -> None:
    library = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    frame = library.DataFrame({"a": ["x", "y"], "b": ["y", "x"], "k": ["u", "v"]}).with_columns(
        library.col("a", "k").cast(library.Categorical)
    )
    record = read_table(frame, Table(edge_features="k"))
    assert np.asarray(record.names).tolist() == ["x", "y"]
    assert record.edge_x is not None
    assert record.edge_x.tolist() == [[1, 0, 0], [0, 1, 0]]


def test_what_is_no_table() -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match="give a table of pandas, polars or Arrow"):
        Graph.from_table(3)


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_datetimes_of_pandas(zone: str | None) -> None:
    library = pytest.importorskip("pandas")
    times = library.Series(library.date_range("2024-03-30 23:00", periods=4, freq="12h", tz=zone))
    timeline = Timeline.from_events([0, 1, 2, 0], [1, 2, 0, 1], times, period="1d")
    expected = (times.dt.tz_convert("UTC").dt.tz_localize(None) if zone else times).to_numpy()
    same = Timeline.from_events([0, 1, 2, 0], [1, 2, 0, 1], expected, period="1d")
    assert torch.equal(timeline.offsets, same.offsets)
    hourly = Timeline.from_events([0, 1, 2, 0], [1, 2, 0, 1], times, period="6h")
    assert not torch.equal(hourly.offsets, same.offsets)


@pytest.mark.parametrize(
    "times",
    [
        ["2024-01-01T23:00:00Z", "2024-01-02T01:00:00+01:00", "2024-01-02T00:59:00"],
        np.array(["2024-01-01T23:00:00Z", "2024-01-02T00:30:00+00:30", "2024-01-02T00:01"], object),
        [datetime(2024, 1, 1, 23, tzinfo=timezone.utc), datetime(2024, 1, 2), datetime(2024, 1, 2, 0, 1)],
    ],
)
def test_text_and_datetimes_with_zones(times: Any) -> None:
    assert Timeline.from_events([0, 1, 2], [1, 2, 0], times, period="1h").offsets.tolist() == [0, 1, 3]


def test_times_that_are_none() -> None:
    for times in (["2024-01-01", "soon"], [object(), object()]):
        with pytest.raises(DataError, match=r"time holds .* give numbers"):
            Timeline.from_events([0, 1], [1, 2], times, period="1d")
    with pytest.raises(DataError, match=r"time\[1\] is missing"):
        Timeline.from_events([0, 1], [1, 2], [datetime(2024, 1, 1), None], period="1d")


@pytest.mark.parametrize("form", ["csr_array", "coo_matrix"])
def test_scipy(form: str) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = getattr(sparse, form)(([1.0, 2.0], ([0, 2], [1, 0])), shape=(4, 4))
    graph = Graph.from_scipy(matrix, y=[0, 1, 0, 1])
    assert (graph.vertices, graph.edges) == (4, 2)
    dense = graph.adjacency.dense()
    assert torch.equal(dense.T, torch.from_numpy(matrix.toarray()).float())
    assert not torch.equal(dense, torch.from_numpy(matrix.toarray()).float())
    with pytest.raises(DataError, match="square"):
        Graph.from_scipy(matrix.tocsr()[:2])
    with pytest.raises(DataError, match="is a list"):
        Graph.from_scipy([[0]])


def test_networkx() -> None:
    networkx = pytest.importorskip("networkx")
    made = networkx.Graph()
    made.add_node("c", size=1.0, place=[1, 2], kind="new")
    made.add_node("a", size=2.0, place=[3, 4], kind="old")
    made.add_node("b", size=3.0, place=[5, 6])
    made.add_edge("c", "a", weight=2.0)
    made.add_edge("a", "b")
    graph = Graph.from_networkx(made, x=["size", "place"], y="kind")
    assert list(np.asarray(graph.names)) == ["c", "a", "b"]
    assert graph.edges == 4, "both directions"
    assert torch.equal(graph.adjacency.dense(), torch.tensor(networkx.to_numpy_array(made)).float())
    assert graph.x is not None
    assert graph.x.tolist() == [[1, 1, 2], [2, 3, 4], [3, 5, 6]]
    assert graph.y is not None
    assert graph.y.tolist() == [0, 1, -1]
    several = networkx.MultiDiGraph([(5, 3), (5, 3), (3, 5)])
    graph = Graph.from_networkx(several)
    assert np.asarray(graph.names).tolist() == [5, 3]
    assert torch.equal(graph.adjacency.dense(), torch.tensor([[0.0, 1.0], [2.0, 0.0]]))
    with pytest.raises(DataError, match="x is 'size', which the vertex 5 does not have"):
        Graph.from_networkx(several, x="size")
    with pytest.raises(DataError, match="y is 'kind', which no vertex has"):
        Graph.from_networkx(several, y="kind")


def test_dgl_by_its_methods() -> None:
    fake = SimpleNamespace(
        edges=lambda: (torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])),
        num_nodes=lambda: 4,
        ndata={
            "feat": torch.ones(4, 2),
            "label": torch.tensor([0, 1, 0, 1]),
            "train_mask": torch.tensor([True, False, True, False]),
        },
        edata={"w": torch.tensor([[1.0], [2.0], [3.0]]), "feat": torch.arange(3.0)},
        ntypes=["_N"],
        etypes=["_E"],
    )
    graph = Graph.from_dgl(fake)
    assert (graph.vertices, graph.edges) == (4, 3)
    assert float(graph.adjacency.dense()[2, 1]) == 2.0
    assert graph.x is not None
    assert graph.x.shape == (4, 2)
    assert graph.splits["train"].tolist() == [True, False, True, False]
    assert graph.edge_x is not None
    assert graph.edge_x.flatten().tolist() == [2.0, 0.0, 1.0], "in the order of rows, which are targets"
    with pytest.raises(DataError, match="homogeneous"):
        Graph.from_dgl(SimpleNamespace(ntypes=["a", "b"], etypes=["c"]))


def test_sparse_matrices_of_pyg() -> None:
    index, weight = torch.tensor([[0, 1, 3], [1, 2, 0]]), torch.tensor([1.0, 2.0, 3.0])
    plain = Graph.from_pyg(SimpleNamespace(edge_index=index, edge_weight=weight, num_nodes=4))
    turned = torch.sparse_coo_tensor(index.flip(0), weight, (4, 4))
    fake = SimpleNamespace(coo=lambda: (index[1], index[0], weight), sparse_sizes=lambda: (4, 4))
    for matrix in (turned, turned.to_sparse_csr(), fake):
        graph = Graph.from_pyg(SimpleNamespace(adj_t=matrix, x=torch.eye(4).to_sparse(), num_nodes=4))
        assert torch.equal(graph.adjacency.dense(), plain.adjacency.dense())
        assert not torch.equal(graph.adjacency.dense(), plain.adjacency.dense().T)
        assert graph.x is not None
        assert torch.equal(graph.x, torch.eye(4))
    ones = torch.sparse_coo_tensor(index.flip(0), torch.ones(3), (4, 4)).coalesce()
    assert Graph.from_pyg(SimpleNamespace(adj_t=ones)).adjacency.values is None
    with pytest.raises(DataError, match="the matrix is a int"):
        Graph.from_pyg(SimpleNamespace(adj_t=3))


def test_transforms_of_pyg() -> None:
    pyg = pytest.importorskip("torch_geometric")
    data = pyg.data.Data(edge_index=torch.tensor([[0, 1, 3], [1, 2, 0]]), num_nodes=4, x=torch.eye(4))
    before = Graph.from_pyg(data).adjacency.dense()
    turned = pyg.transforms.ToSparseTensor()(data)
    assert "edge_index" not in turned
    assert torch.equal(Graph.from_pyg(turned).adjacency.dense(), before)


@pytest.mark.parametrize("width", [1, 5])
def test_attributes_of_edges_are_kept_and_said(width: int) -> None:
    index = torch.tensor([[0, 1], [1, 2]])
    attributes = torch.arange(2.0 * width).reshape(2, width)
    data = SimpleNamespace(edge_index=index, edge_attr=attributes[:, 0] if width == 1 else attributes)
    said = pytest.warns(UserWarning, match="edge_attr is read as one feature an edge .* not as a weight")
    with said if width == 1 else contextlib.nullcontext():
        graph = Graph.from_pyg(data)
    assert graph.adjacency.values is None, "no weight"
    assert graph.edge_x is not None
    assert torch.equal(graph.edge_x, attributes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        timeline = Timeline.from_snapshots([data, data])
    assert torch.equal(timeline.event_features(1), attributes)


def test_zoned_columns_count_in_utc() -> None:
    library = pytest.importorskip("pyarrow")
    instants = [datetime(2024, 5, 1, 23, tzinfo=timezone.utc), datetime(2024, 5, 2, 1, tzinfo=timezone.utc)]
    made = []
    for zone in ("UTC", "Asia/Tokyo"):
        times = library.array(instants, library.timestamp("ms", tz=zone))
        record = read_table({"a": [0, 1], "b": [1, 0], "t": times}, Table(time="t", period="1h"))
        assert isinstance(record, TimelineRecord)
        assert record.time is not None
        made.append(record.time.tolist())
    assert made[0] == made[1]
    assert made[0][1] - made[0][0] == 2 * 3600 * 10**6
