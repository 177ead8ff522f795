"""`gather` and `sum` as nodes of autograd: rows of others as they are, and sums over all rows of a step."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.views.ending import Ending, Product
from trisect.views.spatial import Spatial


def gather_rows(
    spatial: Spatial, call: Hashable, token: Tensor, x: Tensor, weight: Tensor | None
) -> tuple[list[Tensor], Tensor]:
    """Return of each step the rows of x·weightᵀ that own rows read, own rows first, and the next token."""
    *columns, token = _Gather.apply(spatial, call, token, x, weight)  # type: ignore[no-untyped-call]
    return columns, token


def total_rows(spatial: Spatial, call: Hashable, token: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of x over all rows of each step, [steps, channels], and the next token."""
    both: tuple[Tensor, Tensor] = _Total.apply(spatial, call, token, x)  # type: ignore[no-untyped-call]
    return both


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, spatial: Spatial, call: Hashable, token: Tensor, x: Tensor, weight: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.spatial, ctx.call = spatial, call
        needs = ctx.needs_input_grad
        ctx.save_for_backward(x if needs[4] else None, weight if needs[3] else None)
        if weight is not None:
            x = Product(Ending.NONE).forward(x, weight, out=spatial.room(call, x, weight.shape[0]))
        return (*spatial.gather(call, x), torch.zeros(()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        *columns, token = gradients
        needs = ctx.needs_input_grad
        if not needs[3] and not needs[4]:
            return None, None, token, None, None
        own = ctx.spatial.gather_gradient(ctx.call, columns)
        if x is None and weight is None:
            return None, None, token, own if needs[3] else None, None
        gx = None
        if needs[3]:
            gx = torch.empty(*own.shape[:2], weight.shape[1], dtype=own.dtype, device=own.device)
        gw, _ = Product(Ending.NONE).backward(own, (None,), x, weight, gx=gx)
        return None, None, token, gx, gw


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, spatial: Spatial, call: Hashable, token: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.spatial, ctx.call, ctx.rows = spatial, call, x.shape[1]
        return spatial.total(call, x.sum(1)), torch.zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, token: Tensor) -> tuple[Tensor | None, ...]:
        own = ctx.spatial.total_gradient(ctx.call, gradient)
        return None, None, token, own[:, None].expand(-1, ctx.rows, -1)
