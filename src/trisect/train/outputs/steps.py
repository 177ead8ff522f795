"""Which steps of a timeline are given: `last`, `all`, `7`, `3:10`, as Python counts them."""

from __future__ import annotations

import re

from trisect.errors import ConfigError


def parse_steps(text: str, steps: int, option: str = "--steps") -> range:
    """Give the steps that a text names, of a timeline of so many.

    >>> parse_steps("last", 8), parse_steps("3:", 8), parse_steps("-2:", 8)
    (range(7, 8), range(3, 8), range(6, 8))
    """
    check_steps(text, option)
    if text == "all":
        return range(steps)
    if text == "last":
        return range(steps - 1, steps)
    start, colon, stop = text.partition(":")
    if not colon:
        if not -steps <= int(start) < steps:
            raise ConfigError(f"{option} is {text}, but the timeline has the steps 0 to {steps - 1}.")
        return range(steps)[int(start) :][:1]
    chosen = range(steps)[int(start) if start else None : int(stop) if stop else None]
    if not chosen:
        raise ConfigError(f"{option} is {text}, which names none of the steps 0 to {steps - 1}.")
    return chosen


def check_steps(text: str, option: str = "--steps") -> None:
    """Raise where a text names no steps, whatever the timeline."""
    if text not in ("all", "last") and re.fullmatch(r"-?\d+|(-?\d+)?:(-?\d+)?", text) is None:
        raise ConfigError(f"{option} is {text!r}; give last, all, a number such as 7, or a range such as 3:10.")
