"""Columns that describe vertices or edges, gathered batch by batch, as compactly as they allow, and not yet encoded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from trisect.data.ingest.casts import ABSENT, NUMBER, CastError, as_text, kind_of, numbers, timestamps
from trisect.data.ingest.columns import Ids, joined
from trisect.data.ingest.flaws import Flaw
from trisect.data.records import Array
from trisect.errors import DataError, unknown

Kind = Literal["number", "category", "date"]
KINDS: tuple[str, ...] = get_args(Kind)
_MOST_CLASSES = 10_000
_NUMBER = re.compile(NUMBER)
_DAY = 86_400_000_000  # microseconds


@dataclass(frozen=True, eq=False)
class Raw:
    """All values of a column.

    Attributes:
        values: of numbers float32, of dates float64 days since 1970 (NaN where there is none); of categories int32
            positions among `names` (-1 where there is none).
        names: the categories, ascending.
    """

    column: str
    kind: Kind
    values: Array
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)


def parse_columns(wanted: str | Sequence[str] | None) -> list[tuple[str, Kind | None]]:
    """`"age,country:category"` or a list of such → columns, with the kinds that the user names."""
    if wanted is None:
        return []
    texts = wanted.split(",") if isinstance(wanted, str) else [str(text) for text in wanted]
    columns: list[tuple[str, Kind | None]] = []
    for text in texts:
        name, colon, kind = text.strip().rpartition(":")
        if not colon:
            columns.append((text.strip(), None))
        elif kind in KINDS:
            columns.append((name, kind))  # type: ignore[arg-type]
        else:
            raise DataError(unknown(f"kind of the column {name!r}:", kind, KINDS))
    twice = next((name for k, (name, _) in enumerate(columns) if name in [other for other, _ in columns[:k]]), None)
    if twice is not None:
        raise DataError(f"the column {twice!r} is named twice; name each once.")
    return columns


class Attribute:
    """One column. Its kind is the user's, or what its first batch with values looks like."""

    def __init__(self, column: str, kind: Kind | None = None) -> None:
        self._column, self._kind = column, kind
        self._parts: list[Array] = []
        self._categories = Ids()
        self._empty = 0  # rows before the kind was known, all without a value

    def read(self, values: Any) -> tuple[Any, list[Flaw]]:
        """Read a batch, with flaws where it does not fit the kind. A value that is missing is none."""
        if self._kind is None:
            self._kind = kind_of(values)  # type: ignore[assignment]
        if self._kind is None:
            return len(values), []
        try:
            if self._kind == "category":
                return as_text(_array(values)).fill_null(""), []
            if self._kind == "number":
                part, _, bad = numbers(values)
            else:
                time, kind, absent, bad = timestamps(values, "iso")
                if kind != "iso":
                    absent, bad = None, np.ones(len(time), bool)
                part = time / _DAY
                for mask in (absent, bad):
                    if mask is not None:
                        part[mask] = np.nan
        except CastError as error:
            raise DataError(f"column {self._column!r} {error}; leave it out, or give it another kind.") from error
        if bad is None:
            return part, []
        what = "finite number" if self._kind == "number" else "date such as 2024-05-01"
        reason = f"{self._column!r} is no {what} (where it is a class, name it {self._column}:category)"
        return part, [Flaw(reason, bad)]

    def keep(self, values: Any, rows: Array | None = None) -> None:
        """Add the rows of a batch that `read` gave."""
        if isinstance(values, int):
            self._empty += values if rows is None else int(rows.sum())
        elif self._kind == "category":
            encoded, _ = self._categories.read(self._column, values)  # a blank one is no flaw here
            self._categories.keep(self._column, encoded, rows)
        else:
            part = values if rows is None else values[rows]
            self._parts.append(part.astype(np.float32) if self._kind == "number" else part)

    def finish(self) -> Raw:
        """Give all values of the column."""
        kind = self._kind or "number"
        if kind != "category":
            precision = np.float32 if kind == "number" else np.float64
            before = np.full(self._empty, np.nan, precision)
            return Raw(self._column, kind, joined([before, *self._parts], precision))
        codes, names, _ = self._categories.finish()
        texts = [str(name) for name in np.asarray(names)]
        values = codes.get(self._column, np.zeros(0, np.int32))
        if "" in texts:
            hollow = texts.index("")
            values = np.where(values == hollow, -1, values - (values > hollow)).astype(np.int32)
            texts.pop(hollow)
        before = np.full(self._empty, -1, np.int32)
        return Raw(self._column, kind, np.concatenate([before, values]) if self._empty else values, tuple(texts))


def _array(values: Any) -> Any:
    import pyarrow as pa

    return pa.array(values) if isinstance(values, np.ndarray) else values


class IntegerClasses:
    """A column of classes that are whole numbers, for tables that are read without pyarrow."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._parts: list[Array] = []

    def read(self, values: Array) -> tuple[Array, list[Flaw]]:
        """Read a batch of whole numbers."""
        if values.dtype.kind != "i":
            raise DataError(f"{self._column!r} holds decimals; classes must be whole numbers or text.")
        return values, []

    def keep(self, values: Array, rows: Array | None = None) -> None:
        """Add the rows of a batch that `read` gave."""
        self._parts.append(values if rows is None else values[rows])

    def finish(self) -> Raw:
        """Give all values of the column."""
        names, codes = np.unique(np.concatenate(self._parts), return_inverse=True)
        return Raw(self._column, "category", codes.astype(np.int32), tuple(str(name) for name in names.tolist()))


def is_absent(text: str) -> bool:
    """Tell whether a text is one of those that stand for a missing number."""
    return text.strip().lower() in ("", *ABSENT)


def _without_absent(raw: Raw) -> Raw:
    """Give the column with -1 for `NA` and the like, where all other names are numbers."""
    gone = np.array([is_absent(name) for name in raw.names], bool)
    others = [name for name, absent in zip(raw.names, gone.tolist(), strict=True) if not absent]
    if not gone.any() or any(_NUMBER.fullmatch(name.strip()) is None for name in others):
        return raw
    position = np.append(np.where(gone, -1, np.cumsum(~gone) - 1), -1)
    return replace(raw, values=position[raw.values].astype(np.int32), names=tuple(others))


def classes(raw: Raw, role: str, *, targets: bool) -> tuple[Array, list[str]]:
    """Give a column of classes as int64 (-1: none) with the classes' names ([] where they are 0, 1, 2, … themselves).

    Text is in alphabetical order, whole numbers in numeric order, and -1 means that the class is not known. Among
    numbers `NA`, `NaN`, `null` and the like mean that there is none; among texts they are texts.

    Args:
        targets: decimals are not classes but targets of a regression: float32, NaN where there is none.
    """
    raw = _without_absent(raw)
    try:
        values = np.array(raw.names, dtype=np.str_).astype(np.float64)
    except ValueError:
        values = None
    absent = raw.values < 0
    if values is not None and not np.isfinite(values).all():
        infinite = raw.names[int(np.argmax(~np.isfinite(values)))]
        raise DataError(f"{role} holds {infinite!r}; give finite numbers, or leave the cell empty.")
    integral = values is not None and bool(np.isfinite(values).all()) and bool((values == np.floor(values)).all())
    if values is not None and not integral and targets:
        return np.where(absent, np.nan, np.append(values, np.nan)[raw.values]).astype(np.float32), []
    if values is not None and not integral:
        decimal = next(name for name, value in zip(raw.names, values.tolist(), strict=True) if value != int(value))
        raise DataError(f"{role} holds the decimal {decimal}; classes must be whole numbers or text.")
    if len(raw.names) > _MOST_CLASSES:
        raise DataError(
            f"{role} has {len(raw.names):,} different values; classes are wanted, at most {_MOST_CLASSES:,}."
        )
    if values is None or not integral:
        return raw.values.astype(np.int64), list(raw.names)
    distinct, rank = np.unique(values, return_inverse=True)
    codes = np.append(rank, -1)[raw.values].astype(np.int64)
    names = [str(int(value)) for value in distinct.tolist()]
    if names and names[0] == "-1":
        codes, names = np.maximum(codes - 1, -1), names[1:]
    counted = names == [str(k) for k in range(len(names))]
    return codes, [] if counted else names
