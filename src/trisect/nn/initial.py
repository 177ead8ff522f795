"""Initial parameters as a function of (seed, layer index).

A stage that builds only its own layers draws the values that the whole model would have had. Numbers are drawn in
float64 on the CPU and then rounded, so that neither precision nor device changes them beyond rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trisect.noise import mix64


def generator_for(seed: int, index: int) -> torch.Generator:
    """Make the generator of one layer's parameters."""
    generator = torch.Generator(device="cpu")
    generator.manual_seed(mix64(mix64(seed & ((1 << 64) - 1)) ^ (index + 1)) >> 1)
    return generator


@torch.no_grad()
def uniform_(parameter: Tensor, bound: float, generator: torch.Generator | None) -> None:
    """Fill with numbers between -bound and bound; a parameter on the `meta` device has none."""
    if parameter.is_meta:  # an outline of a wide layer draws nothing
        return
    drawn = torch.rand(parameter.shape, dtype=torch.float64, device="cpu", generator=generator)
    parameter.copy_((2.0 * drawn - 1.0) * bound)


def glorot_(parameter: Tensor, generator: torch.Generator | None) -> None:
    """Fill uniformly from ±sqrt(6 / (fan_in + fan_out)) over the last two dims (Glorot & Bengio 2010)."""
    uniform_(parameter, math.sqrt(6.0 / (parameter.shape[-2] + parameter.shape[-1])), generator)


def fan_in_(parameter: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Fill uniformly from ±1/sqrt(fan_in), as torch.nn.Linear has it."""
    uniform_(parameter, 1.0 / math.sqrt(max(fan_in, 1)), generator)


@torch.no_grad()
def fill_(parameter: Tensor | None, value: float) -> None:
    """Fill with one value; None and parameters on the `meta` device are left alone."""
    if parameter is not None and not parameter.is_meta:
        parameter.fill_(value)
