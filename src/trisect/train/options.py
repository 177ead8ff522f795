"""How long, how fast, how often: the options of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from trisect.errors import ConfigError
from trisect.train.optimiser import OptimiserName, WeightDecay

Precision = Literal["float32", "float64", "bfloat16"]


@dataclass(frozen=True)
class TrainOptions:
    """How long, how fast, how often; the section `train` of a configuration.

    Attributes:
        weight_decay: one number, or a number a group: `conv` (parameters of spatial layers) and `dense` (all others).
        lr_schedule: `none`, `cosine` (to zero over `epochs`), `plateau` (halved after 10 evaluations without a best).
        clip: the largest norm of all gradients together, or None.
        eval_every: an evaluation after every so many epochs (and of the best parameters at the end).
        patience: stop after so many evaluations without a better `monitor`, or None.
        monitor: the measure that decides which epoch is the best, such as `val.accuracy`; None: the task's own.
        checkpoint_every: a checkpoint after every so many epochs, and after the last; None: only after the last.
        order: whether vertices are reordered inside for locality: `auto` where it pays, or `none`.
    """

    epochs: int = 100
    lr: float = 0.01
    optimiser: OptimiserName = "adam"
    weight_decay: WeightDecay = 0.0
    lr_schedule: Literal["none", "cosine", "plateau"] = "none"
    clip: float | None = None
    seed: int = 0
    precision: Precision = "float32"
    device: str = "cpu"
    eval_every: int = 1
    patience: int | None = None
    monitor: str | None = None
    checkpoint_every: int | None = None
    order: Literal["auto", "none"] = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "eval_every", "patience", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"train.{name} is {value!r}; it must be a whole number of at least 1.")
        if not self.lr > 0:
            raise ConfigError(f"train.lr is {self.lr!r}; it must be above 0.")

    @property
    def dtype(self) -> torch.dtype:
        """Of features and parameters."""
        found = getattr(torch, self.precision, None)
        if self.precision not in ("float32", "float64", "bfloat16") or not isinstance(found, torch.dtype):
            raise ConfigError(f"train.precision is {self.precision!r}; use float32, float64 or bfloat16.")
        return found
