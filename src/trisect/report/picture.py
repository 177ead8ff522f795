"""What each rank did in one epoch: as planned, which is the schedule run on paper, above as measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.report.charts import Panel, Span, panels
from trisect.schedule.action import COMPUTE, Action, Half, Kind, Phase
from trisect.schedule.schedule import Schedule
from trisect.schedule.simulate import simulate

Event = Mapping[str, Any]

_COLOURS = {
    Kind.FORWARD: ("ca", "forward"),
    Kind.RECOMPUTE: ("cc", "forward again"),
    Kind.BACKWARD: ("cb", "backward"),
    Kind.REDUCE: ("ce", "weights added up, or waiting for that"),
    Kind.STEP: ("cf", "step"),
}
_TRANSFER = ("cd", "transfer or waiting for one")
_OTHER = ("cf", "other")
_HALVES = {
    Half.PREPARE: "messages",
    Half.SPATIAL: "spatial half",
    Half.TEMPORAL: "temporal half",
    Half.SUMMARY: "summary",
}


@dataclass(frozen=True)
class Done:
    """Something that a rank did: what (None: no action of the schedule), its text, and when."""

    action: Action | None
    name: str
    start: float
    seconds: float


def picture(events: Sequence[Sequence[Event]], layout: Mapping[str, Any] | None) -> str:
    """The last epoch that all ranks trained to its end, as a figure; empty where there is none.

    Args:
        events: of each rank, of all epochs.
        layout: of the run, its axes by name.
    """
    trained = [[event for event in rank if event.get("epoch") and not event.get("evaluation")] for rank in events]
    if not trained or not all(trained):
        return ""
    epoch = min(max(event["epoch"] for event in rank) for rank in trained)
    measured = [
        [Done(_action(e["name"]), e["name"], e["start"], e["seconds"]) for e in rank if e["epoch"] == epoch]
        for rank in trained
    ]
    legend: dict[str, str] = {}
    found = []
    if len(measured) > 1:
        planned = _planned(trained, measured, layout)
        if planned is not None:
            title = "Planned: every action takes its usual time, every message arrives at once"
            found.append(_panel(title, planned, legend))
    found.append(_panel("Measured", measured, legend))
    return panels(f"What each rank did in epoch {epoch}", found, legend)


def _planned(
    trained: Sequence[Sequence[Event]], measured: Sequence[Sequence[Done]], layout: Mapping[str, Any] | None
) -> list[list[Done]] | None:
    """The schedule that was done, simulated; None where the events are not those of a whole schedule."""
    usual: list[dict[str, list[float]]] = []
    for rank in trained:
        usual.append(defaultdict(list))
        later = any(event["epoch"] > 1 for event in rank)
        for event in rank:
            if event["epoch"] > 1 or not later:  # the first epoch also makes what is kept
                usual[-1][event["name"]].append(event["seconds"])

    def cost(rank: int, action: Action) -> float:
        return median(usual[rank][str(action)]) if action.kind in COMPUTE else 0.0

    actions = [[done.action for done in rank] for rank in measured]
    time, layer, vertex = (int((layout or {}).get(name, 1)) for name in ("time", "layer", "vertex"))
    try:
        ranks = tuple(tuple(action for action in rank if action is not None) for rank in actions)
        spans = simulate(Schedule(ranks, Layout(time=time, layer=layer, vertex=vertex)), cost)
    except LayoutError:
        return None
    return [[Done(span.action, str(span.action), span.start, span.end - span.start) for span in rank] for rank in spans]


def _panel(title: str, ranks: Sequence[Sequence[Done]], legend: dict[str, str]) -> Panel:
    begin = min(done.start for rank in ranks for done in rank)
    length = max(done.start + done.seconds for rank in ranks for done in rank) - begin
    items, notes = [], []
    for row, rank in enumerate(ranks):
        for done in rank:
            colour, meaning = _colour(done.action)
            if done.seconds > 0:
                legend[colour] = meaning
                items.append(Span(row, done.start - begin, done.seconds, colour, describe(done)))
        notes.append(f"waits {waiting(rank, length):.0%}" if len(ranks) > 1 else "")
    return Panel(title, [f"rank {rank}" for rank in range(len(ranks))], items, notes)


def waiting(rank: Sequence[Done], length: float) -> float:
    """The share of an epoch in which a rank does not compute."""
    computing = sum(done.seconds for done in rank if done.action is None or done.action.kind in COMPUTE)
    return max(0.0, 1.0 - computing / length) if length > 0 else 0.0


def _action(name: str) -> Action | None:
    try:
        return Action.parse(name)
    except LayoutError:
        return None


def _colour(action: Action | None) -> tuple[str, str]:
    """A class of the style sheet, and what it means."""
    if action is None:
        return _OTHER
    colour, meaning = _COLOURS.get(action.kind, _TRANSFER)
    inside = action.kind in COMPUTE and action.half in (Half.PREPARE, Half.SPATIAL)
    return (f"{colour} pale", f"{meaning}, inside snapshots") if inside else (colour, meaning)


def describe(done: Done) -> str:
    """An action in words, after its text."""
    action = done.action
    if action is None:
        return done.name
    gradients = "gradients of " if action.phase is Phase.BACKWARD else ""
    words = [gradients + action.kind.name.lower()]
    if action.peer is not None:
        words[0] += f" {'from' if action.incoming else 'to'} rank {action.peer}"
    if action.layer is not None:
        half = _HALVES.get(action.half) if action.half is not None else None
        words.append("output and loss" if action.half in (Half.OUTPUT, Half.LOSS) else f"layer {action.layer}")
        words += [] if half is None else [half]
    if action.kind not in (Kind.REDUCE, Kind.STEP):
        words.append(f"chunk {action.chunk}")
        words += [] if action.block is None else [f"block {action.block}"]
    return f"{done.name}: {', '.join(words)}"
