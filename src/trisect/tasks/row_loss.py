"""Losses of a row: functions (out, y) that return one value a row, by name or a user's own.

One value a row, because the loss of a run is the sum over all rows, wherever they are, divided by a number that the
whole run shares: the mean of a part says nothing of how many rows it is of.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trisect.errors import ConfigError
from trisect.settings.nearest import unknown_setting

RowFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class RowLoss:
    """A loss of rows that checks what it returns.

    Attributes:
        name: in words.
        of: `classes` or `numbers`, the targets that it is for; None: any.
    """

    name: str
    function: RowFunction
    of: str | None = None

    def __call__(self, out: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row.

        Args:
            out: [rows, channels]; y: [rows] classes, or [rows, channels] numbers.
        """
        value = self.function(out.float() if out.dtype in (torch.bfloat16, torch.float16) else out, y)
        if not isinstance(value, Tensor) or value.shape not in (y.shape, y.shape[:1]):
            given = f"shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ConfigError(
                f"train.loss {self.name} returned {given} for {len(out)} rows; return one value a row, [{len(out)}] (in"
                ' torch reduction="none"), so that the sums of parts add up.'
            )
        return value if value.dim() == 1 else value.mean(tuple(range(1, value.dim())))

    def check(self, channels: int, y: Tensor) -> None:
        """Raise a ConfigError where the loss does not fit the targets, before anything is trained.

        Args:
            y: of some rows.
        """
        kind = "numbers" if y.is_floating_point() else "classes"
        if self.of not in (None, kind):
            fitting = ", ".join(name for name, (of, _) in NAMED.items() if of == kind)
            raise ConfigError(f"train.loss is {self.name}, and the targets are {kind}; use {fitting}.")
        y = torch.cat([y, y])[:2] if len(y) else y
        out = torch.linspace(-1, 1, len(y) * channels, device=y.device).view(len(y), channels)
        try:
            together = self(out, y)
            apart = torch.cat([self(out[row : row + 1], y[row : row + 1]) for row in range(len(y))]) if len(y) else y
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"train.loss {self.name} fails on outputs of shape {list(out.shape)} and targets of shape"
                f" {list(y.shape)}: {type(error).__name__}: {error}."
            ) from error
        if not torch.allclose(together, apart.to(together.dtype), equal_nan=True):
            raise ConfigError(
                f"train.loss {self.name} gives a row another value beside other rows; a row's loss must be its own, so"
                " that the sums of parts add up."
            )


def focal(out: Tensor, y: Tensor, gamma: float = 2.0) -> Tensor:
    """Return -(1 - p)^gamma · log p with p the probability of the row's class (Lin et al., 2017)."""
    log_p = functional.log_softmax(out, -1).gather(1, y[:, None])[:, 0]
    return -((1.0 - log_p.exp()) ** gamma) * log_p


def cross_entropy(out: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return -log p of the row's class."""
    return functional.cross_entropy(out, y, reduction="none", label_smoothing=label_smoothing)


def mse(out: Tensor, y: Tensor) -> Tensor:
    """Return squared errors."""
    return (out - y.to(out.dtype)).square()


def l1(out: Tensor, y: Tensor) -> Tensor:
    """Return absolute errors."""
    return (out - y.to(out.dtype)).abs()


def huber(out: Tensor, y: Tensor, delta: float = 1.0) -> Tensor:
    """Return errors, squared up to `delta` and straight above."""
    return functional.huber_loss(out, y.to(out.dtype), reduction="none", delta=delta)


def bce(out: Tensor, y: Tensor) -> Tensor:
    """Return the cross entropy of scores and targets of 0 and 1, of several labels a row."""
    return functional.binary_cross_entropy_with_logits(out, y.to(out.dtype), reduction="none")


NAMED: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "cross_entropy": ("classes", cross_entropy),
    "focal": ("classes", focal),
    "mse": ("numbers", mse),
    "l1": ("numbers", l1),
    "huber": ("numbers", huber),
    "bce": ("numbers", bce),
}


def make_loss(choice: Any) -> RowLoss | None:
    """Return the loss of `train.loss`; None where the task's own is wanted."""
    if choice is None:
        return None
    if callable(choice):
        return RowLoss(getattr(choice, "__name__", type(choice).__name__), choice)
    if isinstance(choice, tuple):
        return RowLoss(getattr(choice[0], "__name__", "loss"), partial(choice[0], **choice[1]))
    options = {} if isinstance(choice, str) else dict(choice)
    name = options.pop("name", choice)
    of, function = NAMED[name]
    takes = list(inspect.signature(function).parameters)[2:]
    for option, value in options.items():
        if option not in takes:
            raise ConfigError(unknown_setting("train.loss", option, takes))
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"train.loss.{option} is {value!r}, but must be a number from 0.")
    return RowLoss(name, partial(function, **options), of)


def weighted_sum(values: Tensor, weight: Tensor | None) -> Tensor:
    """Return the sum of values times weights, both [rows]."""
    return values.sum() if weight is None else torch.dot(values, weight.to(values.dtype))
