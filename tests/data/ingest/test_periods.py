from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from trisect.data.ingest.periods import numbers_of, offsets_of, parse_period, steps_of
from trisect.errors import DataError


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("1d", "s", 86400),
        ("12h", "s", 43200),
        ("30min", "ms", 1_800_000),
        ("1w", "s", 604800),
        ("7", "s", 7),
        (1200, "s", 1200),
        (0.5, "s", 0.5),
        ("1.5h", "s", 5400),
        ("1d", "us", 86_400_000_000),
    ],
)
def test_parse(text: str | float, unit: str, value: float) -> None:
    assert parse_period(text, unit) == value


@pytest.mark.parametrize("bad", ["", "1 fortnight", "d", "-1d", 0, -3, float("nan"), float("inf"), True])
def test_refused(bad: str | float) -> None:
    with pytest.raises(DataError, match="period"):
        parse_period(bad)


def test_steps_count_from_the_first_event() -> None:
    time = np.array([100, 109, 110, 135], dtype=np.int16)
    assert steps_of(time, 10).tolist() == [0, 0, 1, 3]
    assert steps_of(time.astype(np.float64), 10).tolist() == [0, 0, 1, 3]
    assert steps_of(time, "distinct").tolist() == [0, 1, 2, 3]
    assert offsets_of(steps_of(time, 10)).tolist() == [0, 2, 3, 3, 4], "an empty step stays a step"


def test_large_times_are_exact() -> None:
    nanoseconds = np.array([1_700_000_000_000_000_000, 1_700_000_000_000_000_009, 1_700_000_000_000_000_010])
    assert steps_of(nanoseconds, 10).tolist() == [0, 0, 1]


def test_absurd_period_is_refused() -> None:
    with pytest.raises(DataError, match="longer period"):
        steps_of(np.array([0, 10**12]), 1)


@pytest.mark.parametrize("dated", [True, False])
@pytest.mark.parametrize("unit", ["M", "Y"])
def test_periods_without_a_fixed_length_are_refused(unit: Literal["M", "Y"], dated: bool) -> None:
    time = np.array([0, 40 * 86400], "datetime64[s]" if dated else np.int64)
    with pytest.raises(DataError, match="no fixed length; give days"):
        numbers_of(time, np.timedelta64(1, unit))
    times, in_unit, length = numbers_of(time, np.timedelta64(30, "D"))
    assert steps_of(times, length, in_unit).tolist() == [0, 1]


@pytest.mark.parametrize("bad", [np.timedelta64("NaT"), float("nan"), float("inf"), 0])
def test_periods_of_dates_are_checked_too(bad: float) -> None:
    with pytest.raises(DataError, match="period"):
        numbers_of(np.array([0, 9], "datetime64[s]"), bad)


def test_times_are_numbers_or_dates() -> None:
    for time in (np.array([True, False]), np.array(["a"])):
        with pytest.raises(DataError, match=r"time holds .*give numbers,"):
            numbers_of(time, 1)
