"""Several runs on one page: a table of ratios, curves on the same axes, boxes and schedules one above the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from trisect.report.box import box_data, box_of, rank_table
from trisect.report.events import length_of
from trisect.report.figures import Series, figure, lines, side_by_side
from trisect.report.markup import Child, Markup, bars, join, note, table, tag
from trisect.report.quality import LINES
from trisect.report.quantities import measure_name, number, seconds, share, size
from trisect.report.run_view import RunView
from trisect.report.timing import schedule, schedule_panels
from trisect.report.values import Values

_MOST_MEASURES = 12

Figure = tuple[str, Callable[[RunView], float | None], Callable[[float], str]]


def comparison(runs: Sequence[RunView]) -> list[tuple[str, str, Child]]:
    """Give the sections of a page of several runs."""
    labels = _labels(runs)
    return [
        ("ratios", "Side by side", _ratios(runs, labels)),
        ("learning", "Learning", side_by_side(*_curves(runs, labels))),
        ("costs", "Time, bytes and memory", _bars(runs, labels)),
        ("time", "Where the time went", join(_schedules(runs, labels))),
        ("box", "How the work is cut", side_by_side(*_boxes(runs, labels))),
        ("settings", "What differs in the settings", _differences(runs, labels)),
    ]


def _labels(runs: Sequence[RunView]) -> list[str]:
    """Name runs by their directories, with a number where two have the same."""
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else f"{name} ({k + 1})" for k, name in enumerate(names)]


def _figures(runs: Sequence[RunView]) -> list[Figure]:
    def at(*path: str) -> Callable[[RunView], float | None]:
        return lambda run: run.summary.at(*path).number()

    def peak(kind: str) -> Callable[[RunView], float | None]:
        return lambda run: max(run.summary.at("memory", kind).numbers(), default=None)

    def together(run: RunView) -> float | None:
        own = run.summary.at("memory", "peak_pss_bytes").numbers()
        return sum(own) if own else None

    rows: list[Figure] = [
        ("ranks", lambda run: float(run.axes.world), lambda value: f"{value:.0f}"),
        ("epochs", lambda run: float(len(run.records)), lambda value: f"{value:,.0f}"),
        ("seconds an epoch, median", at("seconds_per_epoch", "median"), seconds),
        ("seconds an epoch, best", at("seconds_per_epoch", "best"), seconds),
        ("predicted seconds an epoch", at("plan", "seconds_per_epoch"), seconds),
        ("computing, of all ranks' time", RunView.computing, share),
        ("bytes sent an epoch", at("communication", "bytes_per_epoch"), size),
        ("peak memory of a rank", peak("peak_rss_bytes"), size),
        ("peak memory, shared pages divided", peak("peak_pss_bytes"), size),
        ("memory of all ranks together", together, size),
        ("parameters", at("parameters"), lambda value: f"{value:,.0f}"),
        ("last training loss", lambda run: run.records[-1].at("loss").number() if run.records else None, number),
        ("best epoch", at("best_epoch"), lambda value: f"{value:,.0f}"),
    ]
    for split in ("val", "test"):
        names = dict.fromkeys(
            name
            for run in runs
            for name, value in run.summary.at("metrics", split).items()
            if value.number() is not None
        )
        rows += [
            (f"{split} {measure_name(name)}", at("metrics", split, name), number)
            for name in list(names)[:_MOST_MEASURES]
        ]
    return rows


def _ratios(runs: Sequence[RunView], labels: Sequence[str]) -> Markup:
    """Give every figure of every run, and its ratio to that of the first."""
    rows = []
    for name, read, show in _figures(runs):
        values = [read(run) for run in runs]
        if all(value is None for value in values):
            continue
        cells: list[Child] = ["–" if values[0] is None else show(values[0])]
        for value in values[1:]:
            if value is None:
                cells.append("–")
            elif values[0]:
                cells.append(join((show(value), " ", tag("small", f"× {value / values[0]:.3g}"))))
            else:
                cells.append(show(value))
        rows.append([name, *cells])
    unfinished = [label for label, run in zip(labels, runs, strict=True) if not run.finished]
    said = f"Not finished, so that figures are missing: {', '.join(unfinished)}." if unfinished else None
    return tag(
        "div",
        table(["", *labels], rows, caption=f"Every run beside {labels[0]}"),
        note(said) if said else None,
        class_="card",
    )


def _curves(runs: Sequence[RunView], labels: Sequence[str]) -> Iterable[Markup | None]:
    """Draw the losses and measures of all runs, over epochs or over the seconds of training."""
    paths: dict[tuple[str, ...], None] = {("loss",): None, ("val", "loss"): None}
    for run in runs:
        for record in run.records:
            for split in ("val", "test"):
                for name, value in record.at(split).items():
                    if name != "loss" and value.number() is not None:
                        paths[split, name] = None
    for path in list(paths)[:_MOST_MEASURES]:
        title = "Training loss" if path == ("loss",) else f"{path[0].capitalize()} {measure_name(path[1])}"
        series = [_series(run, label, k, path) for k, (run, label) in enumerate(zip(runs, labels, strict=True))]
        yield lines(title, series, later="seconds of training", log=path[-1] == "loss")
    times = [
        Series(label, _colour(k), run.points("seconds"))
        for k, (run, label) in enumerate(zip(runs, labels, strict=True))
    ]
    yield lines("Time of an epoch", times, unit="seconds", from_zero=True)


def _series(run: RunView, label: str, colour: int, path: tuple[str, ...]) -> Series:
    points, later = [], []
    clocks = accumulate(record.at("seconds").number() or 0.0 for record in run.records)
    for record, clock in zip(run.records, clocks, strict=True):
        epoch, value = record.at("epoch").number(), record.at(*path).number()
        if epoch is not None and value is not None:
            points.append((epoch, value))
            later.append(clock)
    return Series(label, _colour(colour), points, later)


def _colour(number_: int) -> int:
    return LINES[number_ % len(LINES)]


def _bars(runs: Sequence[RunView], labels: Sequence[str]) -> Markup:
    cards = []
    for title, read, show in (
        ("Seconds an epoch (median)", ("seconds_per_epoch", "median"), seconds),
        ("Bytes sent an epoch", ("communication", "bytes_per_epoch"), size),
    ):
        values = [run.summary.at(*read).number() for run in runs]
        cards.append(_card(title, labels, values, show))
    peaks = [max(run.summary.at("memory", "peak_rss_bytes").numbers(), default=None) for run in runs]
    cards.append(_card("Peak memory of a rank", labels, peaks, size))
    return tag("div", cards, class_="two")


def _card(
    title: str, labels: Sequence[str], values: Sequence[float | None], show: Callable[[float], str]
) -> Markup | None:
    if all(value is None for value in values):
        return None
    rows = [
        (label, [(f"c{_colour(k)}", value or 0.0, "")], "–" if value is None else show(value))
        for k, (label, value) in enumerate(zip(labels, values, strict=True))
    ]
    return tag("div", tag("h3", title), bars(rows, caption=title), class_="card")


def _schedules(runs: Sequence[RunView], labels: Sequence[str]) -> Iterable[Markup]:
    panels = [schedule_panels(run) for run in runs]
    length = max((length_of(panel.ranks) for own in panels for panel in own), default=0.0)
    for run, label in zip(runs, labels, strict=True):
        drawn = schedule(run, length=length)
        if drawn is not None:
            yield tag("h3", label)
            yield drawn


def _boxes(runs: Sequence[RunView], labels: Sequence[str]) -> Iterable[Markup]:
    for run, label in zip(runs, labels, strict=True):
        box = box_of(run)
        data = box_data(run, box)
        yield figure(label, data, text="; ".join(data["axes"]) + ".", alternative=rank_table(run, box))


def _differences(runs: Sequence[RunView], labels: Sequence[str]) -> Markup:
    flat = [dict(_settings(Values(json.loads(json.dumps(run.config, default=str))))) for run in runs]
    keys = list(dict.fromkeys(key for each in flat for key in each))
    rows = []
    for key in keys:
        values = [each.get(key, "–") for each in flat]
        if len(set(values)) > 1:
            rows.append([key, *(value[:120] for value in values)])
    if not rows:
        return note("Nothing: all runs have the same settings.")
    return tag("div", table(["setting", *labels], rows, caption="Settings that differ"), class_="card")


def _settings(values: Values, prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value.plain, Mapping):
            yield from _settings(value, f"{name}.")
        else:
            yield name, _plain(value.plain)


def _plain(value: Any) -> str:
    return "none" if value is None else str(value)
