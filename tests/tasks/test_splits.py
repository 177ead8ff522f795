from __future__ import annotations

import pytest
import torch

from trisect.errors import ConfigError, DataError
from trisect.tasks.splits import notes_on_steps, refuse_empty, split_steps, split_vertices


@pytest.mark.parametrize(
    ("steps", "shares", "sizes"),
    [
        (88, (62, 9, 17), (62, 9, 17)),
        (137, (0.7, 0.1, 0.2), (95, 14, 28)),
        (136, (0.7, 0.1, 0.2), (95, 13, 28)),
        (10, (0.5, 0.0, 0.5), (5, 0, 5)),
        (5, (1, 1, 1), (1, 1, 1)),
    ],
)
def test_steps_are_split_in_order(steps: int, shares: tuple[float, ...], sizes: tuple[int, ...]) -> None:
    runs = split_steps(steps, shares)
    assert tuple(len(run) for run in runs.values()) == sizes
    assert runs["train"].start == 0
    assert runs["train"].stop == runs["val"].start
    assert runs["val"].stop == runs["test"].start


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.5, 0.2, 0.2), (60, 20, 20), (-1, 2, 3), (True, 1, 1)])
def test_bad_shares_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=r"task\.split"):
        split_steps(50, shares)


def test_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(DataError, match="no step to train on"):
        split_steps(1, (0.7, 0.1, 0.2))


def test_fractions_count_steps_that_have_targets() -> None:
    targets = [1] * 79 + [0] * 12 + [1] * 23  # the silent weeks would be all of val
    plain = split_steps(114, (0.7, 0.1, 0.2))
    assert sum(targets[step] for step in plain["val"]) == 0
    runs = split_steps(114, (0.7, 0.1, 0.2), targets)
    assert [sum(targets[step] for step in run) for run in runs.values()] == [71, 10, 21]
    assert [(run.start, run.stop) for run in runs.values()] == [(0, 71), (71, 93), (93, 114)]
    assert split_steps(114, (0.7, 0.1, 0.2), [1] * 114) == plain
    assert split_steps(114, (79, 12, 23), targets)["val"] == range(79, 91), "whole counts are the user's"


@pytest.mark.parametrize(
    ("targets", "shares", "stops"),
    [
        ([0, 1, 1, 0], (1.0, 0.0, 0.0), [4, 4, 4]),
        ([0, 1, 1, 0], (0.5, 0.5, 0.0), [2, 4, 4]),
        ([1, 0, 0, 1], (0.5, 0.0, 0.5), [3, 3, 4]),
    ],
)
def test_edges_of_fractions(targets: list[int], shares: tuple[float, ...], stops: list[int]) -> None:
    assert [run.stop for run in split_steps(4, shares, targets).values()] == stops


def test_notes_say_what_is_empty() -> None:
    targets = [3] * 8 + [0, 0]
    runs = split_steps(10, (8, 1, 1), targets)
    val, test = notes_on_steps(runs, targets, (8, 1, 1), "event", shift=1)
    assert val.startswith("the val split has nothing to measure: steps 9 to 9 have no event; use a longer period")
    assert "test split" in test
    few = split_steps(3, (0.7, 0.1, 0.2), [1] * 3)
    assert [len(few[name]) for name in ("train", "val", "test")] == [1, 1, 1], "each share has a step of its own"
    few = split_steps(2, (0.7, 0.1, 0.2), [1] * 2)
    (note,) = notes_on_steps(few, [1] * 2, (0.7, 0.1, 0.2), "event")
    assert "the val split has nothing to measure: it has no step; use a shorter period" in note
    gaps = [1, 0] * 20
    (note,) = notes_on_steps(split_steps(40, (0.7, 0.1, 0.2), gaps), gaps, (0.7, 0.1, 0.2), "event")
    assert "20 of 40 steps have no event to predict" in note
    assert notes_on_steps(split_steps(40, (0.7, 0.1, 0.2)), [1] * 40, (0.7, 0.1, 0.2), "event") == ()


def test_random_split_covers_the_labelled_and_follows_the_ids() -> None:
    labelled = torch.arange(2000) % 5 != 0
    masks = split_vertices({}, 2000, (0.6, 0.2, 0.2), labelled, torch.arange(2000))
    assert torch.equal(masks["train"].int() + masks["val"].int() + masks["test"].int(), labelled.int())
    assert abs(int(masks["train"].sum()) / 1600 - 0.6) < 0.05
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(0))
    moved = split_vertices({}, 2000, (0.6, 0.2, 0.2), labelled[order], order)
    assert torch.equal(moved["val"], masks["val"][order])


def test_given_masks_are_checked() -> None:
    everyone = torch.ones(4, dtype=torch.bool)
    masks = split_vertices({"train": everyone}, 4, (0.6, 0.2, 0.2), everyone, torch.arange(4))
    assert masks["train"].all()
    assert not masks["test"].any()
    with pytest.raises(DataError, match="has 3 entries"):
        split_vertices({"train": everyone[:3]}, 4, (0.6, 0.2, 0.2), everyone, torch.arange(4))
    with pytest.raises(DataError, match="'valid' is none of"):
        split_vertices({"train": everyone, "valid": everyone}, 4, (0.6, 0.2, 0.2), everyone, torch.arange(4))


def test_an_empty_train_split_is_refused() -> None:
    refuse_empty({"train": 1, "val": 0, "test": 0}, "vertex")
    with pytest.raises(DataError, match="train split selects no vertex"):
        refuse_empty({"train": 0, "val": 1, "test": 1}, "vertex")
