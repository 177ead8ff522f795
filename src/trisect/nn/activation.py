"""Activations by name. Those with random slopes draw them from the noise of the vertex: no cut changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn import functional

from trisect import ops
from trisect.noise import Noise, random_bits

if TYPE_CHECKING:
    from trisect.views.view import View

Activation = Literal["none", "relu", "elu", "gelu", "tanh", "leaky", "rrelu"]

RRELU_LOWER, RRELU_UPPER = 1.0 / 8.0, 1.0 / 3.0
RRELU_MEAN = (RRELU_LOWER + RRELU_UPPER) / 2.0


_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "elu": ops.elu,
    "gelu": functional.gelu,
    "tanh": torch.tanh,
}


def activate(x: Tensor, activation: Activation, noise: Noise | None = None) -> Tensor:
    """Apply the named function to x [rows, features].

    `leaky` has the mean slope of RReLU (11/48) below zero; `rrelu` draws a slope from 1/8 .. 1/3 for each element in
    training and is `leaky` in evaluation.
    """
    if activation in _PLAIN:
        return _PLAIN[activation](x)
    if activation == "rrelu" and noise is not None:
        bits = random_bits(noise.key("rrelu"), noise.vertex_ids(x.shape[0], x.device), x.shape[1])
        slope = RRELU_LOWER + (RRELU_UPPER - RRELU_LOWER) * (bits.to(torch.float64) / 2.0**32)
        return torch.where(x >= 0, x, x * slope.to(x.dtype))
    return functional.leaky_relu(x, RRELU_MEAN)


def activate_rows(x: Tensor, activation: Activation, p: float, g: View) -> Tensor:
    """Return dropout(activation(x)) of x [..., rows, channels], with the random numbers of the view's rows."""
    noises = g.chance("slopes") if activation == "rrelu" else None
    if noises is None:
        return g.dropout(activate(x, activation), p)
    return g.by_step(lambda rows, noise: ops.dropout(activate(rows, activation, noise), p, noise), x, noises)


def slope_of(activation: Activation, *, training: bool) -> float | None:
    """Return the slope below zero of an activation that kernels do as a leaky relu; None: it is another one."""
    if activation == "relu":
        return 0.0
    return RRELU_MEAN if activation == "leaky" or (activation == "rrelu" and not training) else None
