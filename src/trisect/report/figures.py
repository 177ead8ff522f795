"""Figures: data that the page's script draws, each with a sentence and a table that say the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trisect.report.markup import Markup, join, table, tag
from trisect.report.quantities import number, seconds, share, size
from trisect.settings.writing import to_json

_POINTS, _ROWS = 600, 40
_SHOWN = {"seconds": seconds, "bytes": size, "share": share, "number": number}


@dataclass(frozen=True)
class Series:
    """One line: its name, the number of its colour, and points (x, y); `later` are other x of the same points."""

    name: str
    colour: int
    points: Sequence[tuple[float, float]]
    later: Sequence[float] = ()


def figure(
    title: str,
    data: Mapping[str, Any],
    *,
    text: str,
    alternative: Markup | None = None,
    summary: str = "The same as a table",
    beside: bool = False,
    quiet: bool = False,
    wide: bool = False,
) -> Markup:
    """Make a figure that the script fills; `text` and the table of `alternative` are there without it.

    Args:
        summary: what the table is called; it opens at a click, unless it is `beside` the picture.
        quiet: whether the text opens with the table; a reader of the screen hears it all the same.
        wide: whether the figure takes the whole width.
    """
    plot, told = tag("div", class_="plot"), tag("p", text, class_="says")
    if beside:
        content = tag("div", tag("div", plot, told), alternative, class_="beside")
    else:
        more = (told if quiet else None, alternative)
        opened = tag("details", tag("summary", summary), more) if quiet or alternative is not None else None
        content = join((plot, None if quiet else told, opened))
    return tag(
        "figure",
        tag("figcaption", title),
        content,
        tag("script", embedded(data), type="application/json"),
        class_="wide" if wide else None,
        data_kind=str(data["kind"]),
        aria_label=title,
    )


def embedded(data: Any) -> Markup:
    """Give JSON that can stand in a page: no text of it ends the element that it is in."""
    text = to_json(data, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def lines(
    title: str,
    series: Sequence[Series],
    *,
    x: str = "epoch",
    later: str | None = None,
    unit: str = "number",
    from_zero: bool = False,
    mark: float | None = None,
    log: bool = False,
) -> Markup | None:
    """Make a chart of lines over epochs or steps; None where there is nothing to draw.

    Args:
        x: what lies to the right; `later` names the other x of the points, which a button shows.
        unit: seconds, bytes, share or number.
        mark: an epoch to point out (the best one).
        log: whether a button offers a logarithmic scale.
    """
    kept = [s for s in series if s.points]
    if not kept:
        return None
    drawn = []
    for s in kept:
        indices = thin([y for _, y in s.points], _POINTS)
        entry: dict[str, Any] = {
            "name": s.name,
            "colour": s.colour,
            "points": [[_short(s.points[k][0]), _short(s.points[k][1])] for k in indices],
        }
        if later is not None and len(s.later) == len(s.points):
            entry["later"] = [_short(s.later[k]) for k in indices]
        drawn.append(entry)
    low = min(y for s in kept for _, y in s.points)
    data = {
        "kind": "lines",
        "x": x,
        "later": later,
        "unit": unit,
        "zero": from_zero,
        "log": log and low > 0,
        "mark": None if mark is None else [mark, "best"],
        "series": drawn,
    }
    text = " ".join(_said(s, x, unit) for s in kept[:6])
    if len(kept) > 6:
        text += f" And {len(kept) - 6} more lines, which the table has."
    points = _points_table(title, kept, x, unit)
    return figure(title, data, text=text, alternative=points, summary="In words and as a table", quiet=True)


def _said(s: Series, x: str, unit: str) -> str:
    shown = _SHOWN[unit]
    if len(s.points) == 1:
        return f"{s.name.capitalize()} is {shown(s.points[0][1])} at {x} {number(s.points[0][0])}."
    low, high = min(s.points, key=lambda p: p[1]), max(s.points, key=lambda p: p[1])
    first, last = s.points[0], s.points[-1]
    return (
        f"{s.name.capitalize()} goes from {shown(first[1])} to {shown(last[1])}; lowest {shown(low[1])} at {x}"
        f" {number(low[0])}, highest {shown(high[1])} at {x} {number(high[0])}."
    )


def _points_table(title: str, series: Sequence[Series], x: str, unit: str) -> Markup:
    values: dict[float, dict[int, float]] = {}
    for k, s in enumerate(series):
        for at, y in s.points:
            values.setdefault(at, {})[k] = y
    places = sorted(values)
    step = math.ceil(len(places) / _ROWS)
    chosen = sorted({*places[::step], *places[-1:]})
    rows = [
        [number(at), *(_SHOWN[unit](values[at][k]) if k in values[at] else "" for k in range(len(series)))]
        for at in chosen
    ]
    caption = title + (f" (every {step} rows)" if step > 1 else "")
    return table([x, *(s.name for s in series)], rows, caption=caption)


def thin(values: Sequence[float], most: int) -> list[int]:
    """Choose about `most` positions: of each run of neighbours the lowest and the highest, so that peaks stay."""
    if len(values) <= most:
        return list(range(len(values)))
    length = math.ceil(len(values) / (most / 2))
    chosen: set[int] = set()
    for start in range(0, len(values), length):
        run = range(start, min(start + length, len(values)))
        chosen |= {min(run, key=values.__getitem__), max(run, key=values.__getitem__)}
    return sorted(chosen)


def side_by_side(*children: Markup | None) -> Markup:
    """Put figures beside each other where there is room."""
    kept = [child for child in children if child]
    return tag("div", join(kept), class_="charts") if kept else Markup("")


def _short(value: float) -> float | int:
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.6g}")
