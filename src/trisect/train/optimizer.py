"""The one place where parameters are stepped: torch's optimizer and scheduler, clipping, the average, named state."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from trisect.config import TrainOptions
from trisect.errors import CheckpointError, ConfigError, RunError
from trisect.settings.plain_state import from_plain, to_plain
from trisect.train.torch_optim import make_optimizer, make_scheduler, step_of, without_compiler

MASTER, AVERAGE = "master", "ema"
_NUMBERS = {"int": (int, torch.int64), "float": (float, torch.float64), "bool": (bool, torch.bool)}


class Optimizer:
    """A torch optimizer over named parameters.

    Args:
        parameters: name → parameter; the names are those of the state. A tied parameter has one name.
        conv: names of the parameters of spatial layers (the group `conv`; all others are `dense`).
        lower: whether the monitored measure is better the lower it is.
        steps: of an epoch.
    """

    def __init__(
        self,
        options: TrainOptions,
        parameters: Mapping[str, nn.Parameter],
        conv: Collection[str] = (),
        *,
        lower: bool = False,
        steps: int = 1,
    ) -> None:
        self.parameters, self._options = dict(parameters), options
        # half-precision parameters have a float32 copy that takes the small steps
        self._masters = {
            key: nn.Parameter(p.detach().float()) if p.dtype in (torch.bfloat16, torch.float16) else p
            for key, p in self.parameters.items()
        }
        groups = {
            group: [self._masters[key] for key in self.parameters if (key in conv) == (group == "conv")]
            for group in ("conv", "dense")
        }
        if not self.parameters:  # a stage without any steps nothing, and its scheduler goes on all the same
            groups["dense"] = [nn.Parameter(torch.zeros(0))]
        self.torch = make_optimizer(options, groups)
        self.scheduler: LRScheduler | None = make_scheduler(
            options, self.torch, lower=lower, steps=options.epochs * steps
        )
        self._average: dict[str, Tensor] = {}
        self._step = step_of(self.torch)

    @property
    def lr(self) -> float:
        """The learning rate of the next step, of the first group."""
        return float(self.torch.param_groups[0]["lr"])

    def zero_grad(self) -> None:
        """Set every parameter's gradient to None, as an epoch begins."""
        for parameter in self.parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self, total_square: Callable[[float], float] = lambda square: square) -> None:
        """Clip, step and average.

        Args:
            total_square: from the squared norm of these gradients to that of all ranks' together.
        """
        if self._options.clip is not None:
            clip_gradients(self.parameters.values(), self._options.clip, total_square)
        halves = [key for key, parameter in self.parameters.items() if self._masters[key] is not parameter]
        for key in halves:
            gradient = self.parameters[key].grad
            self._masters[key].grad = None if gradient is None else gradient.float()
        try:
            self._step()
        except TypeError as error:
            raise ConfigError(f"train.optimizer {type(self.torch).__name__} cannot step: {error}.") from error
        for key in halves:
            self.parameters[key].copy_(self._masters[key])
        if self._options.ema is not None:
            self._take_into_average(self._options.ema)

    def advance_schedule(self) -> None:
        """Go on in a schedule of steps, behind each of them."""
        if self.scheduler is not None and not isinstance(self.scheduler, ReduceLROnPlateau):
            self._schedule()

    def _schedule(self, *measured: float) -> None:
        self.torch._opt_called = True  # type: ignore[attr-defined]  # where the step was not called by its wrapper
        try:
            self.scheduler.step(*measured)  # type: ignore[union-attr, arg-type]
        except Exception as error:
            raise RunError(f"train.scheduler {type(self.scheduler).__name__} cannot go on: {error}.") from error

    def evaluated(self, value: float | None, *, first: bool) -> None:
        """Go on in a schedule by the monitored measure.

        Args:
            value: of the measure, None where there was nothing to measure.
            first: whether nothing was measured so far.
        """
        if isinstance(self.scheduler, ReduceLROnPlateau) and not (value is None and first):
            self._schedule(math.nan if value is None else value)

    # The average

    def _take_into_average(self, decay: float) -> None:
        """Add the parameters to their exponential average, which begins with those of the first step."""
        if not self._average:
            self._average = {key: master.detach().clone() for key, master in self._masters.items()}
        elif self._masters:
            torch._foreach_lerp_(list(self._average.values()), list(self._masters.values()), 1.0 - decay)

    @torch.no_grad()
    def take_average(self) -> None:
        """Put the averages into the parameters, where there are any."""
        for key, average in self._average.items():
            self.parameters[key].copy_(average)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let parameters be their averages meanwhile, where there are any."""
        before = {key: self.parameters[key].detach().clone() for key in self._average}
        self.take_average()
        try:
            yield
        finally:
            with torch.no_grad():
                for key, value in before.items():
                    self.parameters[key].copy_(value)

    # State

    def state(self, *, copied: bool = True) -> dict[str, Tensor]:
        """Return named tensors: `exp_avg.NAME`, `step.NAME`, … as torch names them; `ema.NAME` with an average, and
        `master.NAME` for half-precision parameters. A plain number is `step:int.NAME`.

        Args:
            copied: False: the optimizer's own, which the next step changes.
        """
        state: dict[str, Tensor] = {}
        for key, master in self._masters.items():
            if master is not self.parameters[key]:
                state[f"{MASTER}.{key}"] = master.detach()
            if key in self._average:
                state[f"{AVERAGE}.{key}"] = self._average[key]
            for entry, value in self.torch.state.get(master, {}).items():
                if value is not None:
                    name, tensor = self._named(entry, value)
                    state[f"{name}.{key}"] = tensor
        return {name: value.clone() for name, value in state.items()} if copied else state

    def _named(self, entry: Any, value: Any) -> tuple[str, Tensor]:
        if isinstance(entry, str) and not {".", ":"} & set(entry):
            if isinstance(value, Tensor):
                return entry, value.detach()
            kind = type(value).__name__
            if kind in _NUMBERS:
                return f"{entry}:{kind}", torch.tensor(value, dtype=_NUMBERS[kind][1])
        raise ConfigError(
            f"train.optimizer {type(self.torch).__name__} keeps {entry!r} of a parameter, a {type(value).__name__}; a"
            " checkpoint can hold tensors and numbers by name."
        )

    def plain(self) -> dict[str, Any]:
        """Return the rest of the state, as JSON has it: of groups and of the scheduler, the same on all ranks."""
        groups = [
            to_plain({k: v for k, v in group.items() if k not in ("params", "param_names")}, "train.optimizer")
            for group in self.torch.param_groups
        ]
        scheduler = None if self.scheduler is None else to_plain(self.scheduler.state_dict(), "train.scheduler")
        return {"groups": groups, "scheduler": scheduler}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take up a state that `state` gave, and nothing else of what was there."""
        self._require_fit(state)
        self.torch.state.clear()
        self._average = {}
        for name, value in state.items():
            entry, key = name.split(".", 1)
            master, (entry, _, kind) = self._masters[key], entry.partition(":")
            if entry == MASTER:
                master.copy_(value)
            elif entry == AVERAGE:
                self._average[key] = value.detach().clone().to(master.device)
            elif kind:
                self.torch.state[master][entry] = _NUMBERS[kind][0](value.item())
            else:
                # counters stay on the CPU where the optimizer keeps them there
                where = "cpu" if entry == "step" and not self._on_device(master) else master.device
                self.torch.state[master][entry] = value.detach().clone().to(where)
        self._average = {key: self._average[key] for key in self._masters if key in self._average}

    def _on_device(self, master: Tensor) -> bool:
        group = next(g for g in self.torch.param_groups if any(p is master for p in g["params"]))
        return bool(group.get("fused") or group.get("capturable"))

    def _require_fit(self, state: Mapping[str, Tensor]) -> None:
        """Raise a CheckpointError where a state is not that of this optimizer over these parameters."""
        name, remedy = type(self.torch).__name__, "start a new run in another --out."
        kept = kept_of_each(self._options, self.parameters)
        found: dict[str, set[str]] = {}
        for full, value in state.items():
            entry, _, key = full.partition(".")
            if key not in self.parameters:
                raise CheckpointError(
                    f"the checkpoint has optimizer state {full!r}, and the model has no parameter {key!r}."
                )
            wanted = kept[key].get(entry)
            unknown = entry.partition(":")[2] not in ("", *_NUMBERS)
            if wanted is None and (unknown or entry == AVERAGE or self.torch.__module__.startswith("torch.optim")):
                raise CheckpointError(
                    f"the checkpoint has optimizer state {full!r}, and {name} keeps {', '.join(kept[key])}; {remedy}"
                )
            if wanted is not None and (value.dtype != wanted.dtype or value.shape != wanted.shape):
                raise CheckpointError(
                    f"the checkpoint has optimizer state {full!r} of type {value.dtype} and shape {list(value.shape)},"
                    f" and {name} keeps {wanted.dtype} of shape {list(wanted.shape)}; {remedy}"
                )
            found.setdefault(key, set()).add(entry)
        stepped = any(own - {MASTER} for own in found.values())
        for key, own in kept.items():
            trained = found.get(key, set()) - {MASTER, AVERAGE}  # which a parameter has that was never trained
            for entry in own:
                lacks = entry not in found.get(key, set())
                if lacks and (stepped if entry in (MASTER, AVERAGE) else bool(trained)):
                    raise CheckpointError(
                        f"the checkpoint has no optimizer state '{entry}.{key}', which {name} needs; {remedy}"
                    )

    def load_plain(self, plain: Mapping[str, Any]) -> None:
        """Take up what `plain` gave."""
        try:
            groups = [from_plain(group) for group in plain["groups"]]
            state = from_plain(plain["scheduler"])
            if len(groups) != len(self.torch.param_groups) or (state is None) != (self.scheduler is None):
                raise ValueError("other groups, or another scheduler")
            for group, own in zip(self.torch.param_groups, groups, strict=True):
                group.update(own)
            if self.scheduler is not None:
                now = self.scheduler.state_dict()
                # a Counter of milestones stays one
                self.scheduler.load_state_dict(
                    {k: type(now[k])(v) if isinstance(now.get(k), dict) else v for k, v in state.items()}
                )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"the checkpoint's state of optimizer and scheduler does not fit ({error}); start a new run in another"
                " --out."
            ) from None


def clip_gradients(
    parameters: Iterable[nn.Parameter],
    norm: float,
    total_square: Callable[[float], float] = lambda square: square,
) -> float:
    """Scale all gradients together so that their norm is at most `norm`; return the norm before.

    Args:
        total_square: from the squared norm of these gradients to that of all ranks' together.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    before = math.sqrt(total_square(sum(float(g.double().square().sum()) for g in gradients)))
    scale = norm / (before + 1e-6)
    if scale < 1.0:
        for gradient in gradients:
            gradient.mul_(scale)
    return before


def kept_of_each(options: TrainOptions, parameters: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return what the optimizer keeps of each parameter, by stepping it over others of the same shapes.

    Raises:
        ConfigError: the optimizer or the scheduler cannot be made, cannot step, or keeps what no checkpoint can hold.
    """
    like = {name: nn.Parameter(torch.zeros(p.shape, dtype=p.dtype)) for name, p in parameters.items()}
    with without_compiler():
        optimizer = Optimizer(options, like)
    for parameter in like.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.advance_schedule()
    optimizer.plain()
    kept: dict[str, dict[str, Tensor]] = {name: {} for name in like}
    for name, value in optimizer.state(copied=False).items():
        entry, _, key = name.partition(".")
        kept[key][entry] = value
    return kept


def numbers_kept(options: TrainOptions) -> int:
    """Return how many numbers the optimizer keeps for each that is trained."""
    side = 64
    try:
        kept = kept_of_each(options, {"w": torch.zeros(side, side, dtype=options.dtype)})["w"]
    except ConfigError:  # a function may ask for the parameters that it knows
        return 2
    return round(sum(value.numel() for entry, value in kept.items() if entry != MASTER) / side**2)
