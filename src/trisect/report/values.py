"""Reading files that somebody else may have written: a value of the wrong kind is as good as none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any


class Values:
    """Something out of a JSON file, of which nothing is taken for granted.

    `at` never fails: what is not there, or not of the kind that is asked for, is nothing.
    """

    __slots__ = ("plain",)

    def __init__(self, plain: Any) -> None:
        self.plain = plain

    def at(self, *path: str) -> Values:
        """Give what lies under these keys."""
        value = self.plain
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return Values(value)

    def __bool__(self) -> bool:
        return self.plain is not None

    def __iter__(self) -> Iterator[Values]:
        return (Values(each) for each in (self.plain if isinstance(self.plain, list) else ()))

    def mapping(self) -> dict[str, Any]:
        """Give an object as it is; an empty one of anything else."""
        return self.plain if isinstance(self.plain, dict) else {}

    def items(self) -> list[tuple[str, Values]]:
        """Give the keys and values of an object; nothing of anything else."""
        return [(str(key), Values(value)) for key, value in self.mapping().items()]

    def number(self) -> float | None:
        """Give a finite number."""
        if isinstance(self.plain, bool) or not isinstance(self.plain, (int, float)):
            return None
        try:
            value = float(self.plain)
        except OverflowError:
            return None
        return value if math.isfinite(value) else None

    def count(self) -> int | None:
        """Give a whole number of at least 0."""
        value = self.number()
        return int(value) if value is not None and value >= 0 and value == int(value) else None

    def numbers(self) -> list[float]:
        """Give a list of finite numbers; nothing where one of them is none."""
        values = [each.number() for each in self]
        return [] if None in values else [value for value in values if value is not None]

    def counts(self) -> list[int]:
        """Give a list of whole numbers of at least 0; nothing where one of them is none."""
        values = [each.count() for each in self]
        return [] if None in values else [value for value in values if value is not None]

    def text(self) -> str | None:
        """Give a text, or a number as one."""
        if isinstance(self.plain, str):
            return self.plain
        return None if self.number() is None else str(self.plain)
