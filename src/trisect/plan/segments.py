"""Where the halves of a stage are cut into segments: wherever something crosses ranks between two of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trisect.exchanges.catalogue import LETTERS, sets_apart, stands_after, stands_before
from trisect.exchanges.facts import Facts


@dataclass(frozen=True)
class Segment:
    """Consecutive halves of a stage between which nothing crosses ranks.

    Attributes:
        first, last: its halves, both included; none where the last is before the first.
        arrives: the letter of the exchange that its input comes through; empty where that stays on the rank.
        chunks: in how many vertex chunks it is done.
        temporal: the layer whose temporal half it is, where that is done apart since its state crosses ranks.
        apart: the letter of the exchange by which that state crosses; empty where the segment is not done apart.
        group: which of the stage's groups it belongs to; of all groups but the last nothing is kept for backward.
    """

    first: int
    last: int
    arrives: str = ""
    chunks: int = 1
    temporal: int | None = None
    group: int = 0
    apart: str = ""

    def begins_after(self, half: int) -> bool:
        """Say whether all of its halves come after one; a segment without halves comes after none."""
        return half < self.first <= self.last


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
    leaves = stands_after(facts, halves.stop - 1)
    if leaves is not None:
        # what leaves the stage crosses before it does: a segment without halves reads it
        segments.append(Segment(halves.stop, halves.stop - 1, leaves.letter, group=group))
    return tuple(segments)


def _segment(facts: Facts, first: int, last: int, arrives: str, group: int) -> Segment:
    apart = sets_apart(facts, first)
    if apart is None:
        return Segment(first, last, arrives, group=group)
    layer = facts.layer_of(first)
    return Segment(first, last, arrives, apart.half_chunks(facts, layer), layer, group, apart.letter)


def _gap(facts: Facts, k: int) -> str | None:
    """Give the letter of the exchange before a half, empty where the half is done apart; None where nothing is."""
    exchange = stands_before(facts, k) or stands_after(facts, k - 1)
    if exchange is not None:
        return exchange.letter
    return None if sets_apart(facts, k) is None and sets_apart(facts, k - 1) is None else ""


def _group_starts(facts: Facts, halves: range) -> dict[int, int]:
    """Give the halves at which groups of about √layers layers begin, with the number of the group."""
    starts = [k for k in halves if k == halves.start or facts.halves[k].layer != facts.halves[k - 1].layer]
    starts = [k for k in starts if facts.halves[k].layer < len(facts.layers)] or starts[:1]
    size = max(1, round(math.sqrt(len(starts))))
    return {k: group for group, k in enumerate(starts[::size])}


def overlaps(facts: Facts, stage: int) -> bool:
    """Say whether the interior rows of a stage are computed while the halo is on its way.

    All that crosses must allow it: most exchanges read all rows of a part at once, a halo does not.
    """
    segments = segments_of(facts, stage)
    weights = any(facts.layers[k].state == "weight" for k in range(facts.bounds[stage], facts.bounds[stage + 1]))
    exchanges = [LETTERS[segment.arrives] for segment in segments if segment.arrives]
    hidden = bool(exchanges) and all(exchange.hides for exchange in exchanges)
    apart = any(segment.apart for segment in segments)
    smallest = min(facts.rows) // max(1, len(facts.chunk_rows[0]) - 1)
    return hidden and not weights and not apart and smallest >= OVERLAP_ROWS


# A cell costs a few tenths of a millisecond whatever its size; with fewer rows there is nothing to hide behind.
OVERLAP_ROWS = 2048
