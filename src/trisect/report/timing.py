"""Where the time went: the schedule planned above measured, each rank's shares of an epoch, time by layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from trisect.report.events import KINDS, Event, length_of, parse_action
from trisect.report.figures import figure
from trisect.report.markup import Markup, bars, join, note, table, tag
from trisect.report.planned import planned_spans
from trisect.report.quantities import counted, seconds, share
from trisect.report.run_view import RunView
from trisect.report.schedule import Panel, schedule_data, simulated
from trisect.report.words import Words

_NAMES = {
    "forward": ("c0", "forward"),
    "again": ("c4", "forward again"),
    "backward": ("c1", "backward"),
    "step": ("c5", "step of the optimiser"),
    "waiting": ("c7", "waiting for another rank"),
    "exchanging": ("c3", "exchanging rows and gradients"),
    "other": ("c6", "other"),
}
_MOST_LAYERS = 400


def schedule(run: RunView, *, length: float | None = None) -> Markup | None:
    """Draw the last epoch that all ranks trained to its end; None where there is none.

    Args:
        length: the seconds that the width stands for, where several runs are drawn alike.
    """
    panels = schedule_panels(run)
    if not panels:
        return None
    data = schedule_data(panels, Words(run.plan))
    if length is not None:
        data["length"] = max(data["length"], round(length * 1e6))
    epoch = max(run.epochs)
    return figure(
        f"What each rank did in epoch {epoch}",
        data,
        text=_said(run, panels),
        alternative=_by_layer(run),
        summary="Seconds by layer, as a table",
        wide=True,
    )


def schedule_panels(run: RunView) -> list[Panel]:
    """Give what is drawn of a run's last whole epoch: as planned where there is a plan, and as measured."""
    if not run.epochs:
        return []
    measured = run.epochs[max(run.epochs)]
    panels = [Panel("Measured", "as each rank noted it", measured)]
    expected = planned_spans(run.plan.mapping())
    if len(expected) == run.axes.world:
        spans = [[Event(parse_action(name), name, start, took) for name, start, took in rank] for rank in expected]
        panels.insert(0, Panel("Planned", "what the planner expected before the run", spans))
    elif run.axes.world > 1:  # a run of an earlier version, or of too many ranks
        planned = simulated(run.epochs, run.mesh)
        if planned is not None and any(planned):
            origin = "every action takes its usual time, and every message arrives at once"
            panels.insert(0, Panel("Planned", origin, planned))
    return panels


def _said(run: RunView, panels: Sequence[Panel]) -> str:
    told = [f"{panel.title}: {seconds(length_of(panel.ranks))} ({panel.origin})." for panel in panels]
    actions = sum(len(rank) for rank in panels[-1].ranks)
    return f"{counted(actions, 'action')} on {counted(run.axes.world, 'rank')}. {' '.join(told)}"


def where(run: RunView) -> Markup | None:
    """Give where an epoch's time went, a bar a rank."""
    ranks, epochs = run.spent
    if not ranks:
        return None
    names = [name for name in _NAMES if any(getattr(rank, name) > 0 for rank in ranks)]
    totals = [sum(getattr(rank, name) for name in names) for rank in ranks]
    rows = [
        (
            f"rank\N{NO-BREAK SPACE}{k}",
            [
                (_NAMES[name][0], getattr(rank, name), f"{_NAMES[name][1]}: {seconds(getattr(rank, name))}")
                for name in names
            ],
            f"computes {share(rank.computing / (totals[k] or 1.0))}",
        )
        for k, rank in enumerate(ranks)
    ]
    cells = [
        [f"rank\N{NO-BREAK SPACE}{k}", *(seconds(getattr(rank, name)) for name in names)]
        for k, rank in enumerate(ranks)
    ]
    said = f"The mean of {counted(epochs, 'epoch')}, the last of the run, evaluation left out."
    if len(ranks) > 1:
        least = min(range(len(ranks)), key=lambda k: ranks[k].computing / (totals[k] or 1.0))
        said += (
            f" Rank {least} computes least: {share(ranks[least].computing / (totals[least] or 1.0))} of its time."
            " Waiting is for a rank that had not sent yet; exchanging is what is copied, sent and added up."
        )
    caption = "Where the time of an epoch went, by rank"
    return tag(
        "div",
        tag("h3", "Where an epoch's time went"),
        bars(rows, [_NAMES[name] for name in names], caption=caption),
        note(said),
        tag(
            "details",
            tag("summary", "The same as a table"),
            table(["", *(_NAMES[name][1] for name in names)], cells, caption=caption),
        ),
        class_="card",
    )


def _by_layer(run: RunView) -> Markup | None:
    """Give the seconds of all ranks together by what was computed, as a table."""
    words = Words(run.plan)
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    order: dict[str, int] = {}
    for rank in run.epochs[max(run.epochs)]:
        for event in rank:
            if event.action is not None and event.action.verb in KINDS:
                phrase = words.phrase(event.action)
                name = phrase.text.partition(" of ")[2].partition(",")[0] if phrase.layer is not None else phrase.text
                order.setdefault(name, phrase.layer if phrase.layer is not None else 1 << 30)
                sums[name][KINDS[event.action.verb]] += event.seconds
    if not sums or len(sums) > _MOST_LAYERS:
        return None
    kinds = [kind for kind in KINDS.values() if any(kind in own for own in sums.values())]
    rows = [
        [name, *(seconds(sums[name][kind]) if kind in sums[name] else "–" for kind in kinds)]
        for name in sorted(sums, key=lambda name: order[name])
    ]
    caption = "Seconds of all ranks together, by what was computed"
    return table(["", *(_NAMES[kind][1] for kind in kinds)], rows, caption=caption)


def timing(run: RunView) -> Markup | None:
    """Give the section on time."""
    damaged = None
    if run.damaged_events:
        damaged = note(
            f"{counted(run.damaged_events, 'line')} of the files in events/ are no events, and are left out."
        )
    drawn = join((schedule(run), where(run), damaged))
    return drawn or None
