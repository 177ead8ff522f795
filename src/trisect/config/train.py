"""`TrainOptions`: the section `train` of a configuration, and what `fit` takes as keywords."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, SkipValidation
from pydantic.dataclasses import dataclass

from trisect.errors import ConfigError
from trisect.layout.steps import Outside, StepKind, Steps
from trisect.settings.section import (
    CLOSED,
    Flag,
    Fraction,
    NotNegative,
    Positive,
    PositiveNumber,
    Text,
    section,
)

if TYPE_CHECKING:
    import torch

OptimiserName = Literal["adam", "adamw", "sgd"]
Precision = Literal["float32", "float64", "bfloat16"]
WeightDecay = float | Mapping[str, float]


def _weight_decay(value: Any) -> Any:
    numbers = value.values() if isinstance(value, dict) and value.keys() <= {"conv", "dense"} else [value]
    for number in numbers:
        if not isinstance(number, (int, float)) or isinstance(number, bool) or not 0 <= number < float("inf"):
            raise ValueError(
                f"is {value!r}, but must be a number from 0, or a mapping of conv and dense to such numbers"
            )
    return value


TRACKERS = {"wandb": "wandb", "mlflow": "mlflow"}
"""Trackers that may be named, and the package that each needs."""


def _track(value: str | None) -> str | None:
    for name in (value or "").split(",") if value is not None else ():
        if name.strip() not in TRACKERS:
            raise ValueError(f"is {value!r}, but must name {' or '.join(TRACKERS)}, or both with a comma")
    return value


@section("train", ConfigError)
@dataclass(frozen=True, config=CLOSED)
class TrainOptions:
    """The options of training: how long, how fast, how often, and on what device.

    Attributes:
        epochs: how many passes over the whole graph or timeline.
        step: how often the optimizer steps: once an `epoch`, for each batch of chunks of vertices (`chunk`), or for
            each block of snapshots (`block`).
        batches: how many steps an epoch has where `step` is `chunk` or `block`.
        outside: of rows outside its batch, a step reads `history`, what they were when their own step came, or nothing
            (`drop`, as Cluster-GCN).
        lr: the learning rate.
        optimiser: `adam`, `adamw` or `sgd`.
        momentum: of `sgd`; 0 is plain gradient descent.
        nesterov: `sgd` looks ahead along its momentum, where it has any.
        weight_decay: one number, or one for spatial layers (`conv`) and one for all others (`dense`).
        lr_schedule: `cosine` falls to zero over the epochs, `plateau` halves after 10 evaluations without a best.
        clip: the largest norm of all gradients together, or None.
        seed: of parameters, dropout, splits and samples.
        precision: of features and parameters.
        device: `cpu`, or `cuda` and its number.
        threads: threads of one process, or None for what torch takes.
        timeout: seconds that a rank waits for another before the run is ended.
        startup_timeout: seconds that a rank may be behind the others before the first epoch.
        grace: seconds within which a run that is asked to end (SIGTERM) writes a checkpoint and leaves.
        guard: end the run where its loss explodes, or where ranks that hold the same parameters differ in them.
        order: whether vertices are reordered inside for locality: `auto` where it pays, or `none`. Never seen from
            outside.
        eval_every: an evaluation after every so many epochs (and of the best parameters at the end).
        patience: stop after so many evaluations without a better `monitor`, or None.
        monitor: the measure that decides which epoch is the best, such as `val.accuracy`; None: the task's own.
        rules: whether simple rules are measured before the first epoch, to judge the model by.
        checkpoint_every: a checkpoint after every so many epochs, and after the last; None: only after the last.
        keep: how many of the last checkpoints stay, besides the best one.
        track: where figures go besides the run directory and TensorBoard: `wandb`, `mlflow`, or both with a comma.
    """

    epochs: Positive = 100
    step: StepKind = "epoch"
    batches: Positive = 10
    outside: Outside = "history"
    lr: PositiveNumber = 0.01
    optimiser: OptimiserName = "adam"
    momentum: Fraction = 0.9
    nesterov: Flag = True
    weight_decay: Annotated[SkipValidation[WeightDecay], AfterValidator(_weight_decay)] = 0.0
    lr_schedule: Literal["none", "cosine", "plateau"] = "none"
    clip: PositiveNumber | None = None
    seed: NotNegative = 0
    precision: Precision = "float32"
    device: Text = "cpu"
    threads: Positive | None = None
    timeout: PositiveNumber = 300.0
    startup_timeout: PositiveNumber = 120.0
    grace: PositiveNumber = 30.0
    guard: Flag = True
    order: Literal["auto", "none"] = "auto"
    eval_every: Positive = 1
    patience: Positive | None = None
    monitor: Text | None = None
    rules: Flag = True
    checkpoint_every: Positive | None = 10
    keep: Positive = 2
    track: Annotated[Text | None, AfterValidator(_track)] = None

    @property
    def steps(self) -> Steps:
        """Return which rows or snapshots each step of the optimizer is made of."""
        return Steps(self.step, self.batches, self.outside)

    @property
    def dtype(self) -> torch.dtype:
        """This is the type of features and parameters."""
        import torch  # a configuration is read without

        dtype: torch.dtype = getattr(torch, self.precision)
        return dtype
