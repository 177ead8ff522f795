from __future__ import annotations

import pytest
import torch

from trisect.errors import ConfigError, DataError
from trisect.train.tasks.splits import refuse_empty, split_steps, split_vertices


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
    masks = split_vertices({"train": everyone}, 4, (), everyone, torch.arange(4))
    assert masks["train"].all()
    assert not masks["test"].any()
    with pytest.raises(DataError, match="has 3 entries"):
        split_vertices({"train": everyone[:3]}, 4, (), everyone, torch.arange(4))
    with pytest.raises(DataError, match="'valid' is none of"):
        split_vertices({"train": everyone, "valid": everyone}, 4, (), everyone, torch.arange(4))


def test_an_empty_train_split_is_refused() -> None:
    refuse_empty({"train": 1, "val": 0, "test": 0}, "vertex")
    with pytest.raises(DataError, match="train split selects no vertex"):
        refuse_empty({"train": 0, "val": 1, "test": 1}, "vertex")
