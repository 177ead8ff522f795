"""Bytes that bring a timeline's snapshots to a device, in each encoding, and the time to encode and to rebuild.

`full` is two int64 and a float32 for every edge of every smoothed snapshot, `csr` the best plain form (int32 columns
and row pointers, float32 values), `difference` the indices that change and all values, `matrices` the difference of
counts in int32, and `compact` what Trisect sends: the raw events that enter the window. Edges are counted without
self-loops, which no encoding needs to send.

With `parts`, also the CPU time to build the blocks of vertex parts, step by step, and then their transposes in
backward's order: anew from all events of the window, and from the block before (`shards.part_blocks`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from trisect.comm.ledger import Ledger
from trisect.data.load import load
from trisect.data.records import TimelineRecord
from trisect.errors import DataError
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import Normalisation
from trisect.graph.timeline.difference import Encoding, apply, difference, entering, full_bytes
from trisect.graph.timeline.timeline import Timeline
from trisect.partition.partition import Partition
from trisect.shards.part_blocks import PartBlocks
from trisect.shards.stream import SnapshotStream
from trisect.shards.timeline_files import read_timeline_cut, read_timeline_part
from trisect.shards.timeline_part import TimelinePart
from trisect.shards.timeline_writer import write_timeline_shards

TIMELINES: dict[str, dict[str, Any]] = {
    "bitcoin-otc": {"name": "bitcoin-otc"},
    "uci-messages": {"name": "uci-messages"},
    "mathoverflow": {"name": "mathoverflow"},
    "cit-hepph": {"name": "cit-hepph"},
    "laundering": {"generate": "laundering", "vertices": 100_000, "steps": 60},
    "uniform": {"generate": "uniform", "vertices": 100_000, "degree": 1.0, "steps": 24},
}
ENCODED = ("full", "difference", "matrices", "compact")
KINDS = ("full", "csr", "difference", "matrices", "compact")


def run(
    timelines: Sequence[str] = tuple(TIMELINES),
    lives: Sequence[int] = (1, 5, 10, 20),
    data_dir: str | None = None,
    parts: int = 0,
    vertices: int | None = None,
    encodings: bool = True,
) -> dict[str, Any]:
    """Bytes of one pass over each timeline at each edge-life; seconds are means over its steps.

    Args:
        parts: also measure the blocks of that many parts of the vertices; 0: not.
        vertices: of generated timelines.
        encodings: False leaves out the encodings, where only the blocks of parts are asked for.
    """
    result: dict[str, Any] = {"timelines": {}, "blocks": {}, "skipped": {}}
    for name in timelines:
        source = TIMELINES[name]
        if vertices is not None and "generate" in source:
            source = {**source, "vertices": vertices}
        try:
            record = load(source, data_dir=None if data_dir is None else Path(data_dir))
        except DataError as error:
            result["skipped"][name] = str(error)
            continue
        if not isinstance(record, TimelineRecord):
            raise DataError(f"{name} is one graph; bench transfer measures timelines.")
        for life in lives:
            timeline = Timeline.from_record(record, smoothing={"kind": "edge-life", "length": life})
            if encodings:
                result["timelines"][f"{name}, edge-life {life}"] = measure(timeline)
            if parts:
                result["blocks"][f"{name}, edge-life {life}"] = measure_blocks(timeline, parts)
    return result


def measure(timeline: Timeline) -> dict[str, Any]:
    """Bytes of each encoding, ratios to `full` and to `csr`, and milliseconds a step to encode and to rebuild."""
    sizes: dict[str, int] = dict.fromkeys(KINDS, 0)
    encoded: dict[str, float] = dict.fromkeys(ENCODED, 0.0)
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


@dataclass(frozen=True)
class _Symmetric:
    normalisation: Normalisation = "symmetric"
    self_loops: bool = True


def measure_blocks(timeline: Timeline, parts: int, rounds: int = 3) -> dict[str, Any]:
    """CPU milliseconds a step and part to build blocks, and blocks with transposes; the least of some rounds.

    Parts are equal intervals of the vertices. What is built in both ways must be equal to the bit.
    """
    form = _Symmetric()
    blocks: dict[str, float] = dict.fromkeys(("anew", "sliding"), 0.0)
    turned, sent, full = dict(blocks), 0, 0
    with TemporaryDirectory(prefix="trisect-bench-") as folder:
        partition = Partition.equal(timeline.vertices, parts)
        runs = ((range(timeline.steps),),)
        write_timeline_shards(timeline, partition, runs, form, Path(folder), aggregated=False)
        cut = read_timeline_cut(Path(folder))
        for index in range(parts):
            ledger = Ledger()
            part = read_timeline_part(cut, index, form, torch.float32, 0, ledger)
            if not isinstance(part, TimelinePart) or not isinstance(part.blocks.source, PartBlocks):
                raise DataError(f"parts is {parts}; bench transfer builds the blocks of at least 2 parts.")
            source = part.blocks.source
            for step in range(timeline.steps):  # the halo's lists are made once a run
                source.events.halo_columns(step)
            methods: dict[str, Callable[[int], Adjacency]] = {"anew": source.assemble, "sliding": _brought(source)}
            for step in range(timeline.steps):
                if not _equal(*(make(step) for make in methods.values())):
                    raise DataError("A block that slides differs from the one built anew.")
            seconds = {method: (float("inf"), float("inf")) for method in methods}
            for _ in range(rounds):
                for method, make in methods.items():
                    made, turned_after = _pass(make, timeline.steps)
                    seconds[method] = min(seconds[method][0], made), min(seconds[method][1], turned_after)
            for method in blocks:
                blocks[method] += seconds[method][0]
                turned[method] += sum(seconds[method])
            for step in range(timeline.steps):
                part.blocks.at(step)
            sent, full = sent + ledger.sent_bytes, full + ledger.full_bytes
    count = parts * timeline.steps
    return {
        "parts": parts,
        "vertices": timeline.vertices,
        "steps": timeline.steps,
        "edges": full // 20,
        "sent_bytes": sent,
        "full_bytes": full,
        "block_ms": {method: 1e3 * seconds / count for method, seconds in blocks.items()},
        "block_and_transpose_ms": {method: 1e3 * seconds / count for method, seconds in turned.items()},
        "speedup": {
            "blocks": blocks["anew"] / blocks["sliding"],
            "with_transposes": turned["anew"] / turned["sliding"],
        },
    }


def _brought(source: PartBlocks) -> Callable[[int], Adjacency]:
    return lambda step: source.bring(step).matrix


def _equal(one: Adjacency, other: Adjacency) -> bool:
    if one.values is None or other.values is None:
        return one.values is other.values and torch.equal(one.indices, other.indices)
    return torch.equal(one.indices, other.indices) and torch.equal(one.values, other.values)


def _pass(make: Callable[[int], Adjacency], steps: int) -> tuple[float, float]:
    """CPU seconds to make the matrices of all steps, and then their transposes from the last to the first.

    All are held until the end, as an epoch holds them for backward, and let go of before the next pass.
    """
    begin = time.process_time()
    matrices = [make(step) for step in range(steps)]
    middle = time.process_time()
    for matrix in reversed(matrices):
        matrix.transpose()
    return middle - begin, time.process_time() - middle


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
    if result["timelines"]:
        _show_encodings(result)
    if result["blocks"]:
        print("CPU ms a step and part to build blocks: anew, sliding (times less); with transposes")
    for name, measured in result["blocks"].items():
        block, both, gain = measured["block_ms"], measured["block_and_transpose_ms"], measured["speedup"]
        print(
            f"{name:<28} {measured['vertices']} vertices, {measured['parts']} parts:"
            f" {block['anew']:8.2f} {block['sliding']:8.2f} ({gain['blocks']:.1f}x);"
            f" {both['anew']:8.2f} {both['sliding']:8.2f} ({gain['with_transposes']:.1f}x)"
        )
    for name, reason in result["skipped"].items():
        print(f"{name}: left out. {reason}")


def _show_encodings(result: dict[str, Any]) -> None:
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
