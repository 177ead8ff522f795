"""The picture of an epoch: what is planned and measured, what is left out, and the share of waiting."""

from __future__ import annotations

from typing import Any

import pytest

from trisect.report.picture import Done, describe, picture, waiting
from trisect.schedule.action import Action

HALVES = ["prepare 0", "combine 0", "temporal 0", "output 1"]
LAYOUT = {"time": 2, "layer": 1, "vertex": 1, "chunks": 2, "blocks": 1}


def timed(start: float, epoch: int, *pairs: tuple[str, float]) -> list[dict[str, Any]]:
    """Events one after the other."""
    found = []
    for name, seconds in pairs:
        found.append({"name": name, "start": start, "seconds": seconds, "epoch": epoch})
        start += seconds
    return found


def two_ranks(epoch: int = 1, start: float = 100.0) -> list[list[dict[str, Any]]]:
    """Rank 1 waits for the state of each chunk, and rank 0 at the end."""
    first = timed(start, epoch, ("0F0.2-2@0", 1.0), ("0PcF0.2@0>1", 0.0), ("0F1.2-2@0", 1.0), ("0PcF1.2@0>1", 0.0))
    first += timed(start + 2.0, epoch, ("0G0", 1.0), ("0U0", 0.5))
    second = timed(start, epoch, ("0WcF0.2@0<0", 1.0), ("0F0.2-2@0", 1.0), ("0WcF1.2@0<0", 0.0), ("0F1.2-2@0", 1.0))
    second += timed(start + 3.0, epoch, ("0G0", 0.0), ("0U0", 0.5))
    return [first, second]


def test_planned_above_measured():
    page = picture(two_ranks(), LAYOUT, HALVES)
    assert page.index("Planned") < page.index("Measured")
    assert (
        "0WcF0.2@0&lt;0: carry is waited for from rank 0, before temporal of layer 0, chunk 0, block 0, 1,000 ms"
        in page
    )
    # each rank computes 2.5 of 3.5 seconds, in both
    assert page.count("waits 29%") == 4


def test_evaluation_is_left_out_and_the_last_common_epoch_is_shown():
    ranks = [a + b for a, b in zip(two_ranks(1), two_ranks(2, 200.0), strict=True)]
    ranks[0] += timed(300.0, 3, ("0F0.2-2@0", 1.0))
    for rank in ranks:
        rank.append({"name": "evaluation", "start": 210.0, "seconds": 500.0, "epoch": 2, "evaluation": True})
    page = picture(ranks, LAYOUT)
    assert "in epoch 2" in page
    assert "evaluation" not in page
    assert "waits 29%" in page


def test_events_of_no_whole_schedule_are_shown_as_measured_alone():
    ranks = two_ranks()
    del ranks[0][1]
    page = picture(ranks, LAYOUT)
    assert "Planned" not in page
    assert "carry" in page


@pytest.mark.parametrize("events", [[], [[]], [timed(0.0, 1, ("0F0", 1.0)), []]])
def test_nothing_to_show(events: list[list[dict[str, Any]]]):
    assert picture(events, None) == ""


def test_waiting_is_what_is_not_computed():
    rank = [Done(Action.parse("0F0"), "0F0", 0.0, 1.0), Done(Action.parse("0WbF0<1"), "0WbF0<1", 1.0, 2.0)]
    assert waiting(rank, 4.0) == 0.75
    assert waiting(rank, 0.0) == 0.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0B3.2-2@2", "backward, temporal of layer 0, chunk 3, block 2"),
        ("0PcB3.2@2>1", "gradients of carry leaves to rank 1, before temporal of layer 0, chunk 3, block 2"),
        ("0F0.1-3@0", "forward, combine of layer 0 to output of layer 1, chunk 0, block 0"),
        ("0F0.7-9@0", "forward, half 7 to half 9, chunk 0, block 0"),
        ("0G0", "reduce"),
    ],
)
def test_words(text: str, words: str):
    assert describe(Done(Action.parse(text), text, 0.0, 0.0), HALVES) == f"{text}: {words}"
