"""Initial parameters as a function of (seed, layer index), and `Drawn`: modules that draw theirs.

A stage that builds only its own layers draws the values that the whole model would have had. Numbers are drawn in
float64 on the CPU and then rounded, so that neither precision nor device changes them beyond rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from trisect.noise import mix64

Start = Callable[[Tensor], object]


@contextmanager
def seeded(seed: int, index: int) -> Iterator[None]:
    """Seed torch's generator for the parameters of one layer, and restore it afterwards."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices):
        torch.manual_seed(mix64(mix64(seed & ((1 << 64) - 1)) ^ (index + 1)) >> 1)
        yield


@torch.no_grad()
def uniform_(parameter: Tensor, bound: float) -> None:
    """Fill with numbers between -bound and bound; a parameter on the `meta` device has none."""
    if not parameter.is_meta:
        parameter.copy_((2.0 * torch.rand(parameter.shape, dtype=torch.float64, device="cpu") - 1.0) * bound)


def glorot_(parameter: Tensor) -> None:
    """Fill uniformly from ±sqrt(6 / (fan_in + fan_out)) over the last two dims (Glorot & Bengio 2010)."""
    uniform_(parameter, math.sqrt(6.0 / (parameter.shape[-2] + parameter.shape[-1])))


def fan_in_(parameter: Tensor, fan_in: int | None = None) -> None:
    """Fill uniformly from ±1/sqrt(fan_in), by default that of the last dim, as torch.nn.Linear has it."""
    uniform_(parameter, 1.0 / math.sqrt(max(parameter.shape[-1] if fan_in is None else fan_in, 1)))


class Drawn(nn.Module):
    """A module whose parameters are drawn when they are made, and anew by `reset_parameters`."""

    def __init__(self) -> None:
        super().__init__()
        self._starts: dict[str, Start] = {}

    def drawn(self, name: str, *shape: int, start: Start = fan_in_) -> nn.Parameter:
        """Return a new parameter.

        Args:
            name: of the attribute that it becomes.
            start: fills it, from torch's generator.
        """
        self._starts.pop(name, None)  # in the order in which they are drawn
        self._starts[name] = start
        parameter = nn.Parameter(torch.empty(shape))
        start(parameter)
        return parameter

    def reset_parameters(self) -> None:
        """Draw the parameters anew, from torch's generator: its own, and those of the modules inside."""
        for name, start in self._starts.items():
            start(getattr(self, name))
        _reset_inside(self)


def _reset_inside(module: nn.Module) -> None:
    """Draw the parameters of the modules inside anew, those in lists and the like among them."""
    for inner in module.children():
        reset: Callable[[], object] = getattr(inner, "reset_parameters", partial(_reset_inside, inner))
        reset()
