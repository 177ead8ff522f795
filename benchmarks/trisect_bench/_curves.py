"""A chart of lines and points on logarithmic scales, as an SVG file that stands for itself."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COLOURS = ("#2a6fb0", "#c8553d", "#3c8d5a", "#7d5ba6", "#8a6d1f", "#4d4d4d")
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 30, 42


@dataclass(frozen=True)
class Curve:
    """Points (x, y) with a name and a colour; drawn as a line, or as circles where they were measured."""

    name: str
    points: Mapping[float, float]
    colour: int
    measured: bool = False


def chart(
    title: str,
    curves: Sequence[Curve],
    *,
    x: str,
    y: str,
    marks: Mapping[int, float] | None = None,
    width: int = 560,
    height: int = 340,
) -> str:
    """Draw curves on logarithmic scales.

    Args:
        x, y: what the axes are.
        marks: for a colour, the x that a larger circle points out.
    """
    xs = [value for curve in curves for value in curve.points]
    ys = [value for curve in curves for value in curve.points.values()]
    (x_low, x_high), (y_low, y_high) = _span(xs), _span(ys)

    def px(value: float) -> float:
        return _LEFT + (width - _LEFT - _RIGHT - 150) * math.log(value / x_low) / math.log(x_high / x_low)

    def py(value: float) -> float:
        return height - _BOTTOM - (height - _TOP - _BOTTOM) * math.log(value / y_low) / math.log(y_high / y_low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        ' font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="13">{html.escape(title)}</text>',
    ]
    for value in sorted(set(xs)):
        parts.append(
            f'<line x1="{px(value):.1f}" x2="{px(value):.1f}" y1="{_TOP}" y2="{height - _BOTTOM}" stroke="#eee"/>'
        )
        parts.append(
            f'<text x="{px(value):.1f}" y="{height - _BOTTOM + 15}" text-anchor="middle">{_short(value)}</text>'
        )
    for value in _ticks(y_low, y_high):
        parts.append(
            f'<line x1="{_LEFT}" x2="{px(x_high):.1f}" y1="{py(value):.1f}" y2="{py(value):.1f}" stroke="#ddd"/>'
        )
        parts.append(f'<text x="{_LEFT - 6}" y="{py(value) + 4:.1f}" text-anchor="end">{_short(value)}</text>')
    parts.append(
        f'<text x="{px(x_high) / 2 + _LEFT / 2:.1f}" y="{height - 8}" text-anchor="middle">{html.escape(x)}</text>'
    )
    parts.append(
        f'<text transform="translate(14 {(height - _BOTTOM + _TOP) / 2:.1f}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(y)}</text>"
    )
    for number, curve in enumerate(curves):
        parts += _drawn(curve, px, py, None if marks is None else marks.get(curve.colour))
        parts += _legend(curve, width - 145, _TOP + 16 * number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _drawn(curve: Curve, px, py, mark: float | None) -> list[str]:  # type: ignore[no-untyped-def]
    colour = COLOURS[curve.colour % len(COLOURS)]
    points = sorted(curve.points.items())
    if curve.measured:
        return [
            f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="4" fill="none" stroke="{colour}" stroke-width="1.5"/>'
            for x, y in points
        ]
    path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in points)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>']
    if mark is not None and mark in curve.points:
        parts.append(f'<circle cx="{px(mark):.1f}" cy="{py(curve.points[mark]):.1f}" r="5" fill="{colour}"/>')
    return parts


def _legend(curve: Curve, x: float, y: float) -> list[str]:
    colour = COLOURS[curve.colour % len(COLOURS)]
    if curve.measured:
        sign = f'<circle cx="{x + 9:.1f}" cy="{y:.1f}" r="4" fill="none" stroke="{colour}" stroke-width="1.5"/>'
    else:
        sign = f'<line x1="{x:.1f}" x2="{x + 18:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="1.8"/>'
    return [sign, f'<text x="{x + 24:.1f}" y="{y + 4:.1f}">{html.escape(curve.name)}</text>']


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low / 1.1, high * 1.1) if high > low else (low / 2.0, high * 2.0)


def _ticks(low: float, high: float) -> list[float]:
    """Give 1, 2 and 5 times powers of ten; of more than three decades, the powers alone."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1.0, 2.0, 5.0) if math.log10(high / low) <= 3 else (1.0,)
    return [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"
