"""Rows whose source and target are one vertex: counted, said, and kept or left out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal, get_args

from trisect.data.records import Array
from trisect.errors import DataError, unknown

SelfLoops = Literal["keep", "drop"]
_ARE = "are self-loops (one vertex is src and dst)"


def check_self_loops(choice: str) -> None:
    """Refuse a `self_loops` that is none of the choices."""
    if choice not in get_args(SelfLoops):
        raise DataError(unknown("value of self_loops", str(choice), get_args(SelfLoops)))


def warn_of_loops(notes: Sequence[str]) -> None:
    """Show what the notes of a table say of self-loops to the caller's caller, as a warning."""
    for note in notes:
        if _ARE in note:
            warnings.warn(note, stacklevel=3)


def split_off(
    src: Array, dst: Array, choice: SelfLoops, title: str, dropped: int
) -> tuple[Array | None, int, list[str]]:
    """Return the rows to keep (bool [rows], None: all), the number of self-loops, and a sentence about them.

    Args:
        title: the table, as messages call it.
        dropped: the number of its rows that are not among these.
    """
    loops = src == dst
    count = int(loops.sum())
    if not count:
        return None, 0, []
    rows = f"of the {len(src):,} rows that are left of {title}" if dropped else f"of {len(src):,} rows of {title}"
    what = f"{count:,} {rows} {_ARE}"
    if choice == "keep":
        return None, count, [f"{what}; they are kept as edges (self_loops: drop, --self-loops drop leaves them out)."]
    return ~loops, count, [f"{what} and were dropped (self_loops: drop); their vertices stay."]
