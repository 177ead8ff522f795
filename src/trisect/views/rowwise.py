"""Products of frames, each row for itself, as a node of autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.ops.memory import empty
from trisect.views.ending import Ending, Product


def dense(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    add: Tensor | None = None,
    ending: Ending = Ending.NONE,
    theta: float = 1.0,
) -> Tensor:
    """Return ending(x·wᵀ + add + bias), w = theta·weight + (1-theta)·I.

    Shapes: x [rows, inputs] or [steps, rows, inputs]; weight [outputs, inputs]; add [..., rows, outputs].
    """
    equal = x.dim() == 3 and len(x) > 1 and x.stride(0) == 0
    single = x[:1] if equal and add is None and ending.noises is None else x
    result: Tensor = _Dense.apply(single, weight, bias, add, ending, theta)  # type: ignore[no-untyped-call]
    return result if single is x else result.expand(len(x), -1, -1)


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        add: Tensor | None,
        ending: Ending,
        theta: float,
    ) -> Tensor:
        ctx.flat, needs, product = x.dim() == 2, ctx.needs_input_grad, Product(ending, theta)
        if ctx.flat:
            x, add = x[None], None if add is None else add[None]
        out = product.forward(x, weight, bias, add, mark=any(needs))
        ctx.save_for_backward(x if needs[1] else None, weight if needs[0] else None, *product.kept)
        ctx.ending, ctx.theta, ctx.shape = ending, theta, x.shape
        return out[0] if ctx.flat else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *kept = ctx.saved_tensors
        gradient, needs = gradient[None] if ctx.flat else gradient, ctx.needs_input_grad
        gx = empty(ctx.shape, gradient.dtype, gradient.device) if needs[0] else None
        # without relu and dropout the gradient of `add` is the one that came
        masked = None
        if needs[3] and ctx.ending.active:
            masked = empty(gradient.shape, gradient.dtype, gradient.device)
        gw, gbias = Product(ctx.ending, ctx.theta).backward(
            gradient, kept, x, weight, gx=gx, want_bias=needs[2], masked=masked
        )
        gadd = None
        if needs[3]:
            gadd = gradient if masked is None else masked
        if ctx.flat:
            gx, gadd = (None if g is None else g[0] for g in (gx, gadd))
        return gx, gw, gbias, gadd, None, None
