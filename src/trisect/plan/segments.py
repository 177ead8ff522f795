"""Where the halves of a stage are cut into segments: wherever something crosses ranks between two of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trisect.exchanges.facts import Facts
from trisect.nn.halves import HalfKind


@dataclass(frozen=True)
class Segment:
    """Consecutive halves of a stage between which nothing crosses ranks.

    Attributes:
        first, last: its halves, both included; none where the last is before the first.
        arrives: the letter of the exchange that its input comes through; empty where that stays on the rank.
        chunks: in how many vertex chunks it is done.
        temporal: the layer whose temporal half it is, where that is done apart since its state crosses ranks.
        group: which of the stage's groups it belongs to; of all groups but the last nothing is kept for backward.
    """

    first: int
    last: int
    arrives: str = ""
    chunks: int = 1
    temporal: int | None = None
    group: int = 0


def segments_of(facts: Facts, stage: int) -> tuple[Segment, ...]:
    """Cut the halves of a stage."""
    halves = facts.stage_halves(stage)
    groups = _group_starts(facts, halves) if facts.recompute else {}
    segments: list[Segment] = []
    first, arrives, group = halves.start, "", 0
    for k in halves:
        gap = _gap(facts, k) if k > halves.start else None
        if k in groups and gap is None and k > halves.start:
            gap = ""
        if gap is not None:
            segments.append(_segment(facts, first, k - 1, arrives, group))
            first, arrives = k, gap
        group = groups.get(k, group)
    segments.append(_segment(facts, first, halves.stop - 1, arrives, group))
    last = facts.halves[halves.stop - 1]
    if _apart(facts, halves.stop - 1) and facts.layers[last.layer].along == "redistribute":
        # what leaves the stage is by steps again: a segment without halves reads it
        segments.append(Segment(halves.stop, halves.stop - 1, "t", group=group))
    return tuple(segments)


def _segment(facts: Facts, first: int, last: int, arrives: str, group: int) -> Segment:
    temporal = facts.halves[first].layer if first == last and _apart(facts, first) else None
    chunks = 1 if temporal is None else facts.chunks_of(temporal)
    return Segment(first, last, arrives, chunks, temporal, group)


def _gap(facts: Facts, k: int) -> str | None:
    """Give the letter of the exchange before a half, empty where the half is done apart; None where nothing is."""
    half = facts.halves[k]
    if _apart(facts, k - 1):
        return "t" if facts.layers[facts.halves[k - 1].layer].along == "redistribute" else ""
    if half.kind is HalfKind.OUTPUT:
        return "f" if facts.fetches and facts.parts > 1 else None
    if half.layer >= len(facts.layers):
        return None
    layer = facts.layers[half.layer]
    if half.kind is HalfKind.COMBINE and not half.aggregated and layer.across != "none":
        return "h" if layer.across == "halo" else "r"
    if half.kind is HalfKind.AGGREGATE:
        return "r"
    if half.kind is HalfKind.TEMPORAL and layer.summarises and facts.parts > 1:
        return "m"
    if _apart(facts, k):
        return "t" if layer.along == "redistribute" else ""
    return None


def _apart(facts: Facts, k: int) -> bool:
    """Say whether a half is a temporal one whose state crosses ranks."""
    half = facts.halves[k]
    return half.kind is HalfKind.TEMPORAL and facts.layers[half.layer].along != "none"


def _group_starts(facts: Facts, halves: range) -> dict[int, int]:
    """Give the halves at which groups of about √layers layers begin, with the number of the group."""
    starts = [k for k in halves if k == halves.start or facts.halves[k].layer != facts.halves[k - 1].layer]
    starts = [k for k in starts if facts.halves[k].layer < len(facts.layers)] or starts[:1]
    size = max(1, round(math.sqrt(len(starts))))
    return {k: group for group, k in enumerate(starts[::size])}


def overlaps(facts: Facts, stage: int) -> bool:
    """Say whether the interior rows of a stage are computed while the halo is on its way.

    All that crosses must be a halo (or stay on the rank): other exchanges read all rows of a part at once.
    """
    segments = segments_of(facts, stage)
    weights = any(facts.layers[k].state == "weight" for k in range(facts.bounds[stage], facts.bounds[stage + 1]))
    letters = {segment.arrives for segment in segments}
    apart = any(segment.temporal is not None for segment in segments)
    smallest = min(facts.rows) // max(1, len(facts.chunk_rows[0]) - 1)
    return "h" in letters and letters <= {"", "h"} and not weights and not apart and smallest >= OVERLAP_ROWS


# A cell costs a few tenths of a millisecond whatever its size; with fewer rows there is nothing to hide behind.
OVERLAP_ROWS = 2048
