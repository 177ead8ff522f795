"""Odd objects of SciPy, NetworkX, DGL and PyG give a graph or one of our sentences."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from trisect.data import timeline_from_pyg
from trisect.errors import DataError
from trisect.graph import Graph, Timeline

INDEX = torch.tensor([[0, 1, 2], [1, 2, 0]])


def pyg(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"edge_index": INDEX, "num_nodes": 3, **more})


def sparse(values: Any, size: int = 3, columns: int | None = None) -> SimpleNamespace:
    """What `torch_sparse.SparseTensor` has."""
    return SimpleNamespace(coo=lambda: (INDEX[1], INDEX[0], values), sparse_sizes=lambda: (size, columns or size))


def test_scipy() -> None:
    scipy = pytest.importorskip("scipy.sparse")
    with pytest.raises(DataError, match="holds complex128 values"):
        Graph.from_scipy(scipy.csr_matrix(np.array([[1j]])))
    with pytest.raises(DataError, match=r"the shape \[3\]"):
        Graph.from_scipy(scipy.coo_array(np.array([1, 0, 2])))
    graph = Graph.from_scipy(scipy.csr_matrix((3, 3)), x=scipy.eye_array(3))
    assert graph.x is not None
    assert torch.equal(graph.x, torch.eye(3))


def test_networkx() -> None:
    networkx = pytest.importorskip("networkx")
    made = networkx.DiGraph()
    made.add_edge("a", "b", weight="heavy")
    with pytest.raises(DataError, match=r"weight is 'weight', which is 'heavy' for the edge \('a', 'b'\)"):
        Graph.from_networkx(made)
    with pytest.raises(DataError, match="the graph is a list"):
        Graph.from_networkx([(0, 1)])
    with pytest.raises(DataError, match="two vertices of the graph are called '1'"):
        Graph.from_networkx(networkx.DiGraph([("1", 1)]))
    assert list(np.asarray(Graph.from_networkx(networkx.DiGraph([(2**70, 1)])).names)) == [str(2**70), "1"]
    networkx.set_node_attributes(made, {"a": [1], "b": [2]}, "kind")
    with pytest.raises(DataError, match="y is 'kind', which is no number or text"):
        Graph.from_networkx(made, weight=None, y="kind")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"edge_attr": torch.tensor(3.0)}, r"edge_attr has the shape \[\]"),
        ({"edge_attr": ["a", "b", "c"]}, "edge_attr holds .* values; give real numbers"),
        ({"x": torch.ones(3, 1, dtype=torch.complex64)}, "x holds complex64 values"),
        ({"train_mask": torch.tensor([0, 1, 2])}, "train_mask holds int64 values other than 0 and 1"),
        ({"edge_index": None, "adj_t": sparse(None, 3, 4)}, r"the shape \[3, 4\]; a graph needs a square one"),
    ],
)
def test_pyg_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        Graph.from_pyg(pyg(**more))


def test_pyg() -> None:
    assert Graph.from_pyg(pyg(x=torch.eye(3).bfloat16())).x is not None
    isolated = Graph.from_pyg(SimpleNamespace(adj_t=sparse(None, 7)))
    assert isolated.vertices == 7, "vertices without edges are kept"
    with pytest.warns(UserWarning, match="edge"):
        graph = Graph.from_pyg(SimpleNamespace(adj_t=sparse(torch.arange(15.0).reshape(3, 5))))
    assert graph.adjacency.values is None
    assert graph.edge_x is not None
    assert graph.edge_x[1].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0], "row 1 reads the edge 0 → 1"


def temporal(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"src": INDEX[0], "dst": INDEX[1], "t": torch.tensor([0, 5, 9]), "msg": None, **more})


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (temporal(y=torch.ones(5)), r"y has the shape \[5\] for 3 events"),
        (temporal(y=torch.tensor([0.5, 1, 2])), "y holds decimals"),
        (temporal(t=torch.tensor([0.0, float("nan"), 1.0])), r"time\[1\] is nan"),
        (temporal(dst=torch.tensor([0])), r"src has the shape \[3\] and dst \[1\]"),
        (5, "the object is a int"),
    ],
)
def test_temporal_data_refused(item: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        timeline_from_pyg(item, period=None if item == 5 else 3)


def test_snapshots_of_different_widths() -> None:
    with pytest.raises(DataError, match=r"x has rows of the shapes \(3,\) and \(5,\)"):
        timeline_from_pyg([pyg(x=torch.eye(3)), pyg(x=torch.ones(3, 5))])


@pytest.mark.parametrize(
    ("time", "period", "words"),
    [
        (np.array(["1024-01-01", "2024-01-02", "2024-01-05"], "datetime64[D]"), "1d", "between 1678 and 2261"),
        (None, "1d", "give one time an event"),
        ([datetime(2024, 1, 1), None, datetime(2024, 1, 2)], "1d", r"time\[1\] is missing"),
        ([0, 1, 2], None, "period is None"),
        ([0, 1, 2], "9" * 400 + "d", "period is"),
        ([0, 1, 2], 1e300, "less than 2"),
    ],
)
def test_times_refused(time: Any, period: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Timeline.from_events(INDEX[0], INDEX[1], time, period=period)


def test_missing_times_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    times = [pandas.Timestamp("2024-01-01", tz="UTC"), pandas.NaT, pandas.Timestamp("2024-01-02", tz="UTC")]
    with pytest.raises(DataError, match=r"time\[1\] is missing"):
        Timeline.from_events(INDEX[0], INDEX[1], times, period="1d")


def test_dgl() -> None:
    graph = SimpleNamespace(
        edges=lambda: (INDEX[0], INDEX[1]),
        num_nodes=lambda: 3,
        ndata={"train_mask": torch.tensor([0, 2, 1])},
        edata={},
        ntypes=["_N"],
        etypes=["_E"],
    )
    with pytest.raises(DataError, match="train_mask holds int64 values other than 0 and 1"):
        Graph.from_dgl(graph)
    graph.ndata, graph.edata = {}, {"weight": torch.ones(3, 2)}
    with pytest.raises(DataError, match=r"weight of edata has the shape \[3, 2\]"):
        Graph.from_dgl(graph)
