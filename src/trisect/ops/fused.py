"""Whole layers in few passes over memory: a linear map or an aggregation with all that follows it.

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
from trisect.graph.adjacency import Adjacency
from trisect.noise import Noise
from trisect.ops._finish import Finish, finish_gradient, rows_contiguous, usable
from trisect.ops._products import product, product_gradient
from trisect.ops.dropout import dropout
from trisect.ops.memory import empty
from trisect.ops.message import Message, as_message
from trisect.ops.spmm.aggregate import aggregate
from trisect.ops.spmm.collect import Collector
from trisect.ops.spmm.sums import aggregate_into


def dense(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    add: Tensor | None = None,
    relu: bool = False,
    p: float = 0.0,
    noise: Noise | None = None,
    into: Tensor | None = None,
    theta: float = 1.0,
) -> Tensor:
    """dropout(relu(x·wᵀ + add + bias)) with w = theta·weight + (1-theta)·I, each row for itself.

    Args:
        x: [rows, inputs].
        weight: [outputs, inputs], with any strides; square where theta (GCNII's θ) is not 1.
        bias: [outputs].
        add: [rows, outputs].
        relu, p, noise: what follows; no dropout without noise.
        into: [rows, outputs], where a native kernel writes the result; it is then the tensor that is returned.
    """
    rows, outputs = x.shape[0], weight.shape[0]
    check_into(into, rows, outputs)
    check_shape("x", x, rows, weight.shape[1])
    if theta != 1.0:
        check_shape("weight", weight, outputs, outputs)
    check_shape("add", add, rows, outputs)
    check_shape("bias", bias, outputs)
    finish = Finish.of(relu, p, noise, rows)
    if usable(x, weight, bias, add, into):
        result: Tensor = _Dense.apply(x, weight, bias, add, finish, [into], theta)  # type: ignore[no-untyped-call]
        return result
    y = functional.linear(x, _mixed(weight, theta), bias)
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


def convolve(
    message: Tensor | Message,
    adjacency: Adjacency,
    *,
    add: Tensor | None = None,
    bias: Tensor | None = None,
    relu: bool = False,
    p: float = 0.0,
    noise: Noise | None = None,
    into: Tensor | None = None,
) -> Tensor:
    """dropout(relu(Â·message + add + bias)), in one pass over the edges.

    Shapes: message [columns, features]; add, into [rows, features]; bias [features] → [rows, features]. A native
    kernel writes the result to `into`, which is then the tensor that is returned.
    """
    message = as_message(message)
    rows, features = adjacency.rows, message.rows.shape[1]
    check_shape("message", message.rows, adjacency.columns, features)
    check_into(into, rows, features)
    check_shape("add", add, rows, features)
    check_shape("bias", bias, features)
    finish = Finish.of(relu, p, noise, rows)
    if usable(message.rows, add, bias, into):
        result: Tensor = _Convolve.apply(  # type: ignore[no-untyped-call]
            message.rows, add, bias, adjacency, finish, message.sink, [message.last_rows, into]
        )
        return result
    y = aggregate(message, adjacency)
    y = y if add is None else y + add
    return _plain(y if bias is None else y + bias, finish)


def convolve_dense(
    x: Tensor | Message,
    adjacency: Adjacency,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    add: Tensor | None = None,
    alpha: float = 0.0,
    relu: bool = False,
    p: float = 0.0,
    noise: Noise | None = None,
    into: Tensor | None = None,
    theta: float = 1.0,
) -> Tensor:
    """dropout(relu(((1-alpha)·Â·x + alpha·add)·wᵀ + bias)): the aggregation first, then the map of `dense`.

    Args:
        x: [columns, inputs], or a message of such rows.
        weight: [outputs, inputs], with any strides.
        add: [rows, inputs]; needed where `alpha` (GCNII's α) is not 0.
        into: [rows, outputs], where a native kernel writes the result; it is then the tensor that is returned.
    """
    rows, (outputs, inputs) = adjacency.rows, weight.shape
    message = as_message(x)
    check_shape("x", message.rows, adjacency.columns, inputs)
    if theta != 1.0:
        check_shape("weight", weight, outputs, outputs)
    check_into(into, rows, outputs)
    check_shape("add", add, rows, inputs)
    check_shape("bias", bias, outputs)
    finish = Finish.of(relu, p, noise, rows)
    if add is None:
        alpha = 0.0
    if usable(message.rows, weight, bias, add, into):
        result: Tensor = _ConvolveDense.apply(  # type: ignore[no-untyped-call]
            *(message.rows, weight, bias, add, adjacency, alpha, finish, message.sink, [message.last_rows, into]), theta
        )
        return result
    support = aggregate(message, adjacency)
    if add is not None:
        support = torch.lerp(support, add, alpha)
    return _plain(functional.linear(support, _mixed(weight, theta), bias), finish)


def check_shape(name: str, tensor: Tensor | None, *shape: int) -> None:
    """Refuse a wrong shape, since the kernels read raw memory."""
    if tensor is not None and tensor.shape != shape:
        raise DataError(f"{name} has the shape {list(tensor.shape)}; {list(shape)} is needed.")


def check_into(into: Tensor | None, *shape: int) -> None:
    """Refuse a tensor for the result that has a wrong shape, or whose rows are not contiguous."""
    check_shape("into", into, *shape)
    if into is not None and into.shape[1] > 1 and into.stride(1) != 1:
        raise DataError(f"into has a stride of {into.stride(1)} within a row; give a tensor of contiguous rows.")


def _mixed(weight: Tensor, theta: float) -> Tensor:
    if theta == 1.0:
        return weight
    return torch.lerp(torch.eye(weight.shape[0], dtype=weight.dtype, device=weight.device), weight, theta)


def _plain(y: Tensor, finish: Finish) -> Tensor:
    return dropout(torch.relu(y) if finish.relu else y, finish.p, finish.noise)


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        add: Tensor | None,
        finish: Finish,
        into: list[Tensor | None],
        theta: float,
    ) -> Tensor:
        needs = ctx.needs_input_grad
        x = rows_contiguous(x)
        # in a list, since autograd takes a tensor among the arguments for an input
        out, bits = product(x, weight, bias, add, finish, mark=any(needs), out=into[0], theta=theta)
        ctx.save_for_backward(x if needs[1] else None, weight if needs[0] else None, bits)
        ctx.finish, ctx.theta = finish, theta
        ctx.shape = x.shape
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
            theta=ctx.theta,
        )
        gadd = (gradient if masked is None else masked) if needs[3] else None
        return gx, gw, gbias, gadd, None, None, None


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


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        message: Tensor,
        add: Tensor | None,
        bias: Tensor | None,
        adjacency: Adjacency,
        finish: Finish,
        sink: Collector | None,
        others: list[Tensor | None],
    ) -> Tensor:
        # in a list, since autograd takes a tensor among the arguments for an input
        last_rows, into = others
        out = empty((adjacency.rows, message.shape[1]), message.dtype) if into is None else into
        relu, p, noise = finish.relu, finish.p, finish.noise
        aggregate_into(out, message, adjacency, add=add, bias=bias, relu=relu, p=p, noise=noise, last_rows=last_rows)
        ctx.save_for_backward(out if finish.relu and any(ctx.needs_input_grad) else None)
        ctx.adjacency, ctx.sink = adjacency, sink
        ctx.finish = finish
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad
        staging = ctx.sink.staging(ctx.adjacency) if needs[0] and ctx.sink is not None else None
        gradient, gbias = finish_gradient(
            rows_contiguous(gradient), ctx.saved_tensors[0], ctx.finish, needs[2], staging
        )
        gmessage = None
        if needs[0] and ctx.sink is not None:
            ctx.sink.add(gradient, ctx.adjacency)
        elif needs[0]:
            gmessage = empty((ctx.adjacency.columns, gradient.shape[1]), gradient.dtype)
            aggregate_into(gmessage, gradient, ctx.adjacency.transpose())
        return gmessage, gradient if needs[1] else None, gbias, None, None, None, None


class _ConvolveDense(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        add: Tensor | None,
        adjacency: Adjacency,
        alpha: float,
        finish: Finish,
        sink: Collector | None,
        others: list[Tensor | None],
        theta: float,
    ) -> Tensor:
        needs, (last_rows, into) = ctx.needs_input_grad, others
        support = empty((adjacency.rows, x.shape[1]), x.dtype)
        aggregate_into(support, x, adjacency, alpha=1.0 - alpha, add=add, beta=alpha, last_rows=last_rows)
        out, bits = product(support, weight, bias, None, finish, mark=any(needs), out=into, theta=theta)
        ctx.save_for_backward(support if needs[1] else None, weight if needs[0] or needs[3] else None, bits)
        ctx.adjacency, ctx.sink = adjacency, sink
        ctx.alpha, ctx.theta = alpha, theta
        ctx.finish = finish
        ctx.inputs = x.shape[1]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        support, weight, bits = ctx.saved_tensors
        needs = ctx.needs_input_grad
        gradient = rows_contiguous(gradient)
        alpha, sink, shape = ctx.alpha, ctx.sink, (gradient.shape[0], ctx.inputs)
        g_support = sink.staging(ctx.adjacency) if needs[0] and sink is not None else None
        if g_support is None and (needs[0] or needs[3]):
            g_support = empty(shape, gradient.dtype)
        # the gradient of `add` is that of the sums but for a factor: one tensor does for both where no sink keeps one
        both = needs[3] and sink is None and alpha != 0.0
        gadd = None
        if needs[3]:
            gadd = g_support if both else empty(shape, gradient.dtype)
        gw, gbias = product_gradient(
            gradient,
            bits,
            support,
            weight,
            ctx.finish,
            inputs=ctx.inputs,
            gx=g_support,
            want_bias=needs[2],
            theta=ctx.theta,
            factor=alpha if both else 1.0 - alpha,
            more=None if both else gadd,
            more_factor=alpha,
        )
        gx = None
        if needs[0] and sink is not None:
            sink.add(g_support, ctx.adjacency)
        elif needs[0] and g_support is not None:
            gx = empty((ctx.adjacency.columns, ctx.inputs), gradient.dtype)
            aggregate_into(gx, g_support, ctx.adjacency.transpose(), alpha=(1.0 - alpha) / alpha if both else 1.0)
        return gx, gw, gbias, gadd, None, None, None, None, None, None
