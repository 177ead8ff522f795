"""`TrainOptions`: the section `train` of a configuration, and what `fit` takes as keywords."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, SkipValidation, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from trisect.config.chosen import choice_of, functions_by_name, in_words, is_plain, made_in_python, objects_with
from trisect.config.names import CALLBACKS, LOSSES, OPTIMIZERS, SCHEDULERS
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
from trisect.settings.synonyms import with_our_names

if TYPE_CHECKING:
    import torch

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


def _target(value: Any) -> Any:
    numbers = value.values() if isinstance(value, Mapping) else [None]
    if value is not None and (not value or not all(isinstance(one, (int, float)) for one in numbers)):
        raise ValueError(f"is {value!r}, but must be a mapping of measures to numbers, such as {{val.accuracy: 0.9}}")
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
        optimizer: one of `torch.optim` by name, such as `AdamW`, or {name: …, options}; in Python also a class, a class
            and its options, or a function of the parameters. `optimiser` is accepted too.
        momentum: of `SGD` by name; 0 is plain gradient descent.
        nesterov: `SGD` by name looks ahead along its momentum, where it has any.
        weight_decay: one number, or one for spatial layers (`conv`) and one for all others (`dense`).
        scheduler: one of `torch.optim.lr_scheduler` by name, such as `OneCycleLR`, or {name: …, options}; in Python
            also a class, a class and its options, or a function of the optimizer. It steps behind every step of the
            optimizer, `ReduceLROnPlateau` behind every evaluation.
        lr_schedule: `cosine` falls to zero over the epochs, `plateau` halves after 10 evaluations without a best.
        clip: the largest norm of all gradients together, or None.
        ema: the decay of an exponential average of the parameters, such as 0.999, which is what evaluates and predicts.
        loss: of a row, by name (`cross_entropy`, `focal`, `mse`, `l1`, `huber`, `bce`) or {name: …, options}; in Python
            also a function (out, y) that returns one value a row. None: the task's own.
        metrics: measures of your own, name → function (out, y) of all rows of a split, given in Python.
        callbacks: objects with `on_epoch_end`, `on_evaluate` or `on_checkpoint`, given in Python.
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
        target: measures and the values at which the run ends, such as {val.accuracy: 0.9}; None: it goes on.
        patience: stop after so many evaluations without a better `monitor`, or None.
        monitor: the measure that decides which epoch is the best, such as `val.accuracy`; None: the task's own.
        monitor_mode: whether `max` or `min` of it is best; `auto`: the least loss and error, the most of all others.
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
    optimizer: Annotated[
        Any, AfterValidator(choice_of(OPTIMIZERS, "a class, a class and its options, or a function of the parameters"))
    ] = "Adam"
    momentum: Fraction = 0.9
    nesterov: Flag = True
    weight_decay: Annotated[SkipValidation[WeightDecay], AfterValidator(_weight_decay)] = 0.0
    scheduler: Annotated[
        Any, AfterValidator(choice_of(SCHEDULERS, "a class, a class and its options, or a function of the optimizer"))
    ] = None
    lr_schedule: Literal["none", "cosine", "plateau"] = "none"
    clip: PositiveNumber | None = None
    ema: Annotated[float, Field(gt=0, lt=1, strict=True)] | None = None
    loss: Annotated[Any, AfterValidator(choice_of(LOSSES, "a function of outputs and targets"))] = None
    metrics: Annotated[Any, AfterValidator(functions_by_name)] = field(default_factory=dict)
    callbacks: Annotated[Any, AfterValidator(objects_with(CALLBACKS))] = ()
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
    target: Annotated[SkipValidation[Mapping[str, float] | None], AfterValidator(_target)] = None
    patience: Positive | None = None
    monitor: Text | None = None
    monitor_mode: Literal["auto", "max", "min"] = "auto"
    rules: Flag = True
    checkpoint_every: Positive | None = 10
    keep: Positive = 2
    track: Annotated[Text | None, AfterValidator(_track)] = None

    @model_validator(mode="before")
    @classmethod
    def _by_our_names(cls, given: Any) -> Any:
        if isinstance(given, ArgsKwargs):
            return ArgsKwargs(given.args, with_our_names(given.kwargs or {}))
        return with_our_names(given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _one_schedule(self) -> TrainOptions:
        if self.scheduler is not None and self.lr_schedule != "none":
            raise ValueError(f"has a scheduler and lr_schedule {self.lr_schedule}; keep one of them")
        return self

    @property
    def objects(self) -> dict[str, Any]:
        """Options that are objects of Python, by name."""
        return {name: value for name, value in self._items() if not is_plain(value)}

    def plain(self) -> dict[str, Any]:
        """Return all options as plain data, with objects of Python named in words."""
        return {name: in_words(value) for name, value in self._items()}

    def require_named(self) -> None:
        """Raise a ConfigError where an option is the words for an object of Python that is not here."""
        for name, value in self._items():
            words = made_in_python(value)
            if words is not None:
                raise ConfigError(
                    f"train.{name} was made in Python ({words}) and handed to trisect.fit; go on there, or leave it"
                    " out."
                )

    def for_outputs(self) -> TrainOptions:
        """Return the options with nothing in them that is for learning or judging."""
        return replace(self, optimizer="Adam", scheduler=None, loss=None, metrics={}, callbacks=(), monitor=None)

    def _items(self) -> list[tuple[str, Any]]:
        return [(each.name, getattr(self, each.name)) for each in fields(self)]

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
