"""Rows of a table that cannot be used: gathered over all batches, and told in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from trisect.data.ingest.sources import Source
from trisect.data.records import Array
from trisect.errors import DataError, unknown

OnMissing = Literal["refuse", "drop", "zero"]
_EXAMPLES = 3


@dataclass(frozen=True, eq=False)
class Flaw:
    """Rows of one batch in which a column holds what cannot be used.

    Attributes:
        reason: what is wrong, such as `time 't' is missing`.
        rows: bool [rows of the batch].
        missing: whether only a number is absent, so that zero may stand for it.
    """

    reason: str
    rows: Array
    missing: bool = False


@dataclass
class _Told:
    count: int = 0
    examples: list[tuple[int, str]] = field(default_factory=list)


def check_choice(on_missing: str) -> None:
    """Refuse an `on_missing` that is none of the choices."""
    if on_missing not in get_args(OnMissing):
        raise DataError(unknown("value of on_missing", str(on_missing), get_args(OnMissing)))


class Flaws:
    """Gathers the bad rows of one table while it is read.

    `refuse`: `finish` raises one error for all of them. `drop`: they are left out. `zero`: 0 stands for missing
    weights, and all other bad rows are refused.
    """

    def __init__(self, source: Source, on_missing: OnMissing = "refuse") -> None:
        check_choice(on_missing)
        self._source, self._choice = source, on_missing
        self._told: dict[str, _Told] = {}
        self.rows = self.dropped = self.zeroed = 0

    def judge(self, columns: Mapping[str, tuple[Any, Sequence[Flaw]]], rows: int) -> Array | None:
        """Tell which rows of a batch to keep: bool [rows], or None for all.

        Args:
            columns: of each column its raw values, and its flaws.
        """
        bad: Array | None = None
        for values, flaws in columns.values():
            for flaw in flaws:
                if flaw.missing and self._choice == "zero":
                    self.zeroed += int(flaw.rows.sum())
                    continue
                bad = flaw.rows.copy() if bad is None else bad | flaw.rows
                self._tell(flaw, values)
        self.rows += rows
        if bad is None:
            return None
        self.dropped += int(bad.sum())
        return ~bad

    def _tell(self, flaw: Flaw, values: Any) -> None:
        told = self._told.setdefault(flaw.reason, _Told())
        told.count += int(flaw.rows.sum())
        for position in np.flatnonzero(flaw.rows)[: _EXAMPLES - len(told.examples)].tolist():
            value = values[position]
            value = value.as_py() if hasattr(value, "as_py") else value
            empty = value is None or not str(value).strip()
            told.examples.append((self.rows + position, "" if empty else repr(value)))

    def finish(self) -> dict[str, Any]:
        """Tell how many rows were read, dropped and zeroed, and why; raises where bad rows are refused."""
        malformed = self._source.malformed
        bad = self.dropped + malformed
        reasons = {reason: told.count for reason, told in self._told.items()}
        if malformed:
            reasons["another number of columns than the first line"] = malformed
        if bad and self._choice != "drop":
            raise DataError(self._sentence(bad, malformed))
        return {
            "rows": self.rows + malformed,
            "dropped": bad,
            "zeroed": self.zeroed,
            "reasons": reasons,
        }

    def _sentence(self, bad: int, malformed: int) -> str:
        examples = [row for told in self._told.values() for row, _ in told.examples]
        names = dict(zip(sorted(examples), self._source.where(sorted(examples)), strict=True))
        parts = []
        for reason, told in self._told.items():
            listed = ", ".join(f"{names[row]}{': ' + text if text else ''}" for row, text in told.examples)
            parts.append(f"{reason} in {told.count:,} ({listed}{', …' if told.count > len(told.examples) else ''})")
        if malformed:
            lines = self._source.where_malformed(_EXAMPLES)
            more = ", …" if malformed > len(lines) else ""
            parts.append(f"the number of columns is another one in {malformed:,} ({', '.join(lines)}{more})")
        rows = self.rows + malformed
        remedy = "mend them, or leave them out with on_missing: drop (--on-missing drop)"
        if self._choice == "zero":
            remedy = "zero stands for missing numbers only, so mend them, or use on_missing: drop (--on-missing drop)"
        plural = "row" if bad == 1 else "rows"
        return f"{self._source.title} has {bad:,} bad {plural} of {rows:,}: {'; '.join(parts)}; {remedy}."


def listed(names: Sequence[str], most: int = 8) -> str:
    """Some of the names, and how many more there are."""
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def in_words(counts: Mapping[str, Any], table: str) -> list[str]:
    """What was dropped and zeroed of a table, for the user."""
    lines = []
    if counts["dropped"]:
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in counts["reasons"].items())
        lines.append(f"{counts['dropped']:,} of {counts['rows']:,} rows of {table} were dropped ({reasons}).")
    if counts["zeroed"]:
        lines.append(f"{counts['zeroed']:,} missing numbers of {table} count as 0.")
    return lines
