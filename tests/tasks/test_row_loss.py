"""Losses of rows against torch's own, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from trisect.config.names import LOSSES
from trisect.errors import ConfigError
from trisect.tasks.row_loss import NAMED, RowLoss, focal, make_loss

OUT = torch.linspace(-2, 2, 15, dtype=torch.float64).reshape(5, 3)
CLASSES, NUMBERS = torch.tensor([0, 2, 1, 1, 0]), torch.linspace(0, 1, 15, dtype=torch.float64).reshape(5, 3)


def test_the_names_are_those_of_the_configuration() -> None:
    assert tuple(NAMED) == LOSSES


@pytest.mark.parametrize(
    ("choice", "y", "wanted"),
    [
        ("cross_entropy", CLASSES, functional.cross_entropy(OUT, CLASSES, reduction="none")),
        (
            {"name": "cross_entropy", "label_smoothing": 0.1},
            CLASSES,
            functional.cross_entropy(OUT, CLASSES, reduction="none", label_smoothing=0.1),
        ),
        ({"name": "focal", "gamma": 0.0}, CLASSES, functional.cross_entropy(OUT, CLASSES, reduction="none")),
        ("mse", NUMBERS, functional.mse_loss(OUT, NUMBERS, reduction="none").mean(1)),
        ("l1", NUMBERS, functional.l1_loss(OUT, NUMBERS, reduction="none").mean(1)),
        (
            {"name": "huber", "delta": 0.5},
            NUMBERS,
            functional.huber_loss(OUT, NUMBERS, reduction="none", delta=0.5).mean(1),
        ),
        ("bce", NUMBERS, functional.binary_cross_entropy_with_logits(OUT, NUMBERS, reduction="none").mean(1)),
    ],
)
def test_equals_torch(choice: Any, y: Tensor, wanted: Tensor) -> None:
    loss = make_loss(choice)
    assert loss is not None
    assert torch.allclose(loss(OUT, y), wanted, rtol=1e-12, atol=0)
    loss.check(3, y)


def test_focal_is_that_of_its_paper() -> None:
    p = torch.softmax(OUT, 1).gather(1, CLASSES[:, None])[:, 0]
    assert torch.allclose(focal(OUT, CLASSES, gamma=2.0), -((1 - p) ** 2) * p.log(), rtol=1e-12, atol=0)
    assert not torch.allclose(focal(OUT, CLASSES, gamma=2.0), focal(OUT, CLASSES, gamma=1.0))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda out, y: functional.cross_entropy(out, y), r"returned shape \[\] for 2 rows; return one value a row"),
        (lambda out, y: out, r"returned shape \[2, 3\] for 2 rows"),
        (lambda out, y: 3.0, r"returned a float for 2 rows"),
        (lambda out, y: out[:1, 0], r"returned shape \[1\] for 2 rows"),
        (lambda out, y: (out - out.mean()).square().sum(1), "gives a row another value beside other rows"),
        (
            lambda out, y: out[:, y.max() + 5],
            r"fails on outputs of shape \[2, 3\] and targets of shape \[2\]: IndexError",
        ),
    ],
)
def test_what_is_no_loss_of_rows_is_refused(function: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RowLoss("mine", function).check(3, CLASSES)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"train\.loss\.gama is not a setting; did you mean train\.loss\.gamma"):
        make_loss({"name": "focal", "gama": 2.0})
    with pytest.raises(ConfigError, match=r"train\.loss\.gamma is 'high', but must be a number from 0"):
        make_loss({"name": "focal", "gamma": "high"})
    with pytest.raises(ConfigError, match=r"the targets are numbers; use mse, l1, huber, bce"):
        make_loss("focal").check(3, NUMBERS)  # type: ignore[union-attr]


def test_half_precision_is_widened() -> None:
    loss = make_loss(lambda out, y: functional.cross_entropy(out, y, reduction="none"))
    assert loss is not None
    assert loss(OUT.bfloat16(), CLASSES).dtype == torch.float32
