"""Linear maps of rows with all that follows them, in few passes over memory.

Each function is one node of autograd. It keeps as little as it can for backward (the result itself, or one bit an
element, tells what relu and dropout let through), and takes its large tensors from the pool of `ops.memory`. Where the
native kernels are missing, or on another device or type, the same is done by plain torch operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trisect.errors import DataError
from trisect.noise import Noise
from trisect.ops._finish import Finish, rows_contiguous, usable
from trisect.ops._products import product, product_gradient
from trisect.ops.dropout import dropout
from trisect.ops.memory import empty


def dense(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    add: Tensor | None = None,
    relu: bool = False,
    p: float = 0.0,
    noise: Noise | None = None,
) -> Tensor:
    """dropout(relu(x·weightᵀ + add + bias)), each row for itself.

    Args:
        x: [rows, inputs].
        weight: [outputs, inputs], with any strides.
        bias: [outputs].
        add: [rows, outputs].
        relu, p, noise: what follows; no dropout without noise.
    """
    rows, outputs = x.shape[0], weight.shape[0]
    check_shape("x", x, rows, weight.shape[1])
    check_shape("add", add, rows, outputs)
    check_shape("bias", bias, outputs)
    finish = Finish.of(relu, p, noise, rows)
    if usable(x, weight, bias, add):
        result: Tensor = _Dense.apply(x, weight, bias, add, finish)  # type: ignore[no-untyped-call]
        return result
    y = functional.linear(x, weight, bias)
    return _plain(y if add is None else y + add, finish)


def branches(x: Tensor, weight: Tensor, weight_root: Tensor, start: int, rows: int) -> tuple[Tensor, Tensor]:
    """Two linear maps of one input: x·weightᵀ of all rows, and x·weight_rootᵀ of `rows` rows from `start`.

    Both gradients of x go into one buffer, which autograd would otherwise add up in passes of its own.

    Shapes: x [columns, inputs]; weight, weight_root [outputs, inputs] → [columns, outputs], [rows, outputs].
    """
    check_shape("x", x, x.shape[0], weight.shape[1])
    check_shape("weight_root", weight_root, *weight.shape)
    if start < 0 or start + rows > x.shape[0]:
        raise DataError(f"rows {start} to {start + rows} are not all among the {x.shape[0]} of x; give fewer rows.")
    if usable(x, weight, weight_root):
        result: tuple[Tensor, Tensor] = _Branches.apply(x, weight, weight_root, start, rows)  # type: ignore[no-untyped-call]
        return result
    return functional.linear(x, weight), functional.linear(x[start : start + rows], weight_root)


def check_shape(name: str, tensor: Tensor | None, *shape: int) -> None:
    """Refuse a wrong shape, since the kernels read raw memory."""
    if tensor is not None and tensor.shape != shape:
        raise DataError(f"{name} has the shape {list(tensor.shape)}; {list(shape)} is needed.")


def _plain(y: Tensor, finish: Finish) -> Tensor:
    return dropout(torch.relu(y) if finish.relu else y, finish.p, finish.noise)


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None, finish: Finish) -> Tensor:
        needs = ctx.needs_input_grad
        x = rows_contiguous(x)
        out, bits = product(x, weight, bias, add, finish, mark=any(needs))
        ctx.save_for_backward(x if needs[1] else None, weight if needs[0] else None, bits)
        ctx.finish, ctx.shape = finish, x.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bits = ctx.saved_tensors
        needs = ctx.needs_input_grad
        gradient = rows_contiguous(gradient)
        gx = empty(ctx.shape, gradient.dtype) if needs[0] else None
        # without relu and dropout the gradient of `add` is the one that came
        masked = empty(gradient.shape, gradient.dtype) if needs[3] and ctx.finish.active else None
        gw, gbias = product_gradient(
            gradient,
            bits,
            x,
            weight,
            ctx.finish,
            inputs=ctx.shape[1],
            gx=gx,
            want_bias=needs[2],
            masked=masked,
        )
        gadd = (gradient if masked is None else masked) if needs[3] else None
        return gx, gw, gbias, gadd, None


class _Branches(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, weight_root: Tensor, start: int, rows: int
    ) -> tuple[Tensor, Tensor]:
        x = rows_contiguous(x)
        ctx.save_for_backward(x, weight, weight_root)
        ctx.range = (start, start + rows)
        ctx.set_materialize_grads(False)
        message, _ = product(x, weight, None, None, Finish.NONE, mark=False)
        root, _ = product(x[start : start + rows], weight_root, None, None, Finish.NONE, mark=False)
        return message, root

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_message: Tensor | None, g_root: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, weight_root = ctx.saved_tensors
        start, stop = ctx.range
        needs = ctx.needs_input_grad
        gx = gw = gw_root = None
        if needs[0]:
            gx = empty(x.shape, x.dtype)
        if g_message is not None:
            gw, _ = product_gradient(
                rows_contiguous(g_message), None, x if needs[1] else None, weight, Finish.NONE, inputs=x.shape[1], gx=gx
            )
        elif gx is not None:
            gx.zero_()
        if g_root is not None:
            gw_root, _ = product_gradient(
                rows_contiguous(g_root),
                None,
                x[start:stop] if needs[2] else None,
                weight_root,
                Finish.NONE,
                inputs=x.shape[1],
                gx=None if gx is None else gx[start:stop],
                accumulate=True,
            )
        return gx, gw, gw_root, None, None
