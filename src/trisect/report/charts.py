"""Charts as inline SVG: lines over epochs, bars, and spans along time. No library, so that a page stays small."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 30


@dataclass(frozen=True)
class Series:
    """One line: its name, a colour class of the page's style sheet, and points (x, y)."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Span:
    """Something that took from `start` to `start + seconds` on a row."""

    row: int
    start: float
    seconds: float
    colour: str
    label: str


def lines(
    title: str,
    series: Sequence[Series],
    *,
    unit: str = "",
    from_zero: bool = False,
    mark: float | None = None,
    epochs: int = 1,
) -> str:
    """Draw a line chart over the epochs 1..`epochs` or more. `mark` is an epoch to point out (the best one).

    Points that are not finite are left out. The values also go into the page as data, for the tooltip.
    """
    kept = [Series(s.name, s.colour, [p for p in s.points if math.isfinite(p[1])]) for s in series]
    kept = [s for s in kept if s.points]
    if not kept:
        return ""
    xs = [1.0, float(epochs), *(x for s in kept for x, _ in s.points)]
    ys = [y for s in kept for _, y in s.points]
    x_low, x_high = min(xs), max(max(xs), min(xs) + 1)
    ticks = nice_ticks(0.0 if from_zero else min(ys), max(ys))
    y_low, y_high = min(ticks[0], min(ys)), max(ticks[-1], max(ys))

    def px(x: float) -> float:
        return _LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - _LEFT - _RIGHT)

    def py(y: float) -> float:
        return HEIGHT - _BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - _TOP - _BOTTOM)

    parts = [_grid(ticks, py, unit), _epoch_axis(x_low, x_high, px)]
    if mark is not None and x_low <= mark <= x_high:
        x = px(mark)
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
        side, shift = ("end", -4) if x > WIDTH - 60 else ("start", 4)
        parts.append(f'<text class="tick" x="{x + shift:.1f}" y="{_TOP + 9}" text-anchor="{side}">best</text>')
    for s in kept:
        if len(s.points) == 1:
            x, y = s.points[0]
            parts.append(f'<circle class="{s.colour}" cx="{px(x):.1f}" cy="{py(y):.1f}" r="3"/>')
        else:
            path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in thin(s.points, 800))
            parts.append(f'<polyline class="{s.colour}" points="{path}"/>')
    parts.append(f'<line class="cursor" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" visibility="hidden"/>')
    data = {
        "x": [x_low, x_high],
        "px": [_LEFT, WIDTH - _RIGHT],
        "unit": unit,
        "series": [
            {"name": s.name, "colour": s.colour, "points": [list(p) for p in thin(s.points, 800)]} for s in kept
        ],
    }
    keys = "".join(f'<span class="key"><i class="{s.colour}"></i>{html.escape(s.name)}</span>' for s in kept)
    return (
        f'<figure class="chart" data-chart="{html.escape(json.dumps(data), quote=True)}">'
        f"<figcaption>{html.escape(title)}<span>{keys if len(kept) > 1 else ''}</span></figcaption>"
        + _svg(WIDTH, HEIGHT, title, parts)
        + "</figure>"
    )


@dataclass(frozen=True)
class Panel:
    """Rows of spans along time, their starts counted from 0, and a note at the end of each row."""

    title: str
    rows: Sequence[str]
    items: Sequence[Span]
    notes: Sequence[str]


def panels(title: str, stacked: Sequence[Panel], legend: Mapping[str, str]) -> str:
    """Panels one above the other, along the same milliseconds. `legend` maps colours to what they mean."""
    if not any(panel.items for panel in stacked):
        return ""
    length = max(max((item.start + item.seconds for panel in stacked for item in panel.items), default=0.0), 1e-6)
    width, right, row_height = 2 * WIDTH, 84, 34
    scale = (width - _LEFT - right) / length
    parts, top = [], 8.0
    for panel in stacked:
        if len(stacked) > 1:
            parts.append(f'<text class="tick head" x="{_LEFT}" y="{top + 12:.0f}">{html.escape(panel.title)}</text>')
            top += 20
        parts += _rows(panel, top, row_height, width - right + 8)
        bottom = top + row_height * len(panel.rows)
        for tick in nice_ticks(0.0, length * 1e3, count=8):
            x = _LEFT + tick / 1e3 * scale
            if x <= width - right + 1:
                parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.0f}" y2="{bottom:.0f}"/>')
                if panel is stacked[-1]:
                    y = bottom + 16
                    parts.append(
                        f'<text class="tick" x="{x:.1f}" y="{y:.0f}" text-anchor="middle">{number(tick)} ms</text>'
                    )
        parts += [_rectangle(item, top, row_height, scale) for item in _merged(panel.items, 0.6 / scale)]
        top = bottom + 10
    keys = "".join(f'<span class="key"><i class="{c}"></i>{html.escape(text)}</span>' for c, text in legend.items())
    return (
        f'<figure class="wide"><figcaption>{html.escape(title)}<span>{keys}</span></figcaption>'
        + _svg(width, round(top + 16), title, parts)
        + "</figure>"
    )


def _rows(panel: Panel, top: float, row_height: int, right: int) -> list[str]:
    parts = []
    for row, (name, note) in enumerate(zip(panel.rows, panel.notes, strict=True)):
        y = top + row * row_height + row_height / 2 + 4
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y:.1f}" text-anchor="end">{html.escape(name)}</text>')
        if note:
            parts.append(f'<text class="tick" x="{right}" y="{y:.1f}">{html.escape(note)}</text>')
    return parts


def _merged(items: Sequence[Span], least: float) -> list[Span]:
    """Neighbours of one colour that are too narrow to be told apart, as one span: a page stays small."""
    result: list[Span] = []
    for item in sorted(items, key=lambda item: (item.row, item.start)):
        last = result[-1] if result else None
        if last is not None and last.row == item.row and last.colour == item.colour:
            gap = item.start - last.start - last.seconds
            if gap < least and min(item.seconds, last.seconds) < least:
                label = last.label if last.label.endswith(" …") else f"{last.label} …"
                end = max(item.start + item.seconds, last.start + last.seconds)
                result[-1] = Span(item.row, last.start, end - last.start, item.colour, label)
                continue
        result.append(item)
    return result


def _rectangle(item: Span, top: float, row_height: int, scale: float) -> str:
    x, y = _LEFT + item.start * scale, top + item.row * row_height + 4
    wide = max(item.seconds * scale - 0.4, 0.6)  # a hair's breadth between neighbours
    return (
        f'<rect class="{item.colour}" x="{x:.2f}" y="{y:.0f}" width="{wide:.2f}" height="{row_height - 8}" rx="1">'
        f"<title>{html.escape(item.label)}, {number(item.seconds * 1e3)} ms</title></rect>"
    )


def bars(items: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars as a table: (name, value, the value as text)."""
    top = max((value for _, value, _ in items), default=0.0) or 1.0
    rows = "".join(
        f'<tr><th>{html.escape(name)}</th><td class="bar"><i style="width:{100 * value / top:.1f}%"></i></td>'
        f'<td class="number">{html.escape(text)}</td></tr>'
        for name, value, text in items
    )
    return f'<table class="bars">{rows}</table>'


def nice_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """About `count` round values that enclose low..high."""
    if high <= low:
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def thin(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most about `most` points: of each run of neighbours the lowest and the highest, so that peaks stay."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / (most / 2))
    result: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        run = points[start : start + size]
        result += sorted({min(run, key=lambda p: p[1]), max(run, key=lambda p: p[1])})
    return result


def number(value: float) -> str:
    """Give a number as people write it: four figures, no tail of zeros."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.2e}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    name = html.escape(title, quote=True)
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{name}">{"".join(parts)}</svg>'


def _grid(ticks: Sequence[float], py: Callable[[float], float], unit: str) -> str:
    return "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{py(t):.1f}" y2="{py(t):.1f}"/>'
        f'<text class="tick" x="{_LEFT - 6}" y="{py(t) + 4:.1f}" text-anchor="end">{number(t)}{unit}</text>'
        for t in ticks
    )


def _epoch_axis(low: float, high: float, px: Callable[[float], float]) -> str:
    ticks = sorted({round(t) for t in nice_ticks(low, high, 6) if max(low, 1) <= t <= high and t == round(t)})
    marks = "".join(
        f'<text class="tick" x="{px(t):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{number(t)}</text>' for t in ticks
    )
    return marks + f'<text class="tick" x="{_LEFT - 6}" y="{HEIGHT - 12}" text-anchor="end">epoch</text>'
