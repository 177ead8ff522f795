"""Batch norm in two halves, with relu and dropout behind it: the moments of rows, and rows made of them.

Between the halves stand sums over all ranks, by which the first half's moments become mean and variance. What the
second half's backward knows of a row's gradient waits for the first half's, which writes it once and whole. Nothing but
the input is kept for backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.ops._finish import Finish
from trisect.ops.dropout import dropout
from trisect.ops.memory import empty


@dataclass(eq=False)
class Halves:
    """What the two halves of one batch norm hand each other.

    Attributes:
        rows: of which moments were taken so far.
        later: the second half's share of the gradient of the input, as (gradient of the result before relu and
            dropout, factor), once its backward has been.
    """

    rows: int = 0
    later: tuple[Tensor, Tensor] | None = None


def moments(x: Tensor, shift: Tensor | None, halves: Halves) -> Tensor:
    """Return of each step the sums of x - shift and of its squares, and the number of rows, in float64.

    Args:
        x: [steps, rows, channels]; where rows come in pieces, these come in order.
        shift: float64 [channels], near the mean, which keeps the squares small; None: 0.

    Returns: [steps, 1, 2 · channels + 1].
    """
    first = halves.rows
    halves.rows += x.shape[1]
    result: Tensor = _Moments.apply(halves, first, shift, x)  # type: ignore[no-untyped-call]
    return result


def standardise(
    x: Tensor, centre: Tensor, factor: Tensor, bias: Tensor, halves: Halves | None, finishes: Sequence[Finish]
) -> Tensor:
    """Return dropout(relu((x - centre) · factor + bias)).

    Args:
        x: [steps, rows, channels].
        centre: [steps, 1, channels] of the type of x, a constant; factor, bias: the same in float64.
        halves: of the batch norm, whose moments have x's gradient; None: it goes straight to x.
        finishes: relu and dropout of each step.
    """
    x = x if halves is None else x.detach()
    result: Tensor = _Standardise.apply(halves, finishes, x, centre, factor, bias)  # type: ignore[no-untyped-call]
    return result


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, halves: Halves, first: int, shift: Tensor | None, x: Tensor) -> Tensor:
        ctx.halves, ctx.first = halves, first
        ctx.save_for_backward(x, shift)
        steps, rows, channels = x.shape
        out = torch.empty(steps, 1, 2 * channels + 1, dtype=torch.float64, device=x.device)
        for step in range(steps):
            wide = _shifted(x[step], shift)
            out[step, 0, :channels] = wide.sum(0)
            out[step, 0, channels:-1] = wide.square().sum(0)
        out[..., -1] = rows
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, shift = ctx.saved_tensors
        steps, rows, channels = x.shape
        later, low = ctx.halves.later, ctx.first
        out = empty(x.shape, x.dtype, x.device)
        for step in range(steps):
            wide = _shifted(x[step], shift)
            found = wide * (2.0 * gradient[step, :, channels:-1]) + gradient[step, :, :channels]
            if later is not None:
                found += later[0][step, low : low + rows].double() * later[1][step]
            out[step] = found
        return None, None, None, out


class _Standardise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        halves: Halves | None,
        finishes: Sequence[Finish],
        x: Tensor,
        centre: Tensor,
        factor: Tensor,
        bias: Tensor,
    ) -> Tensor:
        ctx.halves, ctx.finishes = halves, finishes
        ctx.save_for_backward(x, centre, factor, bias)
        out = empty(x.shape, x.dtype, x.device)
        for step, finish in enumerate(finishes):
            y = _made(x[step], centre[step], factor[step], bias[step])
            out[step] = dropout(torch.relu(y) if finish.relu else y, finish.p, finish.noise)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, centre, factor, bias = ctx.saved_tensors
        before = empty(x.shape, x.dtype, x.device)
        g_factor, g_bias = torch.empty_like(factor), torch.empty_like(bias)
        for step, finish in enumerate(ctx.finishes):
            g = dropout(gradient[step], finish.p, finish.noise)
            if finish.relu:
                g = torch.where(_made(x[step], centre[step], factor[step], bias[step]) > 0, g, 0)
            before[step] = g
            wide = g.double()
            g_factor[step] = (wide * (x[step] - centre[step]).double()).sum(0, keepdim=True)
            g_bias[step] = wide.sum(0, keepdim=True)
        if ctx.halves is not None:
            ctx.halves.later = before, factor
            return None, None, None, None, g_factor, g_bias
        own = before.mul_(factor.to(x.dtype)) if ctx.needs_input_grad[2] else None
        return None, None, own, None, g_factor, g_bias


def _shifted(x: Tensor, shift: Tensor | None) -> Tensor:
    return x.double() if shift is None else x.double() - shift


def _made(x: Tensor, centre: Tensor, factor: Tensor, bias: Tensor) -> Tensor:
    return (x - centre) * factor.to(x.dtype) + bias.to(x.dtype)
