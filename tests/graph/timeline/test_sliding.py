from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.errors import DataError
from trisect.graph import Adjacency, Smoothing, Timeline, validate
from trisect.graph.build import adjacency_from_edges, normalise
from trisect.graph.timeline.events import RawEvents
from trisect.graph.timeline.sliding import SlidingWindow, slides

NORMALISATIONS = ("symmetric", "row", "none")


def same(found: Adjacency, expected: Adjacency) -> bool:
    """Equal arrays, to the bit."""
    if (found.values is None) != (expected.values is None) or found.shape != expected.shape:
        return False
    values = found.values is None or expected.values is None or torch.equal(found.values, expected.values)
    return (
        torch.equal(found.starts, expected.starts)
        and torch.equal(found.ends, expected.ends)
        and torch.equal(found.indices, expected.indices)
        and found.self_start == expected.self_start
        and values
    )


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    vertices, steps = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    random = np.random.default_rng(draw(st.integers(0, 2**20)))
    counts = random.integers(0, 14, steps) * random.integers(0, 2, steps)
    offsets = np.r_[0, np.cumsum(counts)]
    # vertices come and go: each step uses a range of its own
    low = np.repeat(random.integers(0, vertices, steps), counts)
    ends = low + random.integers(0, vertices, (2, offsets[-1])) % (vertices - low)
    return Timeline.from_arrays(
        *ends,
        offsets,
        vertices=vertices,
        undirected=draw(st.booleans()),
        smoothing=Smoothing(
            draw(st.sampled_from(["none", "edge-life", "m-transform"])),
            draw(st.integers(1, steps)),
            draw(st.sampled_from(["mean", "ones"])),
        ),
    )


def window_of(timeline: Timeline, kind: str, loops: bool, dtype: torch.dtype, **more: object) -> SlidingWindow:
    return SlidingWindow(
        RawEvents.of(timeline),
        timeline.smoothing,
        kind,  # type: ignore[arg-type]
        loops,
        dtype,
        **more,  # type: ignore[arg-type]
    )


@given(
    timelines(),
    st.sampled_from(NORMALISATIONS),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 64, 1 << 20]),
    st.lists(st.integers(0, 8), max_size=6),
)
@settings(max_examples=250, deadline=None)
def test_a_window_equals_the_snapshots_to_the_bit(
    timeline: Timeline, kind: str, loops: bool, native: bool, keep: int, jumps: list[int]
) -> None:
    window = window_of(timeline, kind, loops, torch.float32, native=native, keep_bytes=keep)
    steps = [*range(timeline.steps), *reversed(range(timeline.steps)), *(j for j in jumps if j < timeline.steps)]
    for step in steps:
        found, expected = window.at(step), timeline.snapshot(step, kind, self_loops=loops)  # type: ignore[arg-type]
        validate(found)
        assert same(found, expected)
        if expected.entries:
            other = expected.with_values(torch.full((expected.entries,), -1.0))
            assert not same(found, other)


@given(timelines(), st.sampled_from(NORMALISATIONS), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_float64_equals_too(timeline: Timeline, kind: str, loops: bool, native: bool) -> None:
    window = window_of(timeline, kind, loops, torch.float64, native=native)
    exact = timeline.smoothing.coefficients(0) is None
    for step in range(timeline.steps):
        found = window.at(step)
        expected = timeline.snapshot(step, kind, self_loops=loops, dtype=torch.float64)  # type: ignore[arg-type]
        if exact:
            assert same(found, expected)
        assert found.values is not None
        assert expected.values is not None
        torch.testing.assert_close(found.values, expected.values, rtol=1e-14, atol=0)


@given(timelines(), st.sampled_from(NORMALISATIONS), st.booleans(), st.booleans(), st.randoms())
@settings(max_examples=150, deadline=None)
def test_transposes(timeline: Timeline, kind: str, loops: bool, native: bool, random: object) -> None:
    window = window_of(timeline, kind, loops, torch.float32, native=native)
    found = [window.at(step) for step in range(timeline.steps)]
    order = list(range(timeline.steps))
    random.shuffle(order)  # type: ignore[attr-defined]
    for step in order:
        expected = timeline.snapshot(step, kind, self_loops=loops).transpose(positions=True)  # type: ignore[arg-type]
        turned = found[step].transpose()
        assert same(turned, expected)
        assert turned.transpose() is found[step]
        assert found[step]._derived.make_transpose is None  # nor the factors that it held
        placed = found[step].transpose(positions=True)
        assert same(placed, expected)
        assert placed.positions is not None
        assert expected.positions is not None
        assert torch.equal(placed.positions, expected.positions)


def test_a_symmetric_matrix_is_its_own_transpose() -> None:
    smoothing = Smoothing("edge-life", 2)
    timeline = Timeline.from_arrays([0, 0, 1], [1, 1, 2], [0, 2, 3], undirected=True, smoothing=smoothing)
    found = window_of(timeline, "symmetric", True, torch.float32).at(1)
    assert found.transpose().indices is found.indices
    assert found.transpose().values is found.values


def test_a_part_of_a_timeline_reaches_back() -> None:
    timeline = Timeline.from_arrays([0, 1, 2], [1, 2, 0], [0, 1, 2, 3], smoothing=Smoothing("edge-life", 3))
    part = timeline.between(2, 3)
    found = window_of(part, "none", False, torch.float32).at(part.first)
    assert same(found, part.snapshot(0))
    assert found.entries == 3


@given(st.integers(0, 2**20), st.booleans(), st.sampled_from(["row", "none"]))
@settings(max_examples=60, deadline=None)
def test_rectangles(seed: int, native: bool, kind: str) -> None:
    random = np.random.default_rng(seed)
    rows, halo, steps, start = random.integers(1, 6), random.integers(0, 6), 6, 0
    columns = int(rows + halo)
    start = int(random.integers(0, halo + 1))
    offsets = torch.from_numpy(np.r_[0, np.cumsum(random.integers(0, 9, steps))])
    src = torch.from_numpy(random.integers(0, columns, int(offsets[-1])).astype(np.int32))
    dst = torch.from_numpy(random.integers(0, rows, int(offsets[-1])).astype(np.int32))
    events = RawEvents(src, dst, offsets, int(rows), columns, self_start=start)
    smoothing = Smoothing("edge-life", 3)
    window = SlidingWindow(events, smoothing, kind, True, native=native)  # type: ignore[arg-type]
    for step in range(steps):
        stretch = slice(int(offsets[smoothing.first_step(step)]), int(offsets[step + 1]))
        raw = adjacency_from_edges(src[stretch], dst[stretch], None, int(rows), columns=columns)
        raw = Adjacency(raw.starts, raw.ends, raw.indices, raw.values, columns, self_start=start)
        expected = normalise(raw, kind, True)  # type: ignore[arg-type]
        found = window.at(step)
        assert same(found, expected)
        assert same(found.transpose(), expected.transpose())


def test_symmetric_factors_of_columns_are_needed() -> None:
    events = RawEvents(*(torch.zeros(1, dtype=torch.int32),) * 2, torch.tensor([0, 1]), 1, 2)
    with pytest.raises(DataError, match="factors of the columns"):
        SlidingWindow(events, Smoothing(), "symmetric").at(0)
    sums = torch.tensor([4.0, 1.0], dtype=torch.float64)
    found = SlidingWindow(events, Smoothing(), "symmetric", column_sums=lambda step: sums).at(0)
    assert found.dense().tolist() == [[0.25, 0.0]]


def test_many_rows_and_a_hub() -> None:
    random = np.random.default_rng(5)
    n, steps, each = 6000, 7, 20_000
    src, dst = random.integers(0, n, (2, steps * each))
    dst[random.random(steps * each) < 0.4] = 2047  # at the end of a thread's piece
    for undirected in (False, True):
        timeline = Timeline.from_arrays(
            src,
            dst,
            np.arange(steps + 1) * each,
            vertices=n,
            undirected=undirected,
            smoothing=Smoothing("edge-life", 3),
        )
        window = window_of(timeline, "symmetric", True, torch.float32)
        for step in range(steps):
            expected = timeline.snapshot(step, "symmetric", self_loops=True)
            assert same(window.at(step), expected)
            assert same(window.at(step).transpose(), expected.transpose())


def test_what_slides() -> None:
    def of(weight: object = None, smoothing: Smoothing | None = None) -> Timeline:
        return Timeline.from_arrays([0], [0], [0, 1], weight=weight, smoothing=smoothing)

    assert slides(of())
    assert slides(of(smoothing=Smoothing("m-transform", 1, "mean")))
    assert not slides(of([1.0]))
    assert not slides(of(smoothing=Smoothing("m-transform", 1, "harmonic")))
