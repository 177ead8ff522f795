"""All steps of a timeline as one node of autograd: a product with each step's own weight.

Step by step in plain torch, each `xs[t]` costs a gradient as large as all steps, and stacking the results one more pass
over them. Here each step's kernel writes its part of one tensor, forward and backward, and the activation follows while
that part is in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trisect.errors import ConfigError
from trisect.ops._finish import Finish, finish_gradient, rows_contiguous, usable
from trisect.ops._products import product, product_gradient
from trisect.ops.memory import alias, empty


def product_steps(x: Tensor, weights: Tensor, *, slope: float | None = None) -> Tensor:
    """leaky_relu(x_t·W_t) of each step t: a batched product of tall matrices with small ones.

    Args:
        x: [steps, rows, inputs].
        weights: [steps, inputs, outputs].
        slope: below zero, at least 0, which is relu; None: no activation.

    Returns:
        [steps, rows, outputs].
    """
    if x.dim() != 3 or weights.dim() != 3 or x.shape[::2] != weights.shape[:2]:
        raise ConfigError(
            f"x has shape {tuple(x.shape)} and weights {tuple(weights.shape)}; give [steps, rows, inputs] and "
            "[steps, inputs, outputs]."
        )
    _check_slope(slope)
    if usable(x, weights):
        result: Tensor = _Product.apply(x, weights, slope)  # type: ignore[no-untyped-call]
        return result
    y = torch.bmm(x, weights)
    return y if slope is None else functional.leaky_relu(y, slope)


def _check_slope(slope: float | None) -> None:
    """A negative slope would change signs, and the gradient reads the sign from the result."""
    if slope is not None and slope < 0.0:
        raise ConfigError(f"slope is {slope}; give 0 (relu) or more.")


class _Before:
    """The gradient of each step before the activation; without one the step's gradient itself."""

    def __init__(self, gradient: Tensor, out: Tensor | None, slope: float | None) -> None:
        self._gradient, self._out, self._finish = gradient, out, Finish.leaky(slope)
        native = out is not None and usable(gradient, out) and gradient.stride(2) == 1
        # one step's worth, read before the next step is asked for
        self._scratch = empty(out.shape[1:], gradient.dtype) if native and out is not None else None

    def at(self, step: int) -> Tensor:
        """Return the gradient of that step, [rows, features], which is valid until the next call."""
        part = self._gradient[step]
        if self._out is None:
            return part
        if self._scratch is not None:
            return finish_gradient(part, self._out[step], self._finish, False, self._scratch)[0]
        if self._finish.slope == 0.0:
            return torch.ops.aten.threshold_backward(part, self._out[step], 0.0)  # type: ignore[no-any-return]
        return torch.ops.aten.leaky_relu_backward(part, self._out[step], self._finish.slope, True)  # type: ignore[no-any-return]


def joined(out: Tensor, frames: Sequence[Tensor]) -> Tensor:
    """Stack the steps' results into `out`; what a kernel wrote there already is not copied.

    Args:
        out: [steps, rows, features], which nobody else reads.
        frames: [rows, features] of each step, or one tensor [steps, rows, features] of all.
    """
    result: Tensor = _Joined.apply([out], *frames)  # type: ignore[no-untyped-call]
    return result


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: list[Tensor], *frames: Tensor) -> Tensor:
        # in a list, since autograd takes a tensor among the arguments for an input
        ctx.one_tensor = len(frames) == 1 and frames[0].dim() == out[0].dim()
        for target, frame in zip(out if ctx.one_tensor else out[0].unbind(), frames, strict=True):
            if target.data_ptr() != frame.data_ptr() or target.stride() != frame.stride():
                target.copy_(frame)
        return alias(out[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (None, gradient) if ctx.one_tensor else (None, *gradient.unbind())


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, slope: float | None) -> Tensor:
        out = empty((x.shape[0], x.shape[1], weights.shape[2]), x.dtype)
        finish = Finish.leaky(slope)
        for step in range(x.shape[0]):
            frame = rows_contiguous(x[step])
            product(frame, weights[step].t(), None, None, finish, False, out[step])
        ctx.slope = slope
        ctx.save_for_backward(x, weights, None if slope is None else out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weights, out = ctx.saved_tensors
        needs_x, needs_weights = ctx.needs_input_grad[:2]
        d_x = empty(x.shape, x.dtype) if needs_x else None
        d_weights = torch.empty_like(weights) if needs_weights else None
        before = _Before(gradient, out, ctx.slope)
        for step in range(x.shape[0]):
            part = rows_contiguous(before.at(step))
            d_weight, _ = product_gradient(
                part,
                None,
                rows_contiguous(x[step]) if needs_weights else None,
                weights[step].t() if needs_x else None,
                Finish.NONE,
                inputs=x.shape[2],
                gx=None if d_x is None else d_x[step],
            )
            if d_weights is not None and d_weight is not None:
                d_weights[step] = d_weight.t()
        return d_x, d_weights, None
