"""Arrow arrays to numbers and times, with masks of what is missing and of what cannot be read. No loop over rows.

Everything that fits is cast at once; only a batch that does not fit is cast in parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trisect.data.records import Array

NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
_INFINITE = r"(?i)^[-+]?inf(inity)?$"
_DATE = r"^\d{4}-\d{2}-\d{2}"
_FINER = r"(\.\d{6})\d+"  # what microseconds do not hold
_ZONED = r":.*([Zz]|[-+]\d{2}(:?\d{2})?)$"
ABSENT = ("na", "n/a", "nan", "null", "none")
_ABSENT = f"(?i)^({'|'.join(ABSENT)})?$"


class CastError(Exception):
    """A column is of a type that cannot become what is wanted of it; the text says which."""


def as_text(values: Any) -> Any:
    """Cast an Arrow array to strings."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        # cast before decoding, which not every type of text can do
        values = pa.DictionaryArray.from_arrays(values.indices, values.dictionary.cast(pa.string())).dictionary_decode()
    try:
        return values if values.type == pa.string() else values.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CastError(f"is of the type {values.type}") from error


def is_text(values: Any) -> bool:
    """Tell whether an Arrow array holds text, plain or as a dictionary."""
    import pyarrow as pa

    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    views = (getattr(pa.types, "is_string_view", None),)
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or any(view is not None and view(kind) for view in views)
    )


def blank(values: Any) -> Array | None:
    """Tell which texts are null or only spaces: bool [rows], or None where none is."""
    import pyarrow.compute as pc

    mask: Array = pc.equal(pc.utf8_trim_whitespace(values), "").fill_null(True).to_numpy(zero_copy_only=False)
    return mask if mask.any() else None


def numbers(values: Any) -> tuple[Array, Array | None, Array | None]:
    """float64 [rows] (NaN where there is none), and masks (or None) of the missing and of the unreadable."""
    import pyarrow as pa

    if isinstance(values, np.ndarray):
        return _finite(values.astype(np.float64), None)
    if not is_text(values):
        kind = values.type
        if pa.types.is_dictionary(kind):
            values = values.dictionary_decode()
        try:
            if pa.types.is_boolean(values.type):
                values = values.cast(pa.int8())
            return _finite(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), None)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise CastError(f"is of the type {kind}") from error
    text = as_text(values)
    try:
        return _finite(text.cast(pa.float64()).to_numpy(zero_copy_only=False), None)
    except pa.ArrowInvalid:
        read, bad = _where_possible(*_trimmed(text, NUMBER), pa.float64())
    return _finite(read.to_numpy(zero_copy_only=False), bad)


def _finite(values: Array, bad: Array | None) -> tuple[Array, Array | None, Array | None]:
    finite = np.isfinite(values)
    if bad is None and finite.all():
        return values, None, None
    infinite = np.isinf(values)
    bad = infinite if bad is None else bad | infinite
    absent = ~finite & ~bad
    return values, absent if absent.any() else None, bad if bad.any() else None


def timestamps(values: Any, expected: str | None) -> tuple[Array, str, Array | None, Array | None]:
    """int64 or float64 [rows] (0 where there is none), the kind (`int`, `float`, or `iso` for microseconds), and masks
    of the missing and the unreadable (or None).

    Args:
        expected: the kind of the batches before.
    """
    import pyarrow as pa

    kind = values.type
    if is_text(values):
        return _read_times(as_text(values), expected)
    try:
        if pa.types.is_integer(kind):
            read, name = values.cast(pa.int64()), "int"
        elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            read, name = values.cast(pa.float64(), safe=False), "float"
        else:
            zone = getattr(kind, "tz", None)
            read, name = values.cast(pa.timestamp("us", tz=zone), safe=False).cast(pa.int64()), "iso"
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CastError(f"is of the type {kind}") from error
    return (*_filled(read, name), None)


def _filled(read: Any, name: str) -> tuple[Array, str, Array | None]:
    if not read.null_count:
        return read.to_numpy(), name, None
    return read.fill_null(0).to_numpy(zero_copy_only=False), name, read.is_null().to_numpy(zero_copy_only=False)


def _read_times(text: Any, expected: str | None) -> tuple[Array, str, Array | None, Array | None]:
    """Times from text, whole numbers first, then decimals, then dates without and with a zone."""
    import pyarrow as pa

    zoned = pa.timestamp("us", tz="UTC")
    kinds = [(pa.int64(), "int"), (pa.float64(), "float"), (pa.timestamp("us"), "iso"), (zoned, "iso")]
    if expected == "iso":
        kinds = [*kinds[2:], *kinds[:2]]
    for kind, name in kinds:
        try:
            read = text.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
        return (*_filled(read.cast(pa.int64()) if name == "iso" else read, name), None)
    return _read_mixed_times(text, expected)


def _read_mixed_times(text: Any, expected: str | None) -> tuple[Array, str, Array | None, Array | None]:
    """Do the same for a batch of which some cannot be read: the kind is that of the batches before, or of the most."""
    import pyarrow as pa
    import pyarrow.compute as pc

    as_timestamps, as_numbers = _trimmed(text, _DATE), _trimmed(text, NUMBER)
    iso = expected == "iso" if expected is not None else int(as_timestamps[1].sum()) < int(as_numbers[1].sum())
    absent = as_timestamps[0].is_null().to_numpy(zero_copy_only=False) & ~as_timestamps[1]
    if iso:
        texts, bad = as_timestamps
        texts = pc.replace_substring_regex(texts, _FINER, r"\1")
        zoned = pc.match_substring_regex(texts, _ZONED).fill_null(False).to_numpy(zero_copy_only=False)
        read = np.zeros(len(text), np.int64)
        for rows, kind in ((~zoned, pa.timestamp("us")), (zoned, pa.timestamp("us", tz="UTC"))):
            part, failed = _where_possible(texts.filter(pa.array(rows)), bad[rows], kind)
            read[rows] = part.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            bad[rows] = failed
        return read, "iso", absent if absent.any() else None, bad if bad.any() else None
    texts, bad = as_numbers
    try:
        part, name = texts.cast(pa.int64()), "int"
    except pa.ArrowInvalid:
        (part, bad), name = _where_possible(texts, bad, pa.float64()), "float"
    read = part.fill_null(0).to_numpy(zero_copy_only=False)
    return read, name, absent if absent.any() else None, bad if bad.any() else None


def _trimmed(text: Any, pattern: str) -> tuple[Any, Array]:
    """Give the texts without spaces around them, null where missing or not of the pattern, and a mask of the latter."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.utf8_trim_whitespace(text)
    absent = pc.match_substring_regex(text, _ABSENT).fill_null(True)
    fits = pc.or_(pc.match_substring_regex(text, pattern), pc.match_substring_regex(text, _INFINITE)).fill_null(False)
    bad = pc.invert(pc.or_(absent, fits)).to_numpy(zero_copy_only=False).copy()
    return pc.if_else(fits, text, pa.scalar(None, pa.string())), bad


def _where_possible(text: Any, bad: Array, kind: Any) -> tuple[Any, Array]:
    """Cast texts to a type, null where that fails; a part that fails is halved, down to single texts."""
    import pyarrow as pa

    parts: list[tuple[int, Any]] = []
    waiting = [(0, len(text))]
    bad = bad.copy()
    while waiting:
        start, stop = waiting.pop()
        try:
            parts.append((start, text[start:stop].cast(kind)))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            if stop - start == 1:
                bad[start] = True
                parts.append((start, pa.nulls(1, kind)))
            else:
                middle = (start + stop) // 2
                waiting += [(start, middle), (middle, stop)]
    parts.sort(key=lambda part: part[0])
    return pa.concat_arrays([part for _, part in parts] or [pa.nulls(0, kind)]), bad


def kind_of(values: Any) -> str | None:
    """Tell whether a column holds numbers, dates or categories, by its first batch; None where all are missing.

    Text counts as numbers where at least nine of ten are: the others are mistakes, which the reader reports.
    """
    import pyarrow as pa

    if isinstance(values, np.ndarray):
        return "number"
    if pa.types.is_dictionary(values.type):
        return "category"
    if not is_text(values):
        if values.null_count == len(values):
            return None
        return "date" if pa.types.is_temporal(values.type) else "number"
    text, other = _trimmed(as_text(values), NUMBER)
    count = len(text) - text.null_count
    if count + int(other.sum()) == 0:
        return None
    if count >= 9 * int(other.sum()):
        return "number"
    dates, rest = _trimmed(as_text(values), _DATE)
    return "date" if len(dates) - dates.null_count >= 9 * int(rest.sum()) else "category"
