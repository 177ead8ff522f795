"""How columns become features: standardised numbers and dates, categories as one-hot, flags for what is missing.

The encoding is fitted once and kept with the graph (`encoding.json`), so that new data are encoded alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from trisect.data.formats.store import read_encoding
from trisect.data.ingest.attributes import KINDS, Attribute, Kind, Raw
from trisect.data.ingest.flaws import Flaws
from trisect.data.ingest.sources import open_source
from trisect.data.records import Array
from trisect.errors import DataError

OTHER = "other"
MOST_CATEGORIES = 32
_ROWS = 1 << 20
_EPOCH = date(1970, 1, 1)
_LARGEST = 1e300


@dataclass(frozen=True)
class Column:
    """How one column is encoded.

    Attributes:
        column: its name in the table.
        kind: `number`, `category` or `date`.
        mean, scale: a number x becomes (x - mean) / scale; a date is first the days since `reference`.
        reference: of dates: the day that is counted from, such as `2024-05-01`.
        categories: each has a feature of its own; one more feature is for all others.
        missing: whether a last feature says that the value is missing; a missing value is 0 everywhere else.
    """

    column: str
    kind: Kind
    mean: float = 0.0
    scale: float = 1.0
    reference: str | None = None
    categories: tuple[str, ...] = ()
    missing: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """Give the names of the features that it becomes."""
        own: tuple[str, ...] = (self.column,)
        if self.kind == "category":
            own = tuple(f"{self.column}={name}" for name in (*self.categories, OTHER))
        return (*own, f"{self.column} is missing") if self.missing else own


@dataclass(frozen=True)
class Encoding:
    """The columns of a table that became features, in this order.

    Attributes:
        statistics: of which rows means, scales and categories are.
    """

    columns: tuple[Column, ...]
    statistics: str = "all rows"

    @property
    def features(self) -> tuple[str, ...]:
        """List the names of all features."""
        return tuple(name for column in self.columns for name in column.features)

    def plain(self) -> dict[str, Any]:
        """Give the encoding as plain values for JSON."""
        return {"statistics": self.statistics, "columns": [asdict(column) for column in self.columns]}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Encoding:
        """Read an encoding from what `plain` gave."""
        try:
            columns = [Column(**{**item, "categories": tuple(item["categories"])}) for item in plain["columns"]]
            for column in columns:
                _require_sound(column)
            return cls(tuple(columns), str(plain["statistics"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the encoding cannot be read ({error}); ingest the data again.") from error

    @classmethod
    def read(cls, directory: Path | str, part: str = "vertices") -> Encoding:
        """Read the encoding of the `vertices` or the `edges` of a graph directory."""
        stored = read_encoding(directory)
        if part not in stored:
            raise DataError(f"{directory} keeps no encoding of {part}; it was not made from columns of a table.")
        return cls.of(stored[part])


def _require_sound(column: Column) -> None:
    """Raise a ValueError where a column that was read from a file has values that make no sense."""
    if column.kind not in KINDS:
        raise ValueError(f"kind {column.kind!r}")
    if not all(isinstance(text, str) for text in (column.column, *column.categories)):
        raise ValueError("a name that is no text")
    for value in (column.mean, column.scale):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _LARGEST:
            raise ValueError(f"mean or scale {str(value)[:40]!r}")
    if column.scale == 0 or not isinstance(column.missing, bool):
        raise ValueError(f"scale {column.scale!r}, missing {column.missing!r}")
    if column.reference is not None:
        date.fromisoformat(column.reference)


def fit(
    raws: Sequence[Raw],
    rows: Array | None = None,
    *,
    statistics: str = "all rows",
    most: int = MOST_CATEGORIES,
    flag: bool = False,
) -> Encoding:
    """Fit the encoding of columns.

    Args:
        rows: the rows that count, bool [rows]; None: all.
        statistics: what these rows are, in words.
        most: at most so many categories of a column, the most frequent ones, have a feature of their own.
        flag: whether every column has a feature that says whether its value is missing, though none is here.
    """
    if most < 1:
        raise DataError(f"categories is {most}; it must be at least 1.")
    return Encoding(tuple(_fit(raw, rows, most, flag) for raw in raws), statistics)


def _fit(raw: Raw, rows: Array | None, most: int, flag: bool) -> Column:
    if raw.kind == "category":
        chosen = raw.values if rows is None else raw.values[rows]
        counts = np.bincount(chosen[chosen >= 0], minlength=len(raw.names))
        frequent = np.argsort(-counts, kind="stable")[:most]
        names = tuple(raw.names[k] for k in np.sort(frequent[counts[frequent] > 0]))
        return Column(raw.column, raw.kind, categories=names, missing=flag or bool((raw.values < 0).any()))
    count, total, missing = 0, 0.0, flag
    for values, _ in _parts(raw.values, rows):
        count += len(values)
        total += float(values.sum(dtype=np.float64))
    mean = total / count if count else 0.0
    spread = sum(float(((values.astype(np.float64) - mean) ** 2).sum()) for values, _ in _parts(raw.values, rows))
    scale = (spread / count) ** 0.5 if count else 1.0
    missing = missing or any(hollow for _, hollow in _parts(raw.values, None))
    # a column that does not vary says nothing; a scale of rounding errors would blow it up
    scale = scale if scale > 1e-9 * max(1.0, abs(mean)) else 1.0
    if raw.kind == "number":
        return Column(raw.column, raw.kind, mean, scale, missing=missing)
    reference = _EPOCH + timedelta(days=int(np.floor(mean)))
    return Column(raw.column, raw.kind, mean - int(np.floor(mean)), scale, reference.isoformat(), missing=missing)


def _parts(values: Array, rows: Array | None) -> Any:
    """Stretches of the rows that count, without what is missing, and whether something was."""
    for start in range(0, len(values), _ROWS):
        part = values[start : start + _ROWS]
        if rows is not None:
            part = part[rows[start : start + _ROWS]]
        there = ~np.isnan(part)
        yield part[there], not bool(there.all())


def apply(encoding: Encoding, raws: Sequence[Raw], order: Array | None = None) -> Array:
    """float32 [rows, features]; `order` (positions) takes the rows in another order."""
    count = len(raws[0]) if order is None else len(order)
    x = np.zeros((count, len(encoding.features)), np.float32)
    first = 0
    for column, raw in zip(encoding.columns, raws, strict=True):
        width = len(column.features)
        _apply(column, raw, x[:, first : first + width], order)
        first += width
    return x


def _apply(column: Column, raw: Raw, x: Array, order: Array | None) -> None:
    slots = np.zeros(0, np.int64)
    if column.kind == "category":
        position = {name: k for k, name in enumerate(column.categories)}
        slots = np.array([position.get(name, len(position)) for name in raw.names], np.int64)
    for start in range(0, len(x), _ROWS):
        part = slice(start, start + _ROWS)
        values = raw.values[part] if order is None else raw.values[order[part]]
        target = x[part]
        if column.kind == "category":
            absent = values < 0
            there = np.flatnonzero(~absent)
            target[there, slots[values[there]]] = 1.0
        else:
            absent = np.isnan(values)
            shift = column.mean
            if column.reference is not None:
                shift += (date.fromisoformat(column.reference) - _EPOCH).days
            target[:, 0] = np.where(absent, 0.0, (values.astype(np.float64) - shift) / column.scale)
        if column.missing:
            target[:, -1] = absent


def missing_row(encoding: Encoding) -> Array:
    """float32 [features]: a row of which everything is missing."""
    return np.array(
        [
            column.missing and k == len(column.features) - 1
            for column in encoding.columns
            for k in range(len(column.features))
        ],
        np.float32,
    )


def encode(table: Any, encoding: Encoding) -> Array:
    """New data encoded alike: float32 [rows, features], the rows in the table's order.

    Args:
        table: a path (CSV, Parquet, …), a table of pandas, polars or Arrow, or a mapping of names to arrays.
    """
    names = [column.column for column in encoding.columns]
    if not names:
        raise DataError("The encoding has no columns, and so nothing can be encoded by it; ingest the table again.")
    source = open_source(table, names)
    for name in names:
        source.pick(name, "the column")
    attributes = [Attribute(column.column, column.kind) for column in encoding.columns]
    flaws = Flaws(source)
    for batch in source.batches(names):
        read = [attribute.read(values) for attribute, values in zip(attributes, batch, strict=True)]
        judged = {name: (values, flaw) for name, values, (_, flaw) in zip(names, batch, read, strict=True)}
        keep = flaws.judge(judged, len(batch[0]))
        for attribute, (values, _) in zip(attributes, read, strict=True):
            attribute.keep(values, keep)
    flaws.finish()
    return apply(encoding, [attribute.finish() for attribute in attributes])


def notes(encoding: Encoding, raws: Sequence[Raw], table: str, *, stored: bool = False) -> list[str]:
    """Return what the user should know of an encoding; `stored`: it was fitted on other data, and given."""
    lines = [f"Features of {table} are standardised with statistics of {encoding.statistics}."]
    if stored:
        lines = [
            f"Features of {table} are standardised with the statistics that the given encoding keeps; they are not of"
            f" this table, but of the data that it was fitted on: {encoding.statistics}."
        ]
    for column, raw in zip(encoding.columns, raws, strict=True):
        others = sorted(set(raw.names) - set(column.categories)) if column.kind == "category" else []
        if others and stored:
            named = ", ".join(map(str, others[:3])) + (", …" if len(others) > 3 else "")
            are, become = ("is", "becomes") if len(others) == 1 else ("are", "become")
            lines.append(
                f"Column {column.column!r} of {table}: {len(others):,} of {len(raw.names):,} categories ({named})"
                f" {are} unknown to the encoding and {become} {column.column}={OTHER}."
            )
        elif others:
            lines.append(
                f"Column {column.column!r} of {table} has {len(raw.names):,} categories; {len(column.categories)} have"
                f" a feature of their own, the others become {column.column}={OTHER}."
            )
    return lines


def notes_on_unknown(encoding: Encoding, raws: Sequence[Raw], table: str) -> list[str]:
    """What became of values that an encoding which was fitted on other rows has no feature for, a line a column."""
    lines = []
    for column, raw in zip(encoding.columns, raws, strict=True):
        if column.kind == "category":
            unknown = np.array([name not in column.categories for name in raw.names], bool)
            rows = int(np.append(unknown, False)[raw.values].sum())
            if rows:
                names = [name for name, out in zip(raw.names, unknown, strict=True) if out]
                lines.append(
                    f"{rows:,} of {len(raw):,} rows of {table} have a value of {column.column!r} without a feature of"
                    f" its own ({len(names):,} different, such as {names[0]!r}); they count as"
                    f" {column.column}={OTHER}."
                )
            missing = int((raw.values < 0).sum())
        else:
            missing = int(np.isnan(raw.values).sum())
        if missing and not column.missing:
            lines.append(
                f"{missing:,} of {len(raw):,} rows of {table} have no {column.column!r}, which was never missing in"
                " training; 0 stands for it (of a number: the mean)."
            )
    return lines
