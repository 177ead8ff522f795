"""The token through all verbs of a cell: every rank meets every exchange in backward, in the reverse order.

Each verb that moves rows takes the token that the one before it made, and makes a new one; the last is tied to the
cell's output. So autograd reaches every exchange, also where no row of this rank has a loss, and in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# forward(*x) → what it makes of them; backward(its gradients) → the gradient of x, or of each; both outside of autograd
Forward = Callable[..., Sequence[Tensor]]
Backward = Callable[[Sequence[Tensor]], Tensor | Sequence[Tensor | None] | None]


def cross(
    forward: Forward, backward: Backward, token: Tensor, *x: Tensor, always: bool = False
) -> tuple[list[Tensor], Tensor]:
    """Return what `forward` makes of x, as one node of autograd, and the next token.

    Args:
        always: whether `backward` is called where x needs no gradient, too.
    """
    *made, token = _Cross.apply(forward, backward, always, token, *x)  # type: ignore[no-untyped-call]
    return made, token


def tie(out: Tensor, token: Tensor) -> Tensor:
    """Return the output of a cell, whose backward goes through all of the cell's exchanges."""
    if not token.requires_grad or not torch.is_grad_enabled():
        return out
    return cross(lambda out: [out.view_as(out)], itemgetter(0), token, out)[0][0]


class _Cross(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, forward: Forward, backward: Backward, always: bool, token: Tensor, *x: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.back, ctx.needed = backward, always or any(ctx.needs_input_grad[4:])
        return (*forward(*x), torch.zeros(()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *found, token = gradients
        gx = ctx.back(found) if ctx.needed else None
        if gx is None or isinstance(gx, Tensor):
            gx = [gx] * (len(ctx.needs_input_grad) - 4)
        return None, None, None, token, *gx
