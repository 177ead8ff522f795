"""Periods: the length of a step of a timeline, and dealing events to steps."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone
from typing import Any

import numpy as np

from trisect.data.records import Array
from trisect.errors import DataError

Period = int | float | str

SECONDS = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, "d": 86400, "w": 604800}
PER_SECOND: dict[str, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

_MOST_STEPS = 10_000_000


def parse_period(period: Period, unit: str = "s") -> int | float:
    """Give the period in the time column's unit: `"12h"`, `"1d"`, `"30min"`, `"1w"`, or a number that is in it already.

    >>> parse_period("12h"), parse_period("1d", "ms"), parse_period(1200)
    (43200, 86400000, 1200)
    """
    if isinstance(period, bool) or not isinstance(period, (int, float, str, np.number)):
        raise DataError(f"period is {period!r}; give a number or a text such as '1d', '12h', '30min', '1w'.")
    if isinstance(period, str):
        text = period.strip().lower()
        match = re.fullmatch(r"(-?\d{1,18}(?:\.\d{1,18})?)\s*([a-z]*)", text)
        if match is None or (match[2] and match[2] not in SECONDS):
            raise DataError(f"period is {period!r}; give a number or a text such as '1d', '12h', '30min', '1w'.")
        number = float(match[1]) if "." in match[1] else int(match[1])
        value = number * SECONDS[match[2]] * PER_SECOND[unit] if match[2] else number
    else:
        value = period
    if not 0 < value < 2**63:
        raise DataError(f"period is {period!r}; it must be greater than 0 and less than 2^63.")
    return int(value) if value == int(value) else value


def steps_of(time: Array, period: Period, unit: str = "s") -> Array:
    """Give the step of each event: floor((time - first time) / period), or the rank of its time for `"distinct"`.

    Args:
        time: numbers [events], in any order.
        period: see `parse_period`; `"distinct"` makes each distinct time a step.

    Returns:
        int64 [events], counted from 0.
    """
    if len(time) == 0:
        return np.zeros(0, np.int64)
    if period == "distinct":
        rank: Array = np.unique(time, return_inverse=True)[1]
        return rank.astype(np.int64, copy=False)
    length = parse_period(period, unit)
    start = time.min()
    if time.dtype.kind in "iu" and isinstance(length, int):
        span = int(time.max()) - int(start)
        steps = (time.astype(np.int64) - int(start)) // length
        count = span // length + 1
    else:
        with np.errstate(over="ignore"):
            places = np.floor((time - np.float64(start)) / length)
        steps = np.minimum(places, 1e18).astype(np.int64)
        count = int(steps.max()) + 1
    if count > _MOST_STEPS:
        raise DataError(
            f"period {period!r} cuts the times {start} .. {time.max()} into {count:,} steps; give a longer period "
            "(a bare number is in the unit of the time column)."
        )
    return steps


def steps_since(time: Array, events: Array, period: Period, unit: str = "s") -> Array:
    """Give the step that the times of other rows fall into, counted as for the events; before the first event negative.

    Args:
        events: the times of the events, in any order.
    """
    if period == "distinct":
        return np.searchsorted(np.unique(events), time, side="right") - 1
    length = parse_period(period, unit)
    start = events.min()
    if time.dtype.kind in "iu" and events.dtype.kind in "iu" and isinstance(length, int):
        return (time.astype(np.int64) - int(start)) // length
    return np.floor((time - np.float64(start)) / length).astype(np.int64)


def offsets_of(steps: Array, count: int | None = None) -> Array:
    """int64 [count + 1]: where each step begins among events sorted by step."""
    counts = np.bincount(steps, minlength=count or 0)
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def numbers_of(time: Any, period: Period | timedelta | np.timedelta64) -> tuple[Any, str, Period]:
    """Times as numbers, the unit that a textual period is converted to, and the period."""
    times = _times(time)
    if times.ndim != 1:
        raise DataError(f"time has the shape {list(times.shape)}; give one time an event.")
    seconds: Period
    if isinstance(period, (timedelta, np.timedelta64)):
        length = np.timedelta64(period)
        if np.datetime_data(length.dtype)[0] in ("Y", "M"):
            raise DataError(
                f"period is {length!r}, and months and years have no fixed length; give days, such as '30d'."
            )
        seconds = float(length / np.timedelta64(1, "us")) / 1e6
    else:
        seconds = period
    if times.dtype.kind == "M":
        missing = np.isnat(times)
        if missing.any():
            raise DataError(f"time[{int(missing.argmax())}] is missing (NaT); every event needs a time.")
        if not isinstance(seconds, str):
            seconds = round(parse_period(seconds) * 1_000_000_000)
        return _nanoseconds(times), "ns", seconds
    if times.dtype.kind not in "iuf":
        raise DataError(f"time holds {times.dtype} values; give numbers, datetimes, or text such as 2024-05-01T12:00Z.")
    if times.dtype.kind == "f" and not np.isfinite(times).all():
        position = int((~np.isfinite(times)).argmax())
        raise DataError(f"time[{position}] is {times[position]}; every time must be finite.")
    return times, "s", seconds


def _times(time: Any) -> Array:
    """Times as an array of numbers or datetime64; those with a zone in UTC, those without as they are."""
    if hasattr(time, "detach"):
        if getattr(time, "is_meta", False):
            raise DataError("time is a tensor on the meta device, which holds no numbers; give numbers.")
        time = time.detach().to_dense().cpu()
        if time.is_floating_point() and time.element_size() < 4:
            time = time.float()  # numpy has no bfloat16
    unit = re.match(r"datetime64\[(\w+)", str(getattr(time, "dtype", "")))
    if unit is not None:
        return np.asarray(time, dtype=f"datetime64[{unit[1]}]")  # of pandas with a zone, too: it becomes UTC
    try:
        times = np.asarray(time)
    except ValueError:  # lists of several lengths
        raise DataError("time holds lists of several lengths; give one number or date for each event.") from None
    if times.ndim != 1:
        return times
    if times.dtype.kind in "US":
        texts = [text.decode() if isinstance(text, bytes) else text for text in times.tolist()]
        return np.array([_instant(text) for text in texts], "datetime64[us]")
    if times.dtype.kind == "O" and len(times):
        return np.array([_instant(value) for value in times.tolist()], "datetime64[us]")
    return times


def _nanoseconds(times: Array) -> Array:
    """int64 nanoseconds since 1970; dates that 64 bits do not reach (before 1678, after 2261) are refused."""
    years = times.astype("datetime64[Y]").astype(np.int64) + 1970
    outside = (years < 1678) | (years > 2261)
    if outside.any():
        position = int(outside.argmax())
        raise DataError(f"time[{position}] is {times[position]}; dates must lie between 1678 and 2261.")
    return times.astype("datetime64[ns]").astype(np.int64)


def _parsed(text: str) -> datetime:
    stripped = text.strip()
    stripped = stripped[:-1] + "+00:00" if stripped[-1:] in ("Z", "z") else stripped  # Python 3.10 does not know Z
    try:
        return datetime.fromisoformat(stripped)
    except ValueError as error:
        raise DataError(f"time holds {text!r}; give numbers, or text such as 2024-05-01T12:00:00+02:00.") from error


def _instant(value: Any) -> np.datetime64:
    """Give a datetime in UTC; text in an array of objects is read as such, and None is NaT."""
    if value is None or value != value:  # the NaT of pandas is unequal to itself
        return np.datetime64("NaT", "us")
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            value = value.astimezone(timezone.utc).replace(tzinfo=None)
        return np.datetime64(value, "us")
    if isinstance(value, date):
        return np.datetime64(value, "us")
    raise DataError(f"time holds {value!r}; give numbers, datetimes, or text such as 2024-05-01T12:00:00+02:00.")
