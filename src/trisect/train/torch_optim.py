"""torch's optimizers and schedulers as a user may choose them: a name, a name with options, a class, or a function."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from trisect.config import TrainOptions
from trisect.config.train import WeightDecay
from trisect.errors import ConfigError
from trisect.settings.nearest import unknown_setting

GROUPS = ("conv", "dense")
PLATEAU = 10  # evaluations without a best


def make_optimizer(options: TrainOptions, groups: Mapping[str, Sequence[Parameter]]) -> Optimizer:
    """Return the optimizer of `train.optimizer` over parameters.

    Args:
        groups: the parameters of spatial layers (`conv`) and of all others (`dense`).
    """
    own = [parameter for group in groups.values() for parameter in group]
    made, given = _chosen(options.optimizer, torch.optim, "optimizer")
    setting = "train.optimizer"
    if not isinstance(made, type):
        optimizer = _called(setting, made, own)
    else:
        named = not callable(options.optimizer) and not isinstance(options.optimizer, tuple)
        defaults = _defaults(options, made, named=named, decays="weight_decay" not in given)
        over: Any = own
        if isinstance(defaults.get("weight_decay"), Mapping):
            decay = decay_by_group(defaults.pop("weight_decay"))
            over = [{"params": list(groups[group]), "weight_decay": decay[group]} for group in GROUPS]
        optimizer = _called(setting, made, over, **_checked(setting, made, {**defaults, **given}))
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"train.optimizer gave a {type(optimizer).__name__}; it must give a torch.optim.Optimizer of the parameters"
            " that it is called with."
        )
    known = set(map(id, own))
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in known:
                raise ConfigError(
                    f"train.optimizer gave a {type(optimizer).__name__} over a parameter of shape"
                    f" {list(parameter.shape)} that is not trained here; use the parameters that it is called with,"
                    " which are those of this rank."
                )
    return optimizer


def _defaults(options: TrainOptions, made: type, *, named: bool, decays: bool) -> dict[str, Any]:
    """Return what a class takes from the other settings.

    Args:
        named: whether it was given by name; a class of Python keeps its own defaults where nothing else was set.
        decays: whether `weight_decay` of the settings is taken.
    """
    takes = inspect.signature(made).parameters
    defaults: dict[str, Any] = {"lr": options.lr} if "lr" in takes else {}
    if decays and (named or options.weight_decay != 0.0):
        if "weight_decay" not in takes and any(decay_by_group(options.weight_decay).values()):
            raise ConfigError(
                f"train.weight_decay is {options.weight_decay}, and {made.__name__} has none; leave it out."
            )
        if "weight_decay" in takes:
            defaults["weight_decay"] = options.weight_decay
    if named and made is torch.optim.SGD:
        # torch refuses to look ahead along no momentum
        asked = options.optimizer if isinstance(options.optimizer, Mapping) else {}
        momentum = asked.get("momentum", options.momentum)
        defaults |= {"momentum": momentum, "nesterov": options.nesterov and momentum > 0}
    return defaults


def _checked(setting: str, made: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a class; refuse those that it does not have. All at once where torch can do that."""
    takes = inspect.signature(made).parameters
    names = [name for name in takes if name not in ("params", "optimizer", "last_epoch")]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
        for name in options:
            if name not in names:
                raise ConfigError(unknown_setting(setting, name, names))
    chosen = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    other = any(chosen.get(name) for name in ("foreach", "capturable", "differentiable"))
    if "fused" in names and made.__module__.startswith("torch.optim") and not other:
        chosen.setdefault("fused", True)
    return chosen


def make_scheduler(options: TrainOptions, optimizer: Optimizer, *, lower: bool, steps: int) -> LRScheduler | None:
    """Return the scheduler of `train.scheduler` or `train.lr_schedule`, or None.

    Args:
        lower: whether the monitored measure is better the lower it is.
        steps: of all epochs.
    """
    if options.scheduler is None:
        if options.lr_schedule == "cosine":
            return LambdaLR(optimizer, partial(_cosine, steps))
        if options.lr_schedule == "plateau":
            mode = "min" if lower else "max"
            return ReduceLROnPlateau(optimizer, mode, factor=0.5, patience=PLATEAU, threshold=0.0)  # type: ignore[arg-type]
        return None
    made, given = _chosen(options.scheduler, torch.optim.lr_scheduler, "scheduler")
    setting = "train.scheduler"
    if not isinstance(made, type):
        scheduler = _called(setting, made, optimizer)
    else:
        scheduler = _called(
            setting, made, optimizer, **_checked(setting, made, {**_spans(made, given, steps, lower), **given})
        )
    if not isinstance(scheduler, LRScheduler):
        raise ConfigError(
            f"train.scheduler gave a {type(scheduler).__name__}; it must give a scheduler of torch.optim.lr_scheduler."
        )
    return scheduler


def _spans(made: type, given: Mapping[str, Any], steps: int, lower: bool) -> dict[str, Any]:
    """Return the options of a scheduler that follow from the number of steps and from what is monitored."""
    takes = inspect.signature(made).parameters
    if made is ReduceLROnPlateau:
        return {"mode": "min" if lower else "max"}
    if "total_steps" in takes and "epochs" not in given:
        return {"total_steps": steps}
    return {"T_max": steps} if "T_max" in takes else {}


def _cosine(steps: int, done: int) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * done / steps))


def _chosen(choice: Any, module: Any, kind: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return what makes the optimizer or the scheduler, and its options."""
    if isinstance(choice, tuple):
        return choice
    if callable(choice):
        return choice, {}
    given = {"name": choice} if isinstance(choice, str) else dict(choice)
    made = getattr(module, given.pop("name"), None)
    if made is None:
        raise ConfigError(f"train.{kind} is {choice!r}, which torch {torch.__version__} does not have; use another.")
    return made, given


def _called(setting: str, made: Callable[..., Any], *values: Any, **options: Any) -> Any:
    try:
        with without_compiler():
            return made(*values, **options)
    except Exception as error:
        name = getattr(made, "__name__", type(made).__name__)
        raise ConfigError(f"{setting} {name} cannot be made: {type(error).__name__}: {error}.") from error


def decay_by_group(weight_decay: WeightDecay) -> dict[str, float]:
    """Return the decay of each group."""
    if not isinstance(weight_decay, Mapping):
        return dict.fromkeys(GROUPS, float(weight_decay))
    unknown = set(weight_decay) - set(GROUPS)
    if unknown:
        raise ConfigError(f"train.weight_decay.{sorted(unknown)[0]} is not a group; the groups are conv and dense.")
    return {group: float(weight_decay.get(group, 0.0)) for group in GROUPS}


def step_of(optimizer: Optimizer) -> Callable[[], Any]:
    """Return the step of an optimizer, for gradients that are off already.

    What torch wraps around the step of its own classes would load its compiler, and does nothing without hooks.
    """
    plain = type(optimizer).__module__.startswith("torch.optim")
    hooks = (*optimizer._optimizer_step_pre_hooks, *optimizer._optimizer_step_post_hooks)
    if plain and not hooks:
        return partial(inspect.unwrap(type(optimizer).step), optimizer)
    return optimizer.step


@contextmanager
def without_compiler() -> Iterator[None]:
    """Keep torch from loading its compiler, which takes as long as the rest of torch and would do nothing here.

    Optimizers ask the compiler for the function that adds a group of parameters, and remember what it gives; that is
    the function itself where nothing is compiled.
    """
    function, remembered = getattr(Optimizer.add_param_group, "__wrapped__", None), "__dynamo_disable"
    if function is None or hasattr(function, remembered):
        yield
        return
    setattr(function, remembered, function)
    try:
        yield
    finally:
        delattr(function, remembered)
