"""What each rank did in one epoch: as planned, which is the schedule run on paper, above as measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from trisect.errors import LayoutError
from trisect.exchanges.catalogue import exchange_of
from trisect.layout import Layout
from trisect.report.charts import Panel, Span, panels
from trisect.schedule.action import COMPUTE, Action, Verb
from trisect.schedule.schedule import Schedule
from trisect.schedule.simulate import simulate

Event = Mapping[str, Any]

_COLOURS = {
    Verb.FORWARD: ("ca", "forward"),
    Verb.AGAIN: ("cc", "forward again"),
    Verb.BACKWARD: ("cb", "backward"),
    Verb.REDUCE: ("ce", "weights added up, or waiting for that"),
    Verb.STEP: ("cf", "step"),
}
_TRANSFER = ("cd", "transfer or waiting for one")
_OTHER = ("cf", "other")
_VERBS = {Verb.POST: "leaves", Verb.EXPECT: "is expected", Verb.WAIT: "is waited for"}


@dataclass(frozen=True)
class Done:
    """Something that a rank did: what (None: no action of the schedule), its text, and when."""

    action: Action | None
    name: str
    start: float
    seconds: float


def picture(
    events: Sequence[Sequence[Event]],
    layout: Mapping[str, Any] | None,
    halves: Sequence[str] | None = None,
    expected: Sequence[Sequence[tuple[str, float, float]]] = (),
) -> str:
    """Give the last epoch that all ranks trained to its end, as a figure; empty where there is none.

    Args:
        events: of each rank, of all epochs.
        layout: of the run, its axes by name.
        halves: the halves of the model by name, as plan.json has them; None: they are called by their numbers.
        expected: of each rank (action, start, seconds) in an epoch as the planner expected it; empty where it did not,
            and then the schedule is run with the times that actions usually took.
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
    drawn = []
    if len(expected) == len(measured):
        simulated = [[Done(_action(name), name, start, took) for name, start, took in rank] for rank in expected]
        drawn.append(_panel("Planned: what the planner expected before the run", simulated, legend, halves))
    elif len(measured) > 1:
        planned = _planned(trained, measured, layout)
        if planned is not None:
            title = "Planned: every action takes its usual time, every message arrives at once"
            drawn.append(_panel(title, planned, legend, halves))
    drawn.append(_panel("Measured", measured, legend, halves))
    return panels(f"What each rank did in epoch {epoch}", drawn, legend)


def _planned(
    trained: Sequence[Sequence[Event]], measured: Sequence[Sequence[Done]], layout: Mapping[str, Any] | None
) -> list[list[Done]] | None:
    """Give the schedule that was done, simulated; None where the events are not those of a complete schedule."""
    usual: list[dict[str, list[float]]] = []
    for rank in trained:
        usual.append(defaultdict(list))
        later = any(event["epoch"] > 1 for event in rank)
        for event in rank:
            if event["epoch"] > 1 or not later:  # the first epoch also makes what is kept
                usual[-1][event["name"]].append(event["seconds"])

    def cost(rank: int, action: Action) -> float:
        return median(usual[rank][str(action)]) if action.verb in COMPUTE else 0.0

    actions = [[done.action for done in rank] for rank in measured]
    time, layer, vertex = (int((layout or {}).get(name, 1)) for name in ("time", "layer", "vertex"))
    try:
        ranks = tuple(tuple(action for action in rank if action is not None) for rank in actions)
        spans = simulate(Schedule(ranks, Layout(time=time, layer=layer, vertex=vertex)), cost)
    except LayoutError:
        return None
    return [[Done(span.action, str(span.action), span.start, span.end - span.start) for span in rank] for rank in spans]


def _panel(title: str, ranks: Sequence[Sequence[Done]], legend: dict[str, str], halves: Sequence[str] | None) -> Panel:
    begin = min(done.start for rank in ranks for done in rank)
    length = max(done.start + done.seconds for rank in ranks for done in rank) - begin
    items, notes = [], []
    for row, rank in enumerate(ranks):
        for done in rank:
            colour, meaning = _colour(done.action)
            if done.seconds > 0:
                legend[colour] = meaning
                items.append(Span(row, done.start - begin, done.seconds, colour, describe(done, halves)))
        notes.append(f"waits {waiting(rank, length):.0%}" if len(ranks) > 1 else "")
    return Panel(title, [f"rank {rank}" for rank in range(len(ranks))], items, notes)


def waiting(rank: Sequence[Done], length: float) -> float:
    """Give the fraction of an epoch in which a rank does not compute."""
    computing = sum(done.seconds for done in rank if done.action is None or done.action.verb in COMPUTE)
    return max(0.0, 1.0 - computing / length) if length > 0 else 0.0


def _action(name: str) -> Action | None:
    try:
        return Action.parse(name)
    except LayoutError:
        return None


def _colour(action: Action | None) -> tuple[str, str]:
    """Give a class of the style sheet, and what it means."""
    if action is None:
        return _OTHER
    return _COLOURS.get(action.verb, _TRANSFER)


def describe(done: Done, halves: Sequence[str] | None = None) -> str:
    """Say what an action is in words, after its text; halves of the model by name where the names are known."""
    action = done.action
    if action is None:
        return done.name
    if action.exchange is None:
        words = [action.verb.name.lower()]
    else:
        gradients = "gradients of " if action.back else ""
        words = [f"{gradients}{exchange_of(action).name} {_VERBS[action.verb]}"]
    if action.peer is not None:
        words[0] += f" {'from' if action.incoming else 'to'} rank {action.peer}"
    if action.first is not None:
        words.append(_named(action, halves))
    if action.verb not in (Verb.REDUCE, Verb.STEP):
        words.append(f"chunk {action.chunk}")
        words += [] if action.block is None else [f"block {action.block}"]
    return f"{done.name}: {', '.join(words)}"


def _named(action: Action, halves: Sequence[str] | None) -> str:
    """Give what an action computes, or what a transfer comes before."""
    first, last = (
        f"half {k}" if halves is None or k is None or k >= len(halves) else f"{halves[k].replace(' ', ' of layer ')}"
        for k in (action.first, action.first if action.last is None else action.last)
    )
    if action.exchange is not None:
        return f"before {first}"
    return first if action.first == action.last else f"{first} to {last}"
