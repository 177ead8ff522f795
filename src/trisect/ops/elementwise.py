"""Sums, multiples and elu of rows, and sums of gradients, in memory of the pool: torch would take it from the heap."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trisect.ops import memory
from trisect.ops.memory import alias, empty


def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b, of one type; b is as large as a, [rows, channels], or one row of it, [channels]."""
    if not _pooled(a) or b.shape not in (a.shape, a.shape[1:]) or a.dtype != b.dtype:
        return a + b
    result: Tensor = _Add.apply(a, b)  # type: ignore[no-untyped-call]
    return result


def scale(x: Tensor, factor: Tensor) -> Tensor:
    """x · factor, of which there is one: [1]."""
    if not _pooled(x):
        return x * factor
    result: Tensor = _Scale.apply(x, factor)  # type: ignore[no-untyped-call]
    return result


def elu(x: Tensor) -> Tensor:
    """x where it is above 0, and exp(x) - 1 elsewhere."""
    if not _pooled(x):
        return functional.elu(x)
    result: Tensor = _Elu.apply(x)  # type: ignore[no-untyped-call]
    return result


def twice(x: Tensor) -> tuple[Tensor, Tensor]:
    """x for each of two readers, whose gradients are added in memory of the pool; autograd would add them elsewhere."""
    if not x.requires_grad or not _pooled(x):
        return x, x
    both: tuple[Tensor, Tensor] = _Twice.apply(x)  # type: ignore[no-untyped-call]
    return both


def _pooled(x: Tensor) -> bool:
    """Whether a tensor like x comes from the pool; of small ones, a function of our own costs more than it saves."""
    return x.device.type == "cpu" and x.nbytes >= memory.SMALLEST


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.one_row = b.dim() < a.dim()
        return torch.add(a, b, out=empty(a.shape, a.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.sum(0) if ctx.one_row else gradient


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return alias(x), alias(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor | None:
        if first is None or second is None:
            return second if first is None else first
        return torch.add(first, second, out=empty(first.shape, first.dtype))


class _Elu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.aten.elu.out(x, out=empty(x.shape, x.dtype))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        into = empty(gradient.shape, gradient.dtype)
        # alpha, scale and input scale; from the result
        result: Tensor = torch.ops.aten.elu_backward.grad_input(gradient, 1.0, 1.0, 1.0, True, out, grad_input=into)
        return result


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, factor)
        return torch.mul(x, factor, out=empty(x.shape, x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, factor = ctx.saved_tensors
        result = torch.mul(gradient, factor, out=empty(gradient.shape, gradient.dtype))
        return result, None if x is None else (gradient * x).sum().view_as(factor)
