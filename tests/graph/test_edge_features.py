from __future__ import annotations

import numpy as np
import pytest
import torch

from trisect.data import StaticRecord, TimelineRecord, read_directory, write_directory
from trisect.errors import DataError
from trisect.graph import Graph, Timeline
from trisect.graph.edge_features import Merge
from trisect.graph.timeline.difference import ENCODINGS
from trisect.shards.stream import SnapshotStream


def of_entries(graph: Graph) -> dict[tuple[int, int], list[float]]:
    """(source, target) in the user's numbers → features."""
    assert graph.edge_x is not None
    matrix = graph.adjacency.compact()
    target = torch.repeat_interleave(torch.arange(graph.vertices), matrix.ends - matrix.starts)
    source = matrix.indices.long()
    if graph.order is not None:
        source, target = graph.order[source], graph.order[target]
    pairs = zip(source.tolist(), target.tolist(), strict=True)
    return dict(zip(pairs, graph.edge_x.tolist(), strict=True))


@pytest.mark.parametrize(
    ("merge", "expected"),
    [("sum", [6.0, 60.0]), ("mean", [3.0, 30.0]), ("last", [4.0, 40.0]), ("count", [2.0])],
)
def test_parallel_edges(merge: Merge, expected: list[float]) -> None:
    edge_x = np.array([[2, 20], [5, 50], [4, 40], [7, 70]])
    graph = Graph.from_edges([0, 1, 0, 2], [1, 0, 1, 2], edge_x=edge_x, merge=merge)
    assert graph.edges == 3
    found = of_entries(graph)
    assert found[0, 1] == expected
    assert found[1, 0] != expected
    assert found[2, 2] == ([1.0] if merge == "count" else [7.0, 70.0])


def test_both_directions_have_the_features() -> None:
    graph = Graph.from_edges([0, 1, 2], [1, 0, 2], edge_x=[1.0, 3.0, 5.0], undirected=True, merge="last")
    assert of_entries(graph) == {(0, 1): [3.0], (1, 0): [3.0], (2, 2): [5.0]}


def test_features_follow_a_new_order() -> None:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 20, (2, 100))
    graph = Graph.from_edges(src, dst, vertices=20, edge_x=rng.standard_normal((100, 3)))
    order = torch.from_numpy(rng.permutation(20))
    moved = graph.reordered(order).reordered(torch.arange(19, -1, -1))
    assert of_entries(moved) == of_entries(graph)
    other = Graph.from_edges(dst, src, vertices=20, edge_x=rng.standard_normal((100, 3)))
    assert of_entries(other) != of_entries(graph)
    assert graph.to("cpu").edge_x is graph.edge_x


def test_timeline(tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(1)
    src, dst = rng.integers(0, 6, (2, 60)).astype(np.int32)
    time, edge_x = rng.integers(0, 5, 60), rng.standard_normal((60, 2)).astype(np.float32)
    timeline = Timeline.from_events(
        src, dst, time, period=1, vertices=6, edge_x=edge_x, smoothing={"kind": "edge-life", "length": 2}
    )
    for step in range(5):
        np.testing.assert_array_equal(timeline.event_features(step), edge_x[time == step])
        window = (time == step) | (time == step - 1)
        ordered = np.argsort(time[window], kind="stable")
        alone = Graph.from_edges(
            src[window][ordered], dst[window][ordered], vertices=6, edge_x=edge_x[window][ordered], merge="last"
        )
        features = timeline.edge_features(step, "last")
        assert features.shape[0] == timeline.snapshot(step).entries
        assert torch.equal(features, alone.edge_x)
        if step:
            assert not torch.equal(features, timeline.edge_features(step, "sum"))
    moved = timeline.reordered(torch.arange(5, -1, -1))
    assert moved.edge_x is timeline.edge_x, "events stay where they are"
    folder = tmp_path_factory.mktemp("store")
    record = TimelineRecord(6, src, dst, np.array([0, 30, 60]), edge_x=edge_x)
    again = read_directory(write_directory(record, folder / "g"), verify=True)
    assert isinstance(again, TimelineRecord)
    assert np.array_equal(again.edge_x, edge_x)
    assert Timeline.from_record(again).event_features(1).shape == (30, 2)
    assert timeline.between(1, 3).event_features(0).tolist() == timeline.event_features(1).tolist()


def test_wrong_features() -> None:
    for edge_x, words in (
        (np.zeros((2, 2)), r"edge_x has the shape \[2, 2\] for 3 edges"),
        (np.array([0.0, np.nan, 1.0]), r"edge_x\[1, 0\] is nan"),
        (np.zeros(3, complex), "edge_x holds complex"),
    ):
        with pytest.raises(DataError, match=words):
            Graph.from_edges([0, 1, 2], [1, 2, 0], edge_x=edge_x)
    with pytest.raises(DataError, match="unknown merge of parallel edges 'means'; did you mean 'mean'"):
        Graph.from_edges([0], [1], edge_x=[1.0], merge="means")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="give edge_x"):
        Timeline.from_events([0], [1], [0], period=1).event_features(0)
    graph = Graph.from_record(StaticRecord(2, np.array([0]), np.array([1]), edge_x=np.ones((1, 4), np.float32)))
    assert graph.edge_x is not None
    assert graph.edge_x.shape == (1, 4)


@pytest.mark.parametrize("merge", ["sum", "mean", "last", "count"])
@pytest.mark.parametrize("both", [False, True])
def test_snapshots_and_streams_have_the_features_of_their_edges(merge: Merge, both: bool) -> None:
    """Against dense loops over the events; streams of every encoding give the same, and so does another order."""
    rng = np.random.default_rng(2)
    src, dst, time = rng.integers(0, 6, 50), rng.integers(0, 6, 50), np.sort(rng.integers(0, 4, 50))
    edge_x = rng.standard_normal((50, 2)).astype(np.float32)
    life = {"kind": "edge-life", "length": 2}
    timeline = Timeline.from_events(
        src, dst, time, period=1, vertices=6, edge_x=edge_x, smoothing=life, undirected=both, merge=merge
    )
    assert timeline.edge_channels == (1 if merge == "count" else 2)
    streams = [SnapshotStream(timeline, self_loops=True, encoding=encoding) for encoding in ENCODINGS]
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    moved = timeline.reordered(order)
    for step in range(4):
        held: dict[tuple[int, int], list[np.ndarray]] = {}
        for k in np.nonzero((time == step) | (time == step - 1))[0]:
            for row, column in {(dst[k], src[k]), (src[k], dst[k])} if both else {(dst[k], src[k])}:
                held.setdefault((int(row), int(column)), []).append(edge_x[k])
        merged = {
            "sum": lambda rows: np.sum(rows, 0),
            "mean": lambda rows: np.mean(rows, 0),
            "last": lambda rows: rows[-1],
            "count": lambda rows: np.array([len(rows)]),
        }[merge]
        wanted = {pair: merged(rows) for pair, rows in held.items()}
        for row in range(6):
            others = [value for (other, _), value in wanted.items() if other == row]
            if (row, row) not in wanted:
                wanted[row, row] = np.mean(others, 0) if others else np.zeros(timeline.edge_channels)
        matrix = timeline.snapshot(step, self_loops=True)
        found = matrix.features
        assert found is not None
        pairs = list(zip(*(index.tolist() for index in matrix.coordinates()), strict=True))
        assert len(pairs) == len(wanted)
        np.testing.assert_allclose(found, np.stack([wanted[pair] for pair in pairs]), rtol=1e-5, atol=1e-6)
        for stream in streams:
            features = stream.at(step).features
            assert features is not None
            assert torch.equal(features, found)
        turned = moved.snapshot(step, self_loops=True)
        assert turned.features is not None
        row, column = (order[index] for index in turned.coordinates())
        there = np.stack([wanted[pair] for pair in zip(row.tolist(), column.tolist(), strict=True)])
        np.testing.assert_allclose(turned.features, there, rtol=1e-5, atol=1e-6)
