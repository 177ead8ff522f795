"""What each rank did in one epoch: as planned above as measured, as data that the page draws, zooms and names."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.report.events import Event, length_of
from trisect.report.words import Phrase, Words
from trisect.schedule.action import COMPUTE, Action
from trisect.schedule.schedule import Schedule
from trisect.schedule.simulate import simulate

_MOST = 120_000  # spans on a page


@dataclass(frozen=True)
class Panel:
    """What all ranks do in one epoch, drawn as rows along time; `origin` says where it comes from, in a sentence."""

    title: str
    origin: str
    ranks: Sequence[Sequence[Event]]


def simulated(epochs: Mapping[int, Sequence[Sequence[Event]]], layout: Layout) -> list[list[Event]] | None:
    """Give the schedule of the last epoch run on paper: each action takes its usual time, messages arrive at once.

    None where the events are not those of a complete schedule.
    """
    later = [epoch for epoch in epochs if epoch > 1] or list(epochs)  # the first epoch also makes what is kept
    # a cell is computed in pieces that have one name: by rank, action and how often that came before
    usual: dict[tuple[int, Action, int], list[float]] = defaultdict(list)
    for epoch in later:
        for rank, events in enumerate(epochs[epoch]):
            seen: Counter[Action] = Counter()
            for event in events:
                if event.action is not None:
                    usual[rank, event.action, seen[event.action]].append(event.seconds)
                    seen[event.action] += 1
    done: Counter[tuple[int, Action]] = Counter()

    def cost(rank: int, action: Action) -> float:
        if action.verb not in COMPUTE:
            return 0.0
        done[rank, action] += 1
        return median(usual[rank, action, done[rank, action] - 1])

    last = epochs[max(epochs)]
    try:
        ranks = tuple(tuple(event.action for event in rank if event.action is not None) for rank in last)
        spans = simulate(Schedule(ranks, layout), cost)
    except LayoutError:
        return None
    return [[Event(s.action, str(s.action), s.start, s.end - s.start) for s in rank] for rank in spans]


def schedule_data(panels: Sequence[Panel], words: Words) -> dict[str, Any]:
    """Give panels as the page draws them: whole microseconds, each start counted from the end before it.

    A span is six numbers: gap, length, phrase, chunk, block and peer (-1: none), all ranks' spans in a list each.
    Neighbours that are too narrow to be seen are one span where there would be too many.
    """
    total = sum(len(rank) for panel in panels for rank in panel.ranks)
    length = max((length_of(panel.ranks) for panel in panels), default=0.0)
    least = length * 1e6 * total / _MOST / 20_000 if total > _MOST else 0.0
    phrases: dict[Phrase, int] = {}
    drawn = []
    for panel in panels:
        begin = min(event.start for rank in panel.ranks for event in rank)
        drawn.append(
            {
                "title": panel.title,
                "origin": panel.origin,
                "ranks": [_spans(rank, begin, words, phrases, least) for rank in panel.ranks],
            }
        )
    return {
        "kind": "schedule",
        "length": round(length * 1e6),
        "layers": words.layers,
        "phrases": [[phrase.text, phrase.kind, phrase.layer] for phrase in phrases],
        "panels": drawn,
    }


def _spans(events: Sequence[Event], begin: float, words: Words, phrases: dict[Phrase, int], least: float) -> list[int]:
    numbers: list[int] = []
    before, last, wide = 0, -1, 0
    for event in sorted(events, key=lambda event: event.start):
        start, end = round((event.start - begin) * 1e6), round((event.end - begin) * 1e6)
        if end <= start or end <= before:
            continue
        start = max(start, before)
        action = event.action
        phrase = phrases.setdefault(words.phrase(action, event.name), len(phrases))
        if phrase == last and start - before < least and min(end - start, wide) < least:
            numbers[-5] += end - before
            wide, before = numbers[-5], end
            continue
        chunk, block, peer = (-1, -1, -1)
        if action is not None and action.chunk is not None:
            chunk = action.chunk
            block = -1 if action.block is None else action.block
            peer = -1 if action.peer is None else action.peer
        numbers += [start - before, end - start, phrase, chunk, block, peer]
        before, last, wide = end, phrase, end - start
    return numbers
