"""`gather` and `sum` as nodes of autograd: rows of others as they are, and sums over all rows of a step."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.ops.memory import empty
from trisect.views.ending import Ending, Product
from trisect.views.halo import Halo
from trisect.views.rows import same_rows
from trisect.views.spatial import Spatial


def gather_rows(
    spatial: Spatial, call: Hashable, token: Tensor, x: Tensor, weight: Tensor | None
) -> tuple[list[Tensor], Tensor]:
    """Return of each step the rows of x·weightᵀ that own rows read, own rows first, and the next token."""
    *columns, token = _Gather.apply(spatial, call, token, x, weight)  # type: ignore[no-untyped-call]
    return columns, token


def scatter_rows(spatial: Spatial, call: Hashable, token: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each own row the sum of what all parts made for it, [rows, channels], and the next token."""
    both: tuple[Tensor, Tensor] = _Scatter.apply(spatial, call, token, near)  # type: ignore[no-untyped-call]
    return both


def total_rows(spatial: Spatial, call: Hashable, token: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum over all ranks of sums over own rows, [steps, pieces, channels], and the next token."""
    both: tuple[Tensor, Tensor] = _Total.apply(spatial, call, token, x)  # type: ignore[no-untyped-call]
    return both


@dataclass(eq=False)
class Flight:
    """Rows of a gather, and later their gradients, while they are on their way.

    Attributes:
        away, back: what `Halo.depart` and `Halo.give_back` gave.
        trained: whether gradients are wanted.
    """

    halo: Halo
    call: Hashable
    away: Any = None
    back: Any = None
    trained: bool = False


def depart(flight: Flight, token: Tensor, x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Let the rows of x·weightᵀ go that others read; return own ones, [steps, rows, channels], and the next token."""
    both: tuple[Tensor, Tensor] = _Depart.apply(flight, token, x, weight)  # type: ignore[no-untyped-call]
    return both


def arrive(flight: Flight, token: Tensor, own: Tensor) -> tuple[list[Tensor], Tensor]:
    """Wait; return of each step the rows that own rows read, own rows first, and the next token."""
    *columns, token = _Arrive.apply(flight, token, own)  # type: ignore[no-untyped-call]
    return columns, token


class _Depart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flight: Flight, token: Tensor, x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        needs, halo = ctx.needs_input_grad, flight.halo
        ctx.flight, flight.trained = flight, needs[2] or needs[3]
        ctx.save_for_backward(x if needs[3] else None, weight if needs[2] else None)
        if weight is not None:
            x = Product(Ending.NONE).forward(x, weight, out=halo.room(flight.call, x, weight.shape[0]))
        flight.away = halo.depart(flight.call, x)
        # no view of the board, whose other rows are written while these are read
        return same_rows(flight.away[0], 0, x.shape[0] * x.shape[1]).view(x.shape), torch.zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, token: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        flight, needs = ctx.flight, ctx.needs_input_grad
        if not flight.trained:
            return None, token, None, None
        own = flight.halo.complete(gradient.clone(), flight.back)
        if x is None and weight is None:
            return None, token, own if needs[2] else None, None
        gx = empty((*own.shape[:2], weight.shape[1]), own.dtype, own.device) if needs[2] else None
        gw, _ = Product(Ending.NONE).backward(own, (None,), x, weight, gx=gx)
        return None, token, gx, gw


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flight: Flight, token: Tensor, own: Tensor) -> tuple[Tensor, ...]:
        ctx.flight, ctx.rows = flight, own.shape[1]
        return (*flight.halo.arrived(flight.away), torch.zeros(()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *columns, token = gradients
        if not ctx.flight.trained:
            return None, token, None
        ctx.flight.back = ctx.flight.halo.give_back(ctx.flight.call, columns)
        return None, token, torch.stack([column[: ctx.rows] for column in columns])


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
            gx = empty((*own.shape[:2], weight.shape[1]), own.dtype, own.device)
        gw, _ = Product(Ending.NONE).backward(own, (None,), x, weight, gx=gx)
        return None, None, token, gx, gw


class _Scatter(torch.autograd.Function):
    """The transpose of `_Gather`: what the one does forward, the other does backward."""

    @staticmethod
    def forward(ctx: Any, spatial: Spatial, call: Hashable, token: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
        ctx.spatial, ctx.call = spatial, call
        return spatial.gather_gradient(call, [near])[0], torch.zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, token: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.needs_input_grad[3]:
            return None, None, token, None
        return None, None, token, ctx.spatial.gather(ctx.call, gradient[None].contiguous())[0]


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, spatial: Spatial, call: Hashable, token: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.spatial, ctx.call, ctx.pieces = spatial, call, x.shape[1]
        return spatial.total(call, x), torch.zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, token: Tensor) -> tuple[Tensor | None, ...]:
        own = ctx.spatial.total_gradient(ctx.call, gradient)
        return None, None, token, own[:, None].expand(-1, ctx.pieces, -1)
