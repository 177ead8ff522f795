"""Recipes for history: names, parts, orders, and the steps towards exact training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trisect.errors import ConfigError, LayoutError
from trisect.layout import Layout
from trisect.layout.history import PRESETS, History, coarser


def recipe(history: Any) -> History | None:
    return Layout(chunks=2, history=history).recipe


def test_recipes_by_name_and_by_parts() -> None:
    assert recipe("exact") is None
    assert recipe("default") == History()
    paper = recipe("gnnpipe")
    assert paper is not None
    assert (paper.start, paper.period, paper.shuffle, paper.scale) == ("zero", 23, True, 2.0)
    assert recipe({"preset": "gnnpipe", "period": 5}) == History(start="zero", period=5, blend=0.0, scale=2.0, guard=0)
    assert recipe({"scale": 2.0}) == History(scale=2.0) != History()
    assert recipe(History(period=3).parts()) == recipe(History(period=3)) == History(period=3)
    # one chunk reads nothing that is stale
    assert Layout(history="gnnpipe").recipe is None


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ("gnnpip", "must be one of default, exact, gnnpipe, steps; did you mean 'gnnpipe'"),
        ({"perod": 3}, "did you mean layout.history.period"),
        ({"preset": "exact", "period": 3}, "exact and has a period"),
    ],
)
def test_what_is_no_recipe_is_refused(history: object, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        recipe(history)


def test_a_recipe_is_told_in_few_words() -> None:
    assert History().short() == "default"
    assert PRESETS["gnnpipe"].short() == "gnnpipe"
    assert History(period=3).short() == {"period": 3}
    assert replace(PRESETS["gnnpipe"], scale=1.0).short() == {"preset": "gnnpipe", "scale": 1.0}
    with pytest.raises(ConfigError, match=r"layout\.history\.period is 0, but must be at least 1\."):
        History(period=0)


def test_the_order_is_drawn_anew_in_each_epoch() -> None:
    shuffled = [History().order(8, seed=1, epoch=epoch) for epoch in range(1, 6)]
    assert all(sorted(order) == list(range(8)) for order in shuffled)
    assert len({tuple(order) for order in shuffled}) > 1
    assert History().order(8, 1, 3) == shuffled[2]
    assert History().order(8, 2, 3) != shuffled[2]
    assert History(shuffle=False).order(8, 1, 3) == list(range(8))


def test_when_history_is_exact_kept_and_refreshed() -> None:
    fixed = History(period=4, refresh=6)
    assert [epoch for epoch in range(1, 10) if fixed.is_exact(epoch)] == [1]
    assert [epoch for epoch in range(1, 10) if fixed.is_exact(epoch, first=5)] == [5]
    assert [epoch for epoch in range(1, 10) if fixed.keeps(epoch)] == [1, 4, 8]
    assert [epoch for epoch in range(1, 10) if fixed.refreshes(epoch)] == [6]
    empty = History(start="zero", period=4)
    assert not empty.is_exact(1)
    assert [epoch for epoch in range(1, 10) if empty.keeps(epoch)] == [4, 8]
    assert all(History().keeps(epoch) for epoch in range(1, 5))


def test_each_level_is_stricter_and_the_last_is_exact() -> None:
    paper = History(start="zero", period=23, scale=2.0)
    assert paper.tightened(0, 32)[:2] == (paper, 32)
    again = History(start="exact", period=1, blend=0.0, scale=2.0)
    assert [paper.tightened(level, 32)[:2] for level in (1, 2, 3, 4)] == [(again, 32), (again, 8), (None, 1), (None, 1)]
    assert [paper.tightened(level, 3)[:2] for level in (1, 2)] == [(again, 3), (None, 1)]
    assert coarser(9) == 3
