"""Ranks that do something wrong, so that the comparison must fail: the negative controls of `exact.py`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from run_cases import broken

SPOILT = ("swap", "send", "exit", "hang")
"""What crosses parts, or is sent along time or layers, is a little too large; the last rank dies, or never answers."""
SHARED = ("pooled",)
"""A fault of a path that large work takes, in ranks and in the process that they are compared with."""


@contextmanager
def spoilt(how: str, *, last: bool) -> Iterator[None]:
    """Spoil what this rank does; an empty text spoils nothing.

    Args:
        last: whether this is the last rank.
    """
    if last and how == "exit":
        os._exit(3)
    while last and how == "hang":
        time.sleep(1.0)
    with broken(how):
        yield
