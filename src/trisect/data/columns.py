"""Columns of a table gathered batch by batch: ids to numbers, times, weights. No loop over rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from trisect.data.records import Array, Names, TextNames
from trisect.errors import DataError

_COMPACT_EVERY = 32
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
_MOMENT = r"^\s*\d{4}-\d{2}-\d{2}"


class Ids:
    """Ids of several columns over one growing dictionary: text or whole numbers → codes, ranked at the end.

    Vertices are numbered in ascending order of their ids (numeric order where all are whole numbers), so that the
    result does not depend on the order of the rows, nor on the reader.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._dictionary: Any = None
        self._pending: list[tuple[list[Array], int, Any]] = []
        self._rows: dict[str, int] = {}
        self._codes: dict[str, list[Array]] = {}

    def add(self, column: str, values: Any) -> None:
        """Take the next batch of a column: a pyarrow array of text or whole numbers, or a numpy array of the latter."""
        import pyarrow as pa
        import pyarrow.compute as pc

        start = self._rows.get(column, 0)
        self._rows[column] = start + len(values)
        if isinstance(values, np.ndarray):
            values = pa.array(values)
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if values.null_count:
            row = start + int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
            raise DataError(f"{self._what} {column!r} is missing in row {row + 1}; every row needs one.")
        if not pa.types.is_integer(values.type):
            values = values.cast(pa.string())
        encoded = values.dictionary_encode()
        if pa.types.is_integer(values.type):
            names = encoded.dictionary.cast(pa.string())
        else:
            names = pc.utf8_trim_whitespace(encoded.dictionary)
            empty = pc.index(names, "").as_py()
            if empty >= 0:
                row = start + int(np.argmax(encoded.indices.to_numpy() == empty))
                raise DataError(f"{self._what} {column!r} is missing in row {row + 1}; every row needs one.")
        place = self._codes.setdefault(column, [])
        place.append(np.zeros(0, np.int32))
        self._pending.append((place, len(place) - 1, pa.DictionaryArray.from_arrays(encoded.indices, names)))
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
        for (place, position, _), part in zip(self._pending, parts, strict=True):
            place[position] = part.indices.to_numpy()
        self._pending = []

    def finish(self) -> tuple[dict[str, Array], Names, int]:
        """Each column's numbers, the names in ascending order, and how many there are."""
        import pyarrow as pa
        import pyarrow.compute as pc

        self._compact()
        dictionary = pa.array([], pa.string()) if self._dictionary is None else self._dictionary
        numbers = whole_numbers(dictionary)
        if numbers is not None:
            order = np.argsort(numbers, kind="stable")
            names: Names = numbers[order]
        else:
            order = pc.array_sort_indices(dictionary).to_numpy().astype(np.int64)
            names = text_names(dictionary.take(pa.array(order)))
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        columns = {}
        for column, codes in self._codes.items():
            columns[column] = np.concatenate([rank[part] for part in codes]) if codes else np.zeros(0, np.int32)
            codes.clear()
        return columns, names, len(order)


def whole_numbers(text: Any) -> Array | None:
    """int64 of a pyarrow array of strings if all are whole numbers in plain notation (7, not 07 or 7.0), else None."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        numbers = text.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    if not pc.all(pc.equal(numbers.cast(pa.string()), text)).as_py() and len(text):
        return None
    result: Array = numbers.to_numpy()
    return result


def text_names(text: Any) -> TextNames:
    """The bytes of a pyarrow array of strings, without a loop."""
    import pyarrow as pa

    large = text.cast(pa.large_string())
    if isinstance(large, pa.ChunkedArray):
        large = large.combine_chunks()
    _, offsets, data = large.buffers()
    bounds = np.frombuffer(offsets, np.int64)[large.offset : large.offset + len(large) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return TextNames(bounds - bounds[0], content[bounds[0] : bounds[-1]])


class Times:
    """A column of times: whole numbers, decimals, or ISO moments (which become microseconds)."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._kind: str | None = None  # "int", "float", "iso"
        self._parts: list[Array] = []
        self._rows = 0

    @property
    def moments(self) -> bool:
        """Whether the times were ISO moments, and so are microseconds."""
        return self._kind == "iso"

    def add(self, values: Any) -> None:
        """Take the next batch."""
        if isinstance(values, np.ndarray):
            part, kind = values, "int" if values.dtype.kind == "i" else "float"
        else:
            part, kind = self._read(values)
        if self._kind in (None, kind) or {self._kind, kind} == {"int", "float"}:
            self._kind = "float" if "float" in (self._kind, kind) else kind
        else:
            raise DataError(
                f"time {self._column!r} changes between numbers and moments at row {self._rows + 1}; use one of them."
            )
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            row = self._rows + int(np.argmin(np.isfinite(part)))
            raise DataError(f"time {self._column!r} is {part[row - self._rows]} in row {row + 1}; it must be finite.")
        self._parts.append(part)
        self._rows += len(part)

    def _read(self, values: Any) -> tuple[Array, str]:
        import pyarrow as pa

        kind = values.type
        if values.null_count:
            row = self._rows + int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
            raise DataError(f"time {self._column!r} is missing in row {row + 1}; every row needs one.")
        if pa.types.is_integer(kind):
            return values.cast(pa.int64()).to_numpy(), "int"
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return values.cast(pa.float64()).to_numpy(), "float"
        if pa.types.is_temporal(kind):
            zone = getattr(kind, "tz", None)
            return values.cast(pa.timestamp("us", tz=zone), safe=False).cast(pa.int64()).to_numpy(), "iso"
        found = _read_text(values.cast(pa.string()))
        if found is None:
            self._refuse(values.cast(pa.string()))
        return found  # type: ignore[return-value]

    def _refuse(self, values: Any) -> None:
        """Name the first row that differs from what most of the batch is."""
        import pyarrow.compute as pc

        moments = pc.match_substring_regex(values, _MOMENT).to_numpy(zero_copy_only=False)
        numbers = pc.match_substring_regex(values, _NUMBER).to_numpy(zero_copy_only=False)
        good = moments if (self._kind or ("iso" if moments.sum() > numbers.sum() else "int")) == "iso" else numbers
        row = int(np.argmin(good))
        raise DataError(
            f"time {self._column!r} is {values[row].as_py()!r} in row {self._rows + row + 1}; "
            "it must be a number or a moment such as 2024-05-01T12:00:00."
        )

    def finish(self) -> Array:
        """All times: int64, or float64 where one of them was a decimal."""
        kind = np.float64 if self._kind == "float" else np.int64
        times = np.concatenate([part.astype(kind, copy=False) for part in self._parts])
        self._parts.clear()
        return times


def _read_text(values: Any) -> tuple[Array, str] | None:
    """Times from text, whole numbers first, then decimals, then moments without and with a zone."""
    import pyarrow as pa

    zoned = pa.timestamp("us", tz="UTC")
    for kind, name in ((pa.int64(), "int"), (pa.float64(), "float"), (pa.timestamp("us"), "iso"), (zoned, "iso")):
        try:
            read = values.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
        return (read.cast(pa.int64()) if name == "iso" else read).to_numpy(), name
    return None


class Weights:
    """A column of finite numbers, kept as float32."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._parts: list[Array] = []
        self._rows = 0

    def add(self, values: Any) -> None:
        """Take the next batch."""
        numbers = values if isinstance(values, np.ndarray) else self._read(values)
        finite = np.isfinite(numbers)
        if not finite.all():
            row = int(np.argmin(finite))
            raise DataError(
                f"weight {self._column!r} is {numbers[row]} in row {self._rows + row + 1}; it must be a finite number."
            )
        self._parts.append(numbers.astype(np.float32))
        self._rows += len(numbers)

    def _read(self, values: Any) -> Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            numbers: Array = values.cast(pa.float64()).to_numpy(zero_copy_only=False)  # a missing value becomes NaN
        except pa.ArrowInvalid as error:
            good = pc.match_substring_regex(values, r"(?i)" + _NUMBER + r"|^\s*[-+]?(nan|inf|infinity)\s*$")
            row = int(np.argmin(good.to_numpy(zero_copy_only=False)))
            raise DataError(
                f"weight {self._column!r} is {values[row].as_py()!r} in row {self._rows + row + 1}; "
                "it must be a finite number."
            ) from error
        return numbers

    def finish(self) -> Array:
        """float32 [rows]."""
        weights = np.concatenate(self._parts)
        self._parts.clear()
        return weights


class WholeIds:
    """The same as `Ids` for tables of whole numbers, without pyarrow."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._parts: dict[str, list[Array]] = {}

    def add(self, column: str, values: Array) -> None:
        """Take the next batch of a column."""
        if values.dtype.kind != "i":
            raise DataError(f"{self._what} {column!r} holds decimals; ids must be whole numbers or text.")
        self._parts.setdefault(column, []).append(values)

    def finish(self) -> tuple[dict[str, Array], Names, int]:
        """Each column's numbers, the names in ascending order, and how many there are."""
        names = np.unique(np.concatenate([np.unique(part) for parts in self._parts.values() for part in parts]))
        columns = {
            column: np.concatenate([np.searchsorted(names, part).astype(np.int32) for part in parts])
            for column, parts in self._parts.items()
        }
        return columns, names, len(names)
