"""Columns of a table gathered batch by batch: ids to numbers, times, weights. No loop over rows.

A column first reads a batch (`read`), which gives the values and the flaws that it finds in them; what the flaws of all
columns leave is then kept (`keep`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trisect.data.ingest.casts import CastError, as_text, numbers, timestamps
from trisect.data.ingest.flaws import Flaw
from trisect.data.records import Array, Names, TextNames
from trisect.errors import DataError

_COMPACT_EVERY = 32


class Ids:
    """Ids of several columns over one growing dictionary: text or whole numbers → codes, ranked at the end.

    Vertices are numbered in ascending order of their ids (numeric order where all are whole numbers), so that the
    result does not depend on the order of the rows, nor on the reader.
    """

    def __init__(self) -> None:
        self._dictionary: Any = None
        self._pending: list[tuple[list[Array], int, Any]] = []
        self._codes: dict[str, list[Array]] = {}

    def read(self, title: str, values: Any) -> tuple[Any, list[Flaw]]:
        """Read a batch of a column as a dictionary array; an id that is absent or blank is a flaw."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if isinstance(values, np.ndarray):
            values = pa.array(values)
        kind = values.type
        if pa.types.is_floating(kind):  # whole numbers of which some are missing, as pandas has them
            values = _integers_or_text(values)
        absent = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        if pa.types.is_integer(values.type):
            encoded = values.dictionary_encode()
            names = encoded.dictionary.cast(pa.string())
        else:
            try:
                encoded = as_text(values).dictionary_encode()
            except CastError as error:
                raise DataError(f"{title} {error}; give text or whole numbers.") from error
            names = pc.utf8_trim_whitespace(encoded.dictionary)
            empty = pc.index(names, "").as_py()
            if empty >= 0:
                indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
                hollow = indices == empty
                absent = hollow if absent is None else absent | hollow
        result = pa.DictionaryArray.from_arrays(encoded.indices, names)
        return result, [] if absent is None else [Flaw(f"{title} is missing", absent)]

    def keep(self, column: str, values: Any, rows: Array | None = None) -> None:
        """Add the rows of a batch that `read` gave to a column."""
        import pyarrow as pa

        if rows is not None:
            # encoded anew: an id of dropped rows alone must not become a vertex
            values = values.filter(pa.array(rows)).dictionary_decode().dictionary_encode()
        part = self._codes.setdefault(column, [])
        part.append(np.zeros(0, np.int32))
        self._pending.append((part, len(part) - 1, values))
        if len(self._pending) >= _COMPACT_EVERY:
            self._compact()

    def _compact(self) -> None:
        """Codes of the waiting batches in the common dictionary, which only grows: earlier codes stay right."""
        import pyarrow as pa

        chunks = [chunk for _, _, chunk in self._pending]
        if not chunks:
            return
        if self._dictionary is not None:
            base = pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), self._dictionary)
            chunks = [base, *chunks]
        unified = pa.chunked_array(chunks).unify_dictionaries()
        parts = unified.chunks[len(chunks) - len(self._pending) :]
        self._dictionary = parts[-1].dictionary
        for (part, position, _), codes in zip(self._pending, parts, strict=True):
            part[position] = codes.indices.to_numpy()
        self._pending = []

    def finish(self) -> tuple[dict[str, Array], Names, int]:
        """Give each column's numbers, the names in ascending order, and how many there are."""
        import pyarrow as pa
        import pyarrow.compute as pc

        self._compact()
        dictionary = pa.array([], pa.string()) if self._dictionary is None else self._dictionary
        integers = parse_integers(dictionary)
        if integers is not None:
            order = np.argsort(integers, kind="stable")
            names: Names = integers[order]
        else:
            order = pc.array_sort_indices(dictionary).to_numpy().astype(np.int64)
            names = text_names(dictionary.take(pa.array(order)))
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        columns = {}
        for column, codes in self._codes.items():
            columns[column] = np.empty(sum(map(len, codes)), np.int32)
            start = 0
            for part in codes:
                np.take(rank, part, out=columns[column][start : start + len(part)])
                start += len(part)
            codes.clear()
        return columns, names, len(order)


def _integers_or_text(values: Any) -> Any:
    """Cast floats to integers where all are whole numbers, to text otherwise; NaN is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        return values.cast(pa.string())


def parse_integers(text: Any) -> Array | None:
    """Cast strings to int64 if all are integers in plain notation (7, not 07 or 7.0); None if they are not."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        values = text.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    if not pc.all(pc.equal(values.cast(pa.string()), text)).as_py() and len(text):
        return None
    result: Array = values.to_numpy()
    return result


def text_names(text: Any) -> TextNames:
    """Give the bytes of a pyarrow array of strings, without a loop."""
    import pyarrow as pa

    large = text.cast(pa.large_string())
    if isinstance(large, pa.ChunkedArray):
        large = large.combine_chunks()
    _, offsets, data = large.buffers()
    bounds = np.frombuffer(offsets, np.int64)[large.offset : large.offset + len(large) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return TextNames(bounds - bounds[0], content[bounds[0] : bounds[-1]])


class Times:
    """A column of times: whole numbers, decimals, or ISO dates (which become microseconds)."""

    def __init__(self, column: str) -> None:
        self._title = f"time {column!r}"
        self._kind: str | None = None  # "int", "float", "iso"
        self._parts: list[Array] = []

    @property
    def are_dates(self) -> bool:
        """Tell whether the times were ISO dates, and so are microseconds."""
        return self._kind == "iso"

    def read(self, values: Any) -> tuple[Array, list[Flaw]]:
        """Read a batch as int64 or float64; a time that is missing, unreadable or of another kind is a flaw."""
        if isinstance(values, np.ndarray):
            part, kind, absent, bad = values, "int" if values.dtype.kind == "i" else "float", None, None
        else:
            try:
                part, kind, absent, bad = timestamps(values, self._kind)
            except CastError as error:
                raise DataError(f"{self._title} {error}; give numbers or dates such as 2024-05-01T12:00:00.") from error
        flaws = []
        if absent is not None:
            flaws.append(Flaw(f"{self._title} is missing", absent))
        if bad is not None:
            flaws.append(Flaw(f"{self._title} is no number and no date such as 2024-05-01T12:00:00", bad))
        if part.dtype.kind == "f":
            finite = np.isfinite(part)
            if not finite.all():
                flaws.append(Flaw(f"{self._title} is not finite", ~finite))
        if self._kind is not None and (kind == "iso") != (self._kind == "iso"):
            flaws.append(Flaw(f"{self._title} changes between numbers and dates", np.ones(len(part), bool)))
        elif self._kind is None or (self._kind == "int" and kind == "float"):
            self._kind = kind
        return part, flaws

    def keep(self, values: Array, rows: Array | None = None) -> None:
        """Add the rows of a batch that `read` gave."""
        self._parts.append(values if rows is None else values[rows])

    def finish(self) -> Array:
        """Give all times: int64, or float64 where one of them was a decimal."""
        return joined(self._parts, np.float64 if self._kind == "float" else np.int64)


class Weights:
    """A column of finite numbers, kept as float32."""

    def __init__(self, column: str) -> None:
        self._title = f"weight {column!r}"
        self._parts: list[Array] = []

    def read(self, values: Any) -> tuple[Array, list[Flaw]]:
        """Read a batch as float32; a missing weight is 0 and a flaw."""
        try:
            part, absent, bad = numbers(values)
        except CastError as error:
            raise DataError(f"{self._title} {error}; give numbers.") from error
        flaws = []
        if absent is not None:
            flaws.append(Flaw(f"{self._title} is missing", absent, missing=True))
            part = np.where(absent, 0.0, part)
        if bad is not None:
            flaws.append(Flaw(f"{self._title} is no finite number", bad))
            part = np.where(bad, 0.0, part)
        return part.astype(np.float32), flaws

    def keep(self, values: Array, rows: Array | None = None) -> None:
        """Add the rows of a batch that `read` gave."""
        self._parts.append(values if rows is None else values[rows])

    def finish(self) -> Array:
        """Give all weights as float32 [rows]."""
        return joined(self._parts, np.float32)


def joined(parts: list[Array], kind: Any) -> Array:
    """Concatenate the parts; each is freed once it is copied, so that memory is not taken twice."""
    result = np.empty(sum(map(len, parts)), kind)
    start = 0
    parts.reverse()
    while parts:
        part = parts.pop()
        result[start : start + len(part)] = part
        start += len(part)
    return result


class IntegerIds:
    """The same as `Ids` for tables of whole numbers, without pyarrow."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Array]] = {}

    def read(self, title: str, values: Array) -> tuple[Array, list[Flaw]]:
        """Read a batch of whole numbers."""
        if values.dtype.kind != "i":
            raise DataError(f"{title} holds decimals; ids must be whole numbers or text.")
        return values, []

    def keep(self, column: str, values: Array, rows: Array | None = None) -> None:
        """Add the rows of a batch that `read` gave to a column."""
        self._parts.setdefault(column, []).append(values if rows is None else values[rows])

    def finish(self) -> tuple[dict[str, Array], Names, int]:
        """Give each column's numbers, the names in ascending order, and how many there are."""
        parts = [np.unique(part) for parts in self._parts.values() for part in parts]
        names = np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
        columns = {
            column: np.concatenate([np.searchsorted(names, part).astype(np.int32) for part in parts])
            for column, parts in self._parts.items()
        }
        return columns, names, len(names)
