"""All steps of a timeline as one node of autograd: aggregation, and a product with each step's own weight.

Step by step in plain torch, each `xs[t]` costs a gradient as large as all steps, and stacking the results one more pass
over them. Here each step's kernel writes its part of one tensor, forward and backward, and the activation follows while
that part is in the cache.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.ops._finish import Finish, rows_contiguous, usable
from trisect.ops._products import product, product_gradient
from trisect.ops.aggregate import aggregate_into
from trisect.ops.memory import empty


class Snapshots(Protocol):
    """A sequence of adjacencies, which may be made on demand."""

    def __len__(self) -> int:
        """How many steps."""
        ...

    def __getitem__(self, step: int, /) -> Adjacency:
        """The adjacency of a step, counted from the start of the sequence."""
        ...


def aggregate_steps(
    x: Tensor, snapshots: Snapshots, bias: Tensor | None = None, *, slope: float | None = None
) -> Tensor:
    """leaky_relu(Â_t·x_t + bias) of each step t.

    Args:
        x: [steps, columns, features].
        snapshots: the adjacency of each step, all of the same shape, asked for once; its values are constants. They
            are kept where a backward will follow.
        bias: [features].
        slope: below zero, at least 0, which is relu; None: no activation.

    Returns:
        [steps, rows, features].
    """
    if x.dim() != 3 or x.shape[0] != len(snapshots):
        raise ConfigError(
            f"x has shape {tuple(x.shape)} for {len(snapshots)} snapshots; give [steps, columns, features]."
        )
    if bias is not None and tuple(bias.shape) != (x.shape[2],):
        raise ConfigError(f"bias has shape {tuple(bias.shape)}; {(x.shape[2],)} is needed.")
    _check_slope(slope)
    result: Tensor = _Aggregate.apply(x, bias, snapshots, slope)  # type: ignore[no-untyped-call]
    return result


def product_steps(x: Tensor, weights: Tensor, *, slope: float | None = None) -> Tensor:
    """leaky_relu(x_t·W_t) of each step t: a batched product of tall matrices with small ones.

    Args:
        x: [steps, rows, inputs].
        weights: [steps, inputs, outputs].
        slope: as in `aggregate_steps`.

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


def _before(gradient: Tensor, out: Tensor | None, step: int, slope: float | None) -> Tensor:
    """The gradient of one step before the activation."""
    part = gradient[step]
    if out is None or slope is None:
        return part
    if slope == 0.0:
        return torch.ops.aten.threshold_backward(part, out[step], 0.0)  # type: ignore[no-any-return]
    return torch.ops.aten.leaky_relu_backward(part, out[step], slope, True)  # type: ignore[no-any-return]


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, snapshots: Snapshots, slope: float | None) -> Tensor:
        kept = []
        out = empty((0, 0, x.shape[2]), x.dtype, x.device)
        for step in range(len(snapshots)):
            snapshot = snapshots[step]
            if step == 0:
                out = empty((x.shape[0], snapshot.rows, x.shape[2]), x.dtype, x.device)
            if snapshot.shape != (out.shape[1], x.shape[1]):
                raise ConfigError(
                    f"snapshot {step} is {snapshot.rows} x {snapshot.columns}; {out.shape[1]} x {x.shape[1]} is needed."
                )
            aggregate_into(out[step], x[step], snapshot, bias=bias, relu=slope == 0.0)
            if slope:
                functional.leaky_relu_(out[step], slope)
            if any(ctx.needs_input_grad):
                kept.append(snapshot)
        ctx.snapshots, ctx.shape, ctx.slope = kept, x.shape, slope
        ctx.save_for_backward(None if slope is None else out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (out,) = ctx.saved_tensors
        needs_x, needs_bias = ctx.needs_input_grad[:2]
        d_x = empty(ctx.shape, gradient.dtype, gradient.device) if needs_x else None
        d_bias = gradient.new_zeros(gradient.shape[2]) if needs_bias else None
        for step, snapshot in enumerate(ctx.snapshots):
            part = _before(gradient, out, step, ctx.slope)
            if d_bias is not None:
                d_bias += part.sum(0)
            if d_x is not None:
                aggregate_into(d_x[step], part, snapshot.transpose())
        return d_x, d_bias, None, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, slope: float | None) -> Tensor:
        out = empty((x.shape[0], x.shape[1], weights.shape[2]), x.dtype)
        for step in range(x.shape[0]):
            frame = rows_contiguous(x[step])
            product(frame, weights[step].t(), None, None, _finish(frame.shape[0], slope == 0.0), False, out[step])
            if slope:
                functional.leaky_relu_(out[step], slope)
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
        for step in range(x.shape[0]):
            part = rows_contiguous(_before(gradient, out, step, ctx.slope))
            d_weight, _ = product_gradient(
                part,
                None,
                rows_contiguous(x[step]) if needs_weights else None,
                weights[step].t() if needs_x else None,
                _finish(part.shape[0], False),
                inputs=x.shape[2],
                gx=None if d_x is None else d_x[step],
            )
            if d_weights is not None and d_weight is not None:
                d_weights[step] = d_weight.t()
        return d_x, d_weights, None


def _finish(rows: int, relu: bool) -> Finish:
    return Finish.of(relu, 0.0, None, rows)
