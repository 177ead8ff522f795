from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trisect.data.records import StaticRecord
from trisect.errors import DataError
from trisect.graph import Graph, check, normalise


def small(**more: object) -> Graph:
    """0 → 1 → 2 → 3, 0 → 3."""
    given: dict = {
        "x": np.arange(8, dtype=np.float64).reshape(4, 2),
        "y": np.array([0, 5, -1, 1]),
        "splits": {"train": np.array([1, 1, 1, 0], bool), "val": np.array([0, 0, 0, 1], bool)},
    }
    return Graph.from_edges([0, 1, 2, 0], [1, 2, 3, 3], **{**given, **more})


def test_from_edges() -> None:
    graph = small()
    assert (graph.vertices, graph.edges) == (4, 4)
    assert graph.x.dtype == torch.float32
    assert graph.features() is graph.x
    # a vertex without a label is in no split; gaps between classes are fine
    assert graph.splits["train"].tolist() == [True, True, False, False]
    assert "4 vertices, 4 edges" in repr(graph)


def test_features_default_to_degrees() -> None:
    graph = Graph.from_edges([0, 0, 0], [1, 2, 0])
    torch.testing.assert_close(graph.features().expm1(), torch.tensor([[1.0, 3.0], [1.0, 0.0], [1.0, 0.0]]))


def test_several_splits() -> None:
    masks = np.array([[1, 0], [0, 1], [0, 1], [0, 1]], bool)
    graph = small(splits={"train": masks}, split=1, y=None)
    assert graph.splits["train"].tolist() == [False, True, True, True]
    with pytest.raises(DataError, match="split is 2, but the train mask has 2 splits"):
        small(splits={"train": masks}, split=2)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"y": np.zeros(3, int)}, r"y has the shape \[3\] for 4 vertices"),
        ({"y": np.array([0, 1, -2, 0])}, "class -2"),
        ({"x": np.array([[0.0], [np.nan], [0], [0]])}, r"x\[1, 0\] is nan"),
        ({"x": np.zeros((5, 2)), "vertices": 4, "y": None}, r"x has the shape \[5, 2\]; it must be \[4, features\]"),
        ({"x": np.zeros((4, 2), complex)}, "x holds complex128 values"),
        ({"splits": {"train": np.zeros(4, bool)}}, "train mask selects no vertex"),
        ({"splits": {"test": np.array([0, 0, 1, 0], bool)}}, "test mask selects no vertex with a label"),
        ({"splits": {"train": np.ones(3, bool)}}, r"train mask has the shape \[3\]"),
        ({"splits": {"train": np.array([0, 1, 2, 3])}}, "other than 0 and 1"),
        ({"names": np.array(["a"])}, "names has 1 entries for 4 vertices"),
    ],
)
def test_bad_input_is_refused(more: dict, words: str) -> None:
    with pytest.raises(DataError, match=words):
        small(**more)


def test_from_record_and_from_pyg_agree() -> None:
    src, dst = np.array([0, 1, 2]), np.array([1, 2, 0])
    x, y, mask = np.eye(3, dtype=np.float32), np.array([0, 1, 0]), np.array([True, False, True])
    weight = np.array([1.0, 2.0, 3.0], np.float32)
    record = StaticRecord(3, src, dst, weight, x=x, y=y, splits={"train": mask})
    data = SimpleNamespace(
        edge_index=torch.tensor(np.stack([src, dst])), edge_weight=torch.tensor(weight), x=torch.tensor(x),
        y=torch.tensor(y), train_mask=torch.tensor(mask), num_nodes=3,
    )  # fmt: skip
    one, other = Graph.from_record(record), Graph.from_pyg(data)
    assert torch.equal(one.adjacency.dense(), other.adjacency.dense())
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)
    assert torch.equal(one.splits["train"], other.splits["train"])
    assert Graph.from_record(StaticRecord(3, src, dst, undirected=True)).edges == 6


def test_read_only_arrays_are_copied() -> None:
    x = np.ones((4, 2), np.float32)
    x.flags.writeable = False
    graph = small(x=x)
    graph.x[0] = 7
    assert x[0, 0] == 1


def test_reordered_and_back() -> None:
    graph = small(names=np.array(["a", "b", "c", "d"]))
    order = torch.tensor([2, 0, 3, 1])
    moved = graph.reordered(order)
    assert torch.equal(moved.adjacency.dense(), graph.adjacency.dense()[order][:, order])
    assert torch.equal(moved.x, graph.x[order])
    assert torch.equal(moved.to_user_order(moved.x), graph.x)
    assert torch.equal(moved.to_user_order(moved.x.T, dim=1), graph.x.T)
    twice = moved.reordered(torch.tensor([3, 2, 1, 0]))
    assert torch.equal(twice.to_user_order(twice.x), graph.x)
    assert not torch.equal(twice.x, graph.x)
    assert torch.equal(twice.to_user_order(twice.splits["train"]), graph.splits["train"])
    assert graph.to_user_order(graph.x) is graph.x
    for wrong, words in (([0, 1, 2], "3 entries for 4"), ([0, 0, 1, 2], "vertex 0 2 times"), ([0, 1, 2, 4], "is 4")):
        with pytest.raises(DataError, match=words):
            graph.reordered(torch.tensor(wrong))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalised(dtype: torch.dtype) -> None:
    graph = small()
    found = graph.normalised("symmetric", self_loops=True, dtype=dtype)
    assert found.dtype == dtype
    torch.testing.assert_close(found.dense().float(), normalise(graph.adjacency, "symmetric", True).dense())
    assert graph.normalised("none", self_loops=False, dtype=dtype).entries == 4


WIDE = """
import torch
from trisect import Graph
from trisect.train.processes.memory import peak_rss_bytes

x = torch.ones(2_000, 25_000)
before = peak_rss_bytes()
Graph.from_edges([0, 1], [1, 2], x=x)
print((peak_rss_bytes() - before) / (x.numel() * 4))
"""


def test_features_are_checked_without_a_copy_of_them():
    done = subprocess.run([sys.executable, "-c", WIDE], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.3


def test_a_number_that_is_not_finite_is_named_wherever_it_stands(monkeypatch):
    monkeypatch.setattr(check, "_SLAB", 6)
    x = torch.ones(7, 3)
    x[5, 1] = float("nan")
    with pytest.raises(DataError, match=r"x\[5, 1\] is nan"):
        Graph.from_edges([0], [1], x=x)
