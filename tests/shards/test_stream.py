from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.comm.ledger import Ledger
from trisect.errors import DataError
from trisect.graph import Adjacency, Smoothing, Timeline
from trisect.graph.timeline.difference import ENCODINGS, Encoding, difference, entering
from trisect.graph.timeline.snapshots import Steps
from trisect.shards.stream import SnapshotStream


def same(found: Adjacency, expected: Adjacency) -> bool:
    if (found.values is None) != (expected.values is None) or found.shape != expected.shape:
        return False
    values = found.values is None or expected.values is None or torch.equal(found.values, expected.values)
    arrays = all(torch.equal(getattr(found, name), getattr(expected, name)) for name in ("starts", "ends", "indices"))
    return arrays and values


def made(seed: int = 0, steps: int = 9, length: int = 4, *, weighted: bool = False, **more: object) -> Timeline:
    random = np.random.default_rng(seed)
    counts = random.integers(0, 20, steps) * random.integers(0, 3, steps).clip(0, 1)
    ends = random.integers(0, 7, (2, counts.sum()))
    return Timeline.from_arrays(
        *ends,
        np.r_[0, np.cumsum(counts)],
        vertices=7,
        weight=random.random(counts.sum()) if weighted else None,
        **{"smoothing": Smoothing("edge-life", length), **more},  # type: ignore[arg-type]
    )


@given(
    st.integers(0, 2**20),
    st.sampled_from(ENCODINGS),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 3000, 1 << 30]),
    st.sampled_from(["edge-life", "m-transform"]),
    st.sampled_from(["mean", "harmonic"]),
)
@settings(max_examples=120, deadline=None)
def test_a_stream_equals_the_snapshots(
    seed: int,
    encoding: Encoding,
    weighted: bool,
    undirected: bool,
    prefetch: bool,
    keep: int,
    kind: str,
    matrix: str,
) -> None:
    timeline = made(seed, weighted=weighted, undirected=undirected, smoothing=Smoothing(kind, 4, matrix))  # type: ignore[arg-type]
    expected = timeline.snapshots("symmetric", self_loops=True)
    stream = SnapshotStream(
        timeline, "symmetric", self_loops=True, encoding=encoding, keep_bytes=keep, prefetch=prefetch
    )
    assert len(stream) == len(expected)
    for _ in range(2):
        for step, found in enumerate(stream):
            assert same(found, expected[step])
            assert same(found.transpose(), expected[step].transpose())
    for step in (7, 2, 3, 4, 8, 0, -1):
        assert same(stream[step], expected[step])
        assert not same(stream[step], expected[step].with_values(torch.full((expected[step].entries,), -1.0)))


def test_parts() -> None:
    timeline = made()
    stream = SnapshotStream(timeline.between(2, 9), "row", keep_bytes=1 << 20, prefetch=False)
    expected = timeline.between(2, 9).snapshots("row")
    part = stream[1:5]
    assert len(part) == 4
    assert len(part[1:]) == 3
    for step in range(4):
        assert same(part[step], expected[step + 1])
    assert part[0] is stream[1] is Steps(range(1, 3), stream.__getitem__)[0]
    assert same(part[1:][0], expected[2])
    with pytest.raises(IndexError):
        part[4]
    with pytest.raises(IndexError):
        stream[7]
    with pytest.raises(DataError, match="stride of 2"):
        stream[::2]
    with pytest.raises(DataError, match="encoding is 'dense'"):
        SnapshotStream(timeline, encoding="dense")  # type: ignore[arg-type]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("prefetch", [False, True])
def test_the_ledger_has_what_was_sent(weighted: bool, prefetch: bool) -> None:
    timeline = made(3, weighted=weighted)
    snapshots = list(timeline.snapshots("symmetric", self_loops=True))
    full = sum(difference(None, snapshot, "full").bytes for snapshot in snapshots)
    wanted = {
        "full": full,
        "difference": sum(
            difference(before, now, "difference").bytes
            for before, now in zip([None, *snapshots[:-1]], snapshots, strict=True)
        ),
        "compact": sum(entering(timeline, step).bytes for step in range(timeline.steps)),
    }
    for encoding, sent in wanted.items():
        ledger = Ledger()
        stream = SnapshotStream(
            timeline,
            "symmetric",
            self_loops=True,
            encoding=encoding,  # type: ignore[arg-type]
            ledger=ledger,
            prefetch=prefetch,
        )
        list(stream)
        assert (ledger.full_bytes, ledger.sent_bytes) == (full, sent)
    assert wanted["compact"] < wanted["difference"] < wanted["full"]


def test_a_jump_sends_the_window_anew_and_kept_snapshots_send_nothing() -> None:
    timeline, ledger = made(4, length=3), Ledger()
    stream = SnapshotStream(timeline, ledger=ledger, prefetch=False)
    stream[8]
    assert ledger.sent_bytes == sum(entering(timeline, step).bytes for step in (6, 7, 8)) > 0
    kept = SnapshotStream(timeline, ledger=ledger, keep_bytes=1 << 20, prefetch=False)
    list(kept)
    ledger.clear()
    list(kept)
    assert (ledger.full_bytes, ledger.sent_bytes) == (0, 0)


def test_sorted_events_are_kept_only_where_snapshots_are_not() -> None:
    timeline = made(4, length=3)
    for keep, more in ((1 << 20, False), (3000, True)):
        stream = SnapshotStream(timeline, keep_bytes=keep, prefetch=False)
        list(stream)
        window = stream.source._window
        assert window is not None
        assert (len(stream._kept) < len(stream)) == more
        assert (len(window._keys) > timeline.smoothing.length) == more


def test_a_failure_in_the_background_is_raised() -> None:
    timeline = made(5)
    stream = SnapshotStream(timeline, prefetch=True)
    stream.source.bring = _fails_at(stream.source.bring, 2)  # type: ignore[method-assign]
    stream[0], stream[1]
    with pytest.raises(RuntimeError, match="step 2"):
        stream[2]


def _fails_at(bring, bad):  # type: ignore[no-untyped-def]
    def wrapped(step: int):  # type: ignore[no-untyped-def]
        if step == bad:
            raise RuntimeError(f"step {step}")
        return bring(step)

    return wrapped
