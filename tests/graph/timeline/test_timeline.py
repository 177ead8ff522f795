from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.data.records import TimelineRecord
from trisect.errors import DataError
from trisect.graph import Smoothing, Timeline, validate


def small(**more: object) -> Timeline:
    """Steps: {0 → 1, 0 → 1}, {}, {1 → 2, 2 → 2}, {0 → 1}."""
    return Timeline.from_arrays([0, 0, 1, 2, 0], [1, 1, 2, 2, 1], [0, 2, 2, 4, 5], **more)  # type: ignore[arg-type]


def reference(timeline: Timeline, step: int) -> np.ndarray:
    """A'_t by the formulas, from dense matrices."""
    n, smoothing = timeline.vertices, timeline.smoothing
    raw = []
    for k in range(step + 1):
        src, dst = (ends.numpy() for ends in timeline.events(k))
        weight = timeline.event_weights(k)
        value = np.ones(len(src)) if weight is None else weight.numpy().astype(float)
        raw.append(sp.coo_matrix((value, (dst, src)), shape=(n, n)).toarray())
    w, out = smoothing.length, np.zeros((n, n))
    if smoothing.kind == "none":
        out = raw[step]
    else:
        for k in range(max(0, step - w + 1), step + 1):
            if smoothing.kind == "edge-life" or smoothing.matrix == "ones":
                factor = 1.0
            elif smoothing.matrix == "mean":
                factor = 1.0 / min(w, step + 1)
            else:
                factor = 1.0 / (step - k + 1)
            out = out + factor * raw[k]
    return out + (out - np.diag(np.diag(out))).T if timeline.undirected else out


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    vertices, steps = draw(st.integers(1, 8)), draw(st.integers(1, 7))
    random = np.random.default_rng(draw(st.integers(0, 2**20)))
    counts = random.integers(0, 12, steps) * random.integers(0, 2, steps)
    offsets = np.r_[0, np.cumsum(counts)]
    src, dst = random.integers(0, vertices, (2, offsets[-1]))
    return Timeline.from_arrays(
        src,
        dst,
        offsets,
        vertices=vertices,
        weight=random.random(offsets[-1]) if draw(st.booleans()) else None,
        undirected=draw(st.booleans()),
        smoothing=Smoothing(
            draw(st.sampled_from(["none", "edge-life", "m-transform"])),
            draw(st.integers(1, steps)),
            draw(st.sampled_from(["mean", "harmonic", "ones"])),
        ),
    )


@given(timelines(), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=150, deadline=None)
def test_snapshots_equal_the_formulas(timeline: Timeline, dtype: torch.dtype) -> None:
    for step in range(timeline.steps):
        expected = reference(timeline, step)
        found = timeline.snapshot(step, dtype=dtype)
        validate(found)
        np.testing.assert_allclose(found.dense().numpy(), expected, rtol=1e-5, atol=1e-6)
        if expected.any():
            with pytest.raises(AssertionError):
                np.testing.assert_allclose(found.dense().numpy(), expected * 1.01, rtol=1e-5, atol=1e-6)
        loops = expected + np.diag((np.diag(expected) == 0).astype(float))
        degree = loops.sum(1) ** -0.5
        normal = timeline.snapshot(step, "symmetric", self_loops=True, dtype=dtype)
        np.testing.assert_allclose(normal.dense(), degree[:, None] * loops * degree, rtol=1e-5, atol=1e-6)


@given(timelines(), st.data())
@settings(max_examples=60, deadline=None)
def test_parts_and_orders_keep_the_snapshots(timeline: Timeline, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, timeline.steps))
    stop = data.draw(st.integers(start, timeline.steps))
    part = timeline.between(start, stop)
    assert part.src.data_ptr() == timeline.src.data_ptr()
    assert len(part) == stop - start
    order = torch.randperm(timeline.vertices, generator=torch.Generator().manual_seed(0))
    moved = part.reordered(order)
    for step in range(part.steps):
        whole = timeline.snapshot(start + step).dense()
        assert torch.equal(part.snapshot(step).dense(), whole)
        assert torch.equal(part.degree_features(step), timeline.degree_features(start + step))
        torch.testing.assert_close(moved.snapshot(step).dense(), whole[order][:, order])
        assert torch.equal(moved.to_user_order(moved.degree_features(step)), part.degree_features(step))
    assert torch.equal(moved.to_user_order(moved.features(), 1), part.features())


def test_a_window_by_hand() -> None:
    timeline = small(smoothing={"kind": "edge-life", "length": 3})
    assert timeline.snapshot(0).dense()[1].tolist() == [2, 0, 0]
    assert timeline.snapshot(2).dense().tolist() == [[0, 0, 0], [2, 0, 0], [0, 1, 1]]
    assert timeline.snapshot(3).dense().tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 1]]
    assert timeline.degree_features(2, log1p=False).tolist() == [[0, 2], [2, 1], [2, 1]]
    mean = small(smoothing=Smoothing("m-transform", 2))
    assert mean.snapshot(0).dense()[1].tolist() == [2, 0, 0]
    assert mean.snapshot(1).dense()[1].tolist() == [1, 0, 0]
    assert mean.degree_features(1, log1p=False).tolist() == [[0, 1], [1, 0], [0, 0]]
    harmonic = small(smoothing=Smoothing("m-transform", 4, "harmonic"))
    torch.testing.assert_close(harmonic.snapshot(3).dense()[1], torch.tensor([1 + 2 / 4, 0, 0]))


def test_empty_snapshots_have_loops() -> None:
    timeline = small(vertices=5)
    assert torch.equal(timeline.snapshot(1, "symmetric", self_loops=True).dense(), torch.eye(5))
    assert timeline.snapshot(1).entries == 0


def test_undirected() -> None:
    timeline = small(undirected=True)
    assert timeline.snapshot(0).dense()[:2, :2].tolist() == [[0, 2], [2, 0]]
    assert timeline.snapshot(2).dense().tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 1]]
    assert timeline.degree_features(2, log1p=False).tolist() == [[0, 0], [1, 1], [2, 2]]


def test_from_events_sorts_stably_and_keeps_empty_steps() -> None:
    timeline = Timeline.from_events(
        [3, 0, 1, 2], [0, 1, 2, 3], [35.0, 10, 11, 12.5], period=5, weight=[4.0, 1, 2, 3], edge_y=[3, 0, 1, -1]
    )
    assert timeline.offsets.tolist() == [0, 3, 3, 3, 3, 3, 4]
    assert timeline.src.tolist() == [0, 1, 2, 3]
    assert timeline.weight.tolist() == [1, 2, 3, 4]
    assert timeline.event_labels(0).tolist() == [0, 1, -1]
    assert timeline.event_labels(5).tolist() == [3]
    assert timeline.total_events == 4
    assert timeline.between(1, 5).total_events == 0


@pytest.mark.parametrize("period", ["1d", "24h", "1440min", 86400, timedelta(days=1), np.timedelta64(1, "D")])
def test_periods_of_dates(period: object) -> None:
    dates = np.array(["2020-01-01T12:00", "2020-01-02T11:59", "2020-01-02T12:00", "2020-01-05"], "datetime64[m]")
    timeline = Timeline.from_events([0, 1, 2, 0], [1, 2, 0, 2], dates, period=period)  # type: ignore[arg-type]
    assert timeline.offsets.tolist() == [0, 2, 3, 3, 4]  # steps 0, 0, 1, 3
    seconds = dates.astype("datetime64[s]").astype(np.int64)
    again = Timeline.from_events([0, 1, 2, 0], [1, 2, 0, 2], torch.from_numpy(seconds), period=period)  # type: ignore[arg-type]
    assert again.offsets.tolist() == [0, 2, 3, 3, 4]


def test_from_snapshots() -> None:
    index = [torch.tensor([[0, 1], [1, 2]]), torch.zeros(2, 0, dtype=torch.int64), torch.tensor([[4], [0]])]
    timeline = Timeline.from_snapshots(index, smoothing={"kind": "edge-life", "length": 2})
    assert (timeline.steps, timeline.vertices) == (3, 5)
    assert timeline.snapshot(1).entries == 2
    data = [SimpleNamespace(edge_index=item, x=torch.ones(5, 3), y=torch.zeros(5), num_nodes=5) for item in index]
    other = Timeline.from_snapshots(data)
    assert other.features().shape == (3, 5, 3)
    assert other.features_at(1).shape == (5, 3)
    assert other.y.shape == (3, 5)
    assert torch.equal(other.snapshot(2).dense(), timeline.snapshot(2).dense())
    with pytest.raises(DataError, match="There are no snapshots; give a list"):
        Timeline.from_snapshots([])
    with pytest.raises(DataError, match="Snapshot 0 has 3 rows"):
        Timeline.from_snapshots([torch.zeros(3, 2, dtype=torch.int64)])


def test_from_record() -> None:
    record = TimelineRecord(
        3, np.array([0, 1]), np.array([1, 2]), np.array([0, 1, 2]), y=np.array([0, 1, -1]),
        splits={"train": np.array([True, True, True])},
    )  # fmt: skip
    timeline = Timeline.from_record(record, symmetrise=True)
    assert timeline.undirected
    assert timeline.splits["train"].tolist() == [True, True, False]
    assert timeline.features().shape == (2, 3, 2)


def test_sequence_of_snapshots_and_its_memory() -> None:
    timeline = small()
    lazy = timeline.snapshots("row", self_loops=True)
    assert len(lazy) == 4
    assert lazy[0] is not lazy[0]
    assert torch.equal(lazy[-1].dense(), timeline.snapshot(3, "row", self_loops=True).dense())
    assert [matrix.entries for matrix in lazy] == [4, 3, 4, 4]
    assert [matrix.entries for matrix in lazy[2:]] == [4, 4]
    assert len(timeline.snapshots(start=1, stop=3)) == 2
    size = lazy[0].memory_bytes
    kept = timeline.snapshots("row", self_loops=True, keep_bytes=2 * size)
    assert kept[0] is kept[0]
    assert kept[3] is not kept[3]
    with pytest.raises(IndexError):
        lazy[4]
    with pytest.raises(DataError, match="stride"):
        lazy[::2]


def test_per_step_features_and_labels_follow_parts_and_orders() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    y = np.arange(12, dtype=np.float32).reshape(4, 3)
    timeline = small(x=x, y=y, edge_y=np.array([0, 1, 0, 1, 1], np.int8))
    part = timeline.between(1, 3)
    assert part.features().shape == (2, 3, 2)
    assert part.y.tolist() == y[1:3].tolist()
    assert part.event_labels(1).tolist() == [0, 1]
    assert part.event_labels(1).dtype == torch.int64
    moved = part.reordered(torch.tensor([2, 0, 1]))
    assert moved.y.tolist() == y[1:3][:, [2, 0, 1]].tolist()
    assert moved.to_user_order(moved.features(), 1).tolist() == x[1:3].tolist()
    fixed = small(x=x[0], y=np.array([0, 1, 2]))
    assert fixed.features().shape == (3, 2)
    assert fixed.between(0, 2).y.tolist() == [0, 1, 2]
    assert fixed.features_at(3).shape == (3, 2)


def test_read_only_events_are_not_copied() -> None:
    src = np.array([0, 1], np.int32)
    src.flags.writeable = False
    timeline = Timeline.from_arrays(src, src, [0, 1, 2])
    assert timeline.src.data_ptr() == src.ctypes.data


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: small(smoothing={"kind": "edge-life", "length": 5}), "length is 5, but the timeline has only 4 steps"),
        (lambda: small(smoothing="mean"), "smoothing.kind is 'mean'"),
        (lambda: small(smoothing={"kind": "edge-life", "length": 0}), "smoothing.length is 0"),
        (lambda: small(smoothing={"kind": "none", "lenght": 2}), "no field 'lenght'"),
        (lambda: Smoothing("m-transform", 2, "median"), "smoothing.matrix is 'median'"),  # type: ignore[arg-type]
        (lambda: small(vertices=2), r"src\[3\] is 2, but there are 2 vertices"),
        (lambda: small(weight=[1.0]), r"weight has the shape \[1\] for 5 edges"),
        (lambda: small(y=np.zeros(7, int)), r"y has the shape \[7\]"),
        (lambda: small(edge_y=np.zeros(3, int)), r"edge_y has the shape \[3\] for 5 events"),
        (lambda: small(x=np.zeros((3, 3, 1))), r"x has the shape \[3, 3, 1\]; it must be \[4, 3, features\]"),
        (lambda: small(names=["a"]), "names has 1 entries"),
        (lambda: small().snapshot(4), "Step 4 does not exist; the timeline has 4 steps"),
        (lambda: small().between(2, 9), r"steps 2\.\.9 do not lie within 0\.\.4"),
        (lambda: small().event_labels(0), "no classes"),
        (lambda: Timeline.from_arrays([0], [0], [0]), "no steps"),
        (lambda: Timeline.from_arrays([0], [0, 1], [0, 1]), "src has 1 entries and dst 2"),
        (lambda: Timeline.from_arrays([0, 1], [0, 1], [0, 3]), "offsets must ascend from 0 to .* 2"),
        (lambda: Timeline.from_events([0], [1], [0, 1], period=1), "src has 1 entries and time 2"),
        (lambda: Timeline.from_events([], [], [], period=1), "timeline is empty"),
        (lambda: Timeline.from_events([0], [1], [[0]], period=1), "give one time an event"),
        (lambda: Timeline.from_events([0], [1], ["now"], period=1), "time holds 'now'; give numbers"),
        (lambda: Timeline.from_events([0, 0], [1, 1], [0, np.nan], period=1), r"time\[1\] is nan"),
        (lambda: Timeline.from_events([0], [1], np.array(["NaT"], "M8[s]"), period=1), r"time\[0\] is missing"),
        (lambda: Timeline.from_events([0], [1], [0], period=0), "period is 0"),
        (lambda: Timeline.from_events([0], [1], [0], period="soon"), "period is 'soon'"),
        (
            lambda: small(weight=[-1.0, 0, 0, 0, 0]).snapshot(0, "symmetric"),
            "edges into vertex 1 add up to -1; symmetric normalisation needs",
        ),
    ],
)
def test_bad_input_is_refused(call: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        call()  # type: ignore[operator]


def test_real_events(shared_data: object) -> None:
    events = np.load(shared_data / "bitcoin-otc.npz")  # type: ignore[operator]
    timeline = Timeline.from_events(events["src"], events["dst"], events["time"], period=1_200_000)
    assert (timeline.steps, timeline.vertices, timeline.total_events) == (138, 5881, 35592)
    whole = Timeline.from_events(
        events["src"], events["dst"], events["time"], period=1_200_000, smoothing={"kind": "edge-life", "length": 138}
    )
    assert whole.snapshot(137).entries == 35592  # no pair occurs twice
