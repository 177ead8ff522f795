"""Ticks are round and enclose the values; thinning keeps peaks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trisect.report.charts import Panel, Series, Span, bars, lines, nice_ticks, number, panels, thin

FINITE = st.floats(-1e9, 1e9).map(lambda value: round(value, 6))


@given(FINITE, FINITE)
def test_ticks_enclose_the_values(a: float, b: float):
    low, high = min(a, b), max(a, b)
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 20
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert ticks == sorted(ticks)


def test_ticks_are_round():
    assert nice_ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert nice_ticks(0, 97, 6) == [0, 20, 40, 60, 80, 100]


@given(st.lists(FINITE, min_size=1, max_size=3000))
def test_thinning_keeps_the_extremes(values: list[float]):
    points = [(float(x), y) for x, y in enumerate(values)]
    kept = thin(points, 100)
    assert len(kept) <= 102
    assert max(y for _, y in kept) == max(values)
    assert min(y for _, y in kept) == min(values)
    assert kept == sorted(kept)


def test_nothing_to_draw():
    assert lines("x", []) == ""
    assert lines("x", [Series("a", "ca", [])]) == ""
    assert panels("x", [], {}) == ""
    assert panels("x", [Panel("a", ["rank 0"], [], [""])], {}) == ""
    assert bars([]) == '<table class="bars"></table>'


def test_spans_too_narrow_to_be_told_apart_are_one():
    narrow = [Span(0, k * 1e-6, 1e-6, "ca", f"a{k}") for k in range(50)]
    wide = [Span(0, 0.5, 0.5, "cb", "b"), Span(1, 0.0, 0.4, "ca", "c"), Span(1, 0.4, 0.6, "ca", "d")]
    page = panels("x", [Panel("p", ["r0", "r1"], [*narrow, *wide], ["", ""])], {})
    assert page.count("<rect") == 4


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.25, "0.25"), (12345.6, "12,346"), (1e-7, "1.00e-07")])
def test_numbers(value: float, text: str):
    assert number(value) == text
