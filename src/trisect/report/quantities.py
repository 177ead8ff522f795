"""Numbers, durations and bytes as people write them."""

from __future__ import annotations

import math

_INITIALS = frozenset({"map", "mrr", "auc", "mse", "rmse", "mae"})


def number(value: float) -> str:
    """Give a number as people write it: four figures, no tail of zeros."""
    if value == 0:
        return "0"
    if abs(value) >= 1e9 or abs(value) < 1e-4:
        return f"{value:.2e}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def seconds(value: float) -> str:
    """Give a duration as people write it."""
    if not math.isfinite(value):
        return "–"
    if value >= 7200:
        return f"{value / 3600:,.1f} h"
    if value >= 120:
        return f"{value / 60:.1f} min"
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"


def size(value: float) -> str:
    """Give a number of bytes as people write it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:,.4g} TiB"


def share(value: float) -> str:
    """Give a fraction as a percentage."""
    return f"{value:.1%}" if 0 < abs(value) < 0.1 else f"{value:.0%}"


def measure_name(name: str) -> str:
    """Give the name of a measure as people write it: MAP, F1 macro, accuracy."""
    words = name.replace("_", " ")
    return words.upper() if words in _INITIALS else words.replace("f1", "F1")


def counted(count: float, noun: str, plural: str | None = None) -> str:
    """Give a count with its noun: 1 rank, 2 ranks, 4,000 vertices."""
    return f"{count:,.0f} {noun if count == 1 else plural or noun + 's'}"
