"""Rows whose source and target are one vertex: counted, said, and kept or left out."""

from __future__ import annotations

from typing import Literal, get_args

from trisect.data.records import Array
from trisect.errors import DataError, unknown

SelfLoops = Literal["keep", "drop"]


def check_self_loops(choice: str) -> None:
    """Refuse a `self_loops` that is none of the choices."""
    if choice not in get_args(SelfLoops):
        raise DataError(unknown("value of self_loops", str(choice), get_args(SelfLoops)))


def split_off(src: Array, dst: Array, choice: SelfLoops, title: str) -> tuple[Array | None, int, list[str]]:
    """Return the rows to keep (bool [rows], None: all), the number of self-loops, and a sentence about them.

    Args:
        title: the table, as messages call it.
    """
    loops = src == dst
    count = int(loops.sum())
    if not count:
        return None, 0, []
    what = f"{count:,} of {len(src):,} rows of {title} are self-loops (one vertex is src and dst)"
    if choice == "keep":
        return None, count, [f"{what}; they are kept as edges (self_loops: drop, --self-loops drop leaves them out)."]
    if count == len(src):
        raise DataError(f"{title} has self-loops alone, and self_loops is 'drop'; keep them, or give other edges.")
    return ~loops, count, [f"{what} and were dropped (self_loops: drop); their vertices stay."]
