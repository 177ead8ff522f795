"""`KeptRuns`: features of runs of steps that every epoch reads, kept as far as a budget reaches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class KeptRuns:
    """Tensors [steps, …] of runs that are asked for again in every epoch, kept as far as the budget reaches."""

    def __init__(self, budget: int) -> None:
        self._left = budget
        self._runs: list[tuple[str, range, Tensor]] = []

    def get(self, name: str, steps: range, make: Callable[[], Tensor]) -> Tensor:
        """Give the tensor of these steps, which may be a part of a run that is kept."""
        for kept, run, tensor in self._runs:
            if kept == name and run.start <= steps.start and steps.stop <= run.stop:
                return tensor[steps.start - run.start : steps.stop - run.start]
        made = make()
        if made.nbytes <= self._left:
            self._left -= made.nbytes
            self._runs.append((name, steps, made))
        return made


def features_of(x: Tensor, steps: range, dtype: torch.dtype, device: torch.device, kept: KeptRuns) -> Tensor:
    """Give features of some steps on a device: [rows, features], or [steps, rows, features] where x has steps."""
    fixed = x.dim() == 2
    if x.device == device:
        return (x if fixed else x[steps.start : steps.stop]).to(dtype)
    if fixed:
        return kept.get("fixed", range(1), lambda: x[None].to(device, dtype))[0]
    return kept.get("x", steps, lambda: x[steps.start : steps.stop].to(device, dtype))
