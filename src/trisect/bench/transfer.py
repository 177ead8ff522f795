"""Bytes that bring a timeline's snapshots to a device, in each encoding, and the time to encode and to rebuild.

`full` is two int64 and a float32 for every edge of every smoothed snapshot, `csr` the best plain form (int32 columns
and row pointers, float32 values), `difference` the indices that change and all values, `matrices` the difference of
counts in int32, and `compact` what Trisect sends: the raw events that enter the window. Edges are counted without
self-loops, which no encoding needs to send.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trisect.data.load import load
from trisect.data.records import TimelineRecord
from trisect.errors import DataError
from trisect.graph.adjacency import Adjacency
from trisect.graph.difference import Encoding, apply, difference, entering, full_bytes
from trisect.graph.timeline import Timeline
from trisect.shards.stream import SnapshotStream

TIMELINES: dict[str, dict[str, Any]] = {
    "bitcoin-otc": {"name": "bitcoin-otc"},
    "uci-messages": {"name": "uci-messages"},
    "mathoverflow": {"name": "mathoverflow"},
    "cit-hepph": {"name": "cit-hepph"},
    "laundering": {"generate": "laundering", "vertices": 100_000, "steps": 60},
}
KINDS = ("full", "csr", "difference", "matrices", "compact")


def run(
    timelines: Sequence[str] = tuple(TIMELINES),
    lives: Sequence[int] = (1, 5, 10, 20),
    data_dir: str | None = None,
) -> dict[str, Any]:
    """Bytes of one pass over each timeline at each edge-life; seconds are means over its steps."""
    result: dict[str, Any] = {"timelines": {}, "skipped": {}}
    for name in timelines:
        try:
            record = load(TIMELINES[name], data_dir=None if data_dir is None else Path(data_dir))
        except DataError as error:
            result["skipped"][name] = str(error)
            continue
        if not isinstance(record, TimelineRecord):
            raise DataError(f"{name} is one graph; bench transfer measures timelines.")
        for life in lives:
            timeline = Timeline.from_record(record, smoothing={"kind": "edge-life", "length": life})
            result["timelines"][f"{name}, edge-life {life}"] = measure(timeline)
    return result


def measure(timeline: Timeline) -> dict[str, Any]:
    """Bytes of each encoding, ratios to `full` and to `csr`, and milliseconds a step to encode and to rebuild."""
    sizes: dict[str, int] = dict.fromkeys(KINDS, 0)
    encoded: dict[str, float] = dict.fromkeys(("full", "difference", "matrices", "compact"), 0.0)
    rebuilt = dict(encoded)
    host = timeline.snapshots("symmetric")
    before: dict[str, Adjacency | None] = dict.fromkeys(encoded)
    for step in range(timeline.steps):
        now = {"full": host[step], "matrices": timeline.snapshot(step)}
        now["difference"] = now["full"]
        sizes["csr"] += _csr_bytes(now["full"])
        for kind, encoding in (("full", "full"), ("difference", "difference"), ("matrices", "compact")):
            size, seconds = _round_trip(before[kind], now[kind], encoding)  # type: ignore[arg-type]
            sizes[kind] += size
            encoded[kind] += seconds[0]
            rebuilt[kind] += seconds[1]
            before[kind] = now[kind]
        begin = time.perf_counter()
        sizes["compact"] += entering(timeline, step).bytes
        encoded["compact"] += time.perf_counter() - begin
    stream = SnapshotStream(timeline, "symmetric", prefetch=False)
    begin = time.perf_counter()
    for step in range(timeline.steps):
        stream[step]
    rebuilt["compact"] = time.perf_counter() - begin
    if (stream.ledger.full_bytes, stream.ledger.sent_bytes) != (sizes["full"], sizes["compact"]):
        raise DataError("The ledger of the stream differs from the bytes of its messages.")
    return {
        "steps": timeline.steps,
        "edges": sizes["full"] // 20,
        "bytes": sizes,
        "against_full": {kind: sizes["full"] / size for kind, size in sizes.items() if size},
        "against_csr": {kind: sizes["csr"] / size for kind, size in sizes.items() if size},
        "encode_ms": {kind: 1e3 * seconds / timeline.steps for kind, seconds in encoded.items()},
        "rebuild_ms": {kind: 1e3 * seconds / timeline.steps for kind, seconds in rebuilt.items()},
    }


def _round_trip(old: Adjacency | None, new: Adjacency, encoding: Encoding) -> tuple[int, tuple[float, float]]:
    begin = time.perf_counter()
    message = difference(old, new, encoding)
    middle = time.perf_counter()
    apply(message, old)
    return message.bytes, (middle - begin, time.perf_counter() - middle)


def _csr_bytes(matrix: Adjacency) -> int:
    return full_bytes(matrix) // 20 * 8 + 4 * (matrix.rows + 1)


def show(result: dict[str, Any]) -> None:
    """Print the figures as a table."""
    print("MB sent for one pass; how many times less than full (and than csr); ms a step to encode + to rebuild")
    heads = ("full", 9), ("csr", 9), ("difference", 18), ("compact", 24), ("difference", 15), ("compact", 14)
    print(f"{'timeline':<28} " + " ".join(f"{head:>{width}}" for head, width in heads))
    for name, figures in result["timelines"].items():
        size = {kind: value / 1e6 for kind, value in figures["bytes"].items()}
        ratio, plain = figures["against_full"], figures["against_csr"]
        encode, rebuild = figures["encode_ms"], figures["rebuild_ms"]
        times = {kind: f"{encode[kind]:.1f}+{rebuild[kind]:.1f}" for kind in ("difference", "compact")}
        print(
            f"{name:<28} {size['full']:9.2f} {size['csr']:9.2f} {size['difference']:9.2f} {ratio['difference']:7.1f}x"
            f" {size['compact']:8.2f} {ratio['compact']:6.1f}x ({plain['compact']:4.1f}x)"
            f" {times['difference']:>15} {times['compact']:>14}"
        )
    for name, reason in result["skipped"].items():
        print(f"{name}: left out. {reason}")
