"""The best epoch so far, by the monitored measure, and how long ago it was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from trisect.tasks.metrics import LOWER_IS_BETTER

Mode = Literal["auto", "max", "min"]


def lower_is_better(monitor: str, mode: Mode = "auto") -> bool:
    """Whether the best value of a measure, such as `val.accuracy`, is the lowest."""
    return mode == "min" or (mode == "auto" and monitor.partition(".")[2] in LOWER_IS_BETTER)


def improves(monitor: str, value: float | None, best: float | None, mode: Mode = "auto") -> bool:
    """Whether a value of the monitored measure is better than the best so far; where nothing was measured, it is."""
    if value is None or math.isnan(value):
        return best is None
    if best is None:
        return True
    return value < best if lower_is_better(monitor, mode) else value > best


def reaches(target: Mapping[str, float] | None, measured: Mapping[str, Mapping[str, Any]], mode: Mode = "auto") -> bool:
    """Whether all measures are as good as `train.target` says; without one, they never are."""

    def reached(name: str, wanted: float) -> bool:
        split, _, measure = name.partition(".")
        value = measured.get(split, {}).get(measure)
        if value is None:
            return False
        return bool(value <= wanted) if lower_is_better(name, mode) else bool(value >= wanted)

    return bool(target) and all(reached(name, wanted) for name, wanted in (target or {}).items())


class Best:
    """The best epoch: its number, what was monitored, and its parameters.

    Attributes:
        stale: how many evaluations came behind it.
    """

    def __init__(self, monitor: str, mode: Mode) -> None:
        self.monitor, self.mode = monitor, mode
        self.epoch, self.stale = 0, 0
        self.value: float | None = None
        self.tensors: dict[str, Tensor] = {}

    def measured(self, metrics: Mapping[str, Mapping[str, Any]]) -> float | None:
        """Return the monitored value among metrics; None where it was not measured, or is no number."""
        split, _, name = self.monitor.partition(".")
        value = metrics.get(split, {}).get(name)
        return None if value is None or math.isnan(value) else value

    def judge(self, value: float | None, epoch: int, modules: nn.Module) -> bool:
        """Return whether this is the best epoch so far; without anything to compare, the newest is."""
        improved = improves(self.monitor, value, self.value, self.mode)
        self.stale = 0 if improved else self.stale + 1
        if improved:
            self.value, self.epoch = value, epoch
            self.tensors = {key: tensor.detach().clone() for key, tensor in modules.state_dict().items()}
        return improved

    def meta(self) -> dict[str, Any]:
        """Return all state but the tensors, as JSON has it."""
        return {"monitor": self.monitor, "best_epoch": self.epoch, "best_value": self.value, "stale": self.stale}

    def load(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Take up what `meta` and `tensors` were."""
        self.tensors = {key: value.clone() for key, value in tensors.items()}
        self.epoch, self.value, self.stale = int(meta["best_epoch"]), meta["best_value"], int(meta["stale"])
