"""The optimiser: torch's own, with weight decay by group and a state of named tensors."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from trisect.config.train import OptimiserName, WeightDecay
from trisect.errors import CheckpointError, ConfigError

GROUPS = ("conv", "dense")


class Optimiser:
    """Adam, AdamW or SGD over named parameters.

    Args:
        parameters: name → parameter; the names are those of the state.
        conv: names of the parameters of spatial layers (the group `conv`; all others are `dense`).
        weight_decay: one number, or a number a group, such as {"conv": 0.01, "dense": 5e-4}.
        momentum, nesterov: of SGD.
    """

    def __init__(
        self,
        name: OptimiserName,
        parameters: Mapping[str, nn.Parameter],
        conv: Iterable[str],
        *,
        lr: float,
        weight_decay: WeightDecay = 0.0,
        momentum: float = 0.9,
        nesterov: bool = True,
    ) -> None:
        self.name, self.parameters = name, dict(parameters)
        # half-precision parameters have a float32 copy that takes the small steps
        self._masters = {
            key: (p.detach().float().requires_grad_() if p.dtype in (torch.bfloat16, torch.float16) else p)
            for key, p in self.parameters.items()
        }
        decay = decay_by_group(weight_decay)
        chosen = set(conv)
        groups = [
            {
                "params": [self._masters[key] for key in self.parameters if (key in chosen) == (group == "conv")],
                "weight_decay": decay[group],
            }
            for group in GROUPS
        ]
        groups = [group for group in groups if group["params"]]
        self._torch: torch.optim.Optimizer | None = None
        if groups:
            with _without_compiler():
                self._torch = _make(name, groups, lr, momentum, nesterov)

    def zero_grad(self) -> None:
        """Set every parameter's gradient to None, as an epoch begins."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def clip(self, norm: float, total_square: Callable[[float], float] = lambda square: square) -> None:
        """Scale all gradients together so that their norm is at most `norm`.

        Args:
            total_square: from the squared norm of these gradients to that of all ranks' together.
        """
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        square = total_square(sum(float(g.double().square().sum()) for g in gradients))
        scale = norm / (math.sqrt(square) + 1e-6)
        if scale < 1.0:
            for gradient in gradients:
                gradient.mul_(scale)

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Make one step with this learning rate."""
        if self._torch is None:
            return
        for group in self._torch.param_groups:
            group["lr"] = lr
        for key, parameter in self.parameters.items():
            if self._masters[key] is not parameter:
                self._masters[key].grad = None if parameter.grad is None else parameter.grad.float()
        # what is wrapped around it would load torch's compiler; gradients are off here already, and there are no hooks
        inspect.unwrap(type(self._torch).step)(self._torch)
        for key, parameter in self.parameters.items():
            if self._masters[key] is not parameter:
                parameter.copy_(self._masters[key])

    def state(self, *, copied: bool = True) -> dict[str, Tensor]:
        """Give named tensors: `exp_avg.NAME`, `step.NAME`, …, and `master.NAME` for half-precision parameters.

        Args:
            copied: False: the optimiser's own, which the next step changes.
        """
        state: dict[str, Tensor] = {}
        for key, parameter in self.parameters.items():
            master = self._masters[key]
            if master is not parameter:
                state[f"master.{key}"] = master.detach().clone() if copied else master.detach()
            if self._torch is not None:
                for entry, value in self._torch.state.get(master, {}).items():
                    if isinstance(value, Tensor):
                        state[f"{entry}.{key}"] = value.detach().clone() if copied else value.detach()
        return state

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take up a state that `state` gave, and nothing else of what was there."""
        if self._torch is not None:
            self._torch.state.clear()
        for name, value in state.items():
            entry, key = name.split(".", 1)
            if key not in self.parameters:
                raise CheckpointError(
                    f"the checkpoint has optimiser state {name!r}, and the model has no parameter {key!r}."
                )
            master = self._masters[key]
            wanted = torch.float32 if entry == "step" else master.dtype
            if entry not in ("master", *_STATE[self.name]) or value.dtype != wanted:
                raise CheckpointError(
                    f"the checkpoint has optimiser state {name!r} of type {value.dtype}, and {self.name} keeps"
                    f" {', '.join(_STATE[self.name])} of type {wanted}; start a new run in another --out."
                )
            if entry == "master":
                master.copy_(value)
            elif self._torch is not None:
                self._torch.state[master][entry] = value.detach().clone().to(master.device)
        for key, master in self._masters.items():
            own = {} if self._torch is None else self._torch.state.get(master, {})
            lacking = [entry for entry in _STATE[self.name] if own and entry not in own]
            if lacking:
                raise CheckpointError(
                    f"the checkpoint has no optimiser state '{lacking[0]}.{key}', which {self.name} needs; start a new"
                    " run in another --out."
                )


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Keep torch from loading its compiler, which takes as long as the rest of torch and would do nothing here.

    They ask the compiler for the function that adds a group of parameters, and remember what it gives; that is the
    function itself where nothing is compiled.
    """
    function, remembered = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None), "__dynamo_disable"
    if function is None or hasattr(function, remembered):
        yield
        return
    setattr(function, remembered, function)
    try:
        yield
    finally:
        delattr(function, remembered)


# what each keeps of a parameter, once it was trained
_STATE: dict[str, tuple[str, ...]] = {
    "adam": ("step", "exp_avg", "exp_avg_sq"),
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
    "sgd": ("momentum_buffer",),
}


def _make(
    name: OptimiserName, groups: list[dict[str, object]], lr: float, momentum: float, nesterov: bool
) -> torch.optim.Optimizer:
    if name == "sgd":
        # torch refuses to look ahead along no momentum
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov and momentum > 0, fused=True)
    if name == "adam":
        return torch.optim.Adam(groups, lr=lr, fused=True)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=lr, fused=True)
    raise ConfigError(f"train.optimiser is {name!r}; use adam, adamw or sgd.")


def decay_by_group(weight_decay: WeightDecay) -> dict[str, float]:
    """Give the decay of each group."""
    if not isinstance(weight_decay, Mapping):
        return dict.fromkeys(GROUPS, float(weight_decay))
    unknown = set(weight_decay) - set(GROUPS)
    if unknown:
        raise ConfigError(f"train.weight_decay.{sorted(unknown)[0]} is not a group; the groups are conv and dense.")
    return {group: float(weight_decay.get(group, 0.0)) for group in GROUPS}


class LearningRate:
    """The learning rate of each epoch: constant, along a cosine to zero, or halved when the monitored value stalls.

    Args:
        patience: for `plateau`, how many evaluations without improvement are waited for.
    """

    def __init__(
        self, lr: float, schedule: Literal["none", "cosine", "plateau"], epochs: int, patience: int = 10
    ) -> None:
        self.lr, self.schedule, self.epochs, self.patience = lr, schedule, epochs, patience
        self.scale = 1.0
        self.stalled = 0

    def at(self, epoch: int) -> float:
        """Give the learning rate for epoch 1, 2, …."""
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1.0 + math.cos(math.pi * (epoch - 1) / self.epochs))
        return self.lr * self.scale

    def evaluated(self, improved: bool) -> None:
        """Tell whether an evaluation was the best so far."""
        self.stalled = 0 if improved else self.stalled + 1
        if self.schedule == "plateau" and self.stalled > self.patience:
            self.scale *= 0.5
            self.stalled = 0

    def state(self) -> dict[str, float]:
        """Give what a resumed run needs."""
        return {"scale": self.scale, "stalled": self.stalled}

    def load(self, state: Mapping[str, float]) -> None:
        """Take up a state that `state` gave."""
        self.scale, self.stalled = float(state["scale"]), int(state["stalled"])
