"""`aggregate` sums, averages or takes the largest of the rows that each row reads. Every spatial layer uses it."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.errors import ConfigError, DataError
from trisect.graph.adjacency import Adjacency
from trisect.native.library import INT, INT64, POINTER, Kernel, pointer, threads
from trisect.ops.memory import empty
from trisect.ops.spmm._aggregate_torch import max_backward_torch, max_torch, sum_torch
from trisect.ops.spmm.sums import KINDS, adjacent, aggregate_into, native

Reduce = Literal["sum", "mean", "max"]

_MAX = {dtype: Kernel(f"trisect_max_{kind}", *[POINTER] * 7, *[INT64] * 5, INT) for dtype, (kind, _) in KINDS.items()}
_MAX_BACKWARD = {
    dtype: Kernel(f"trisect_max_backward_{kind}", *[POINTER] * 9, *[INT64] * 5, INT)
    for dtype, (kind, _) in KINDS.items()
}


def aggregate(x: Tensor, adjacency: Adjacency, reduce: Reduce = "sum") -> Tensor:
    """For each row of the block, the weighted sum (mean, max) of the rows of x that it reads.

    The gradient reaches x; the values of the adjacency are constants. Rows without entries give 0. On the CPU the
    result does not depend on the number of threads.

    Args:
        x: [columns, features].
        reduce: `sum` (values are weights), `mean` (of the weighted rows, by the number of entries), `max` (the gradient
            goes to the first of equal entries).

    Returns:
        [rows, features].
    """
    _check(x, adjacency)
    if reduce == "sum":
        return _sum(x, adjacency, None, None)
    if reduce == "mean":
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        return _sum(x, adjacency, adjacency.inverse_counts(wide), None)
    if reduce == "max":
        result: Tensor = _Max.apply(x, adjacency)  # type: ignore[no-untyped-call]
        return result
    raise ConfigError(f"reduce is {reduce!r}; choose sum, mean or max.")


def _sum(x: Tensor, adjacency: Adjacency, row_scale: Tensor | None, column_scale: Tensor | None) -> Tensor:
    result: Tensor = _Sum.apply(x, adjacency, row_scale, column_scale)  # type: ignore[no-untyped-call]
    return result


class _Sum(torch.autograd.Function):
    """diag(row_scale) · A · diag(column_scale) · x; its backward is itself with the transposed matrix."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, adjacency: Adjacency, row_scale: Tensor | None, column_scale: Tensor | None
    ) -> Tensor:
        ctx.adjacency, ctx.scales = adjacency, (row_scale, column_scale)
        if not native(x):
            return sum_torch(x, adjacency, row_scale, column_scale)
        out = empty((adjacency.rows, x.shape[1]), x.dtype, x.device)
        aggregate_into(out, x, adjacency, row_scale=row_scale, column_scale=column_scale)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        row_scale, column_scale = ctx.scales
        return _sum(gradient, ctx.adjacency.transpose(), column_scale, row_scale), None, None, None


class _Max(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adjacency: Adjacency) -> Tensor:
        ctx.adjacency = adjacency
        if not native(x):
            out, winner = max_torch(x, adjacency)
            ctx.save_for_backward(winner)
            return out
        rows, features = adjacency.checked().rows, x.shape[1]
        out, winner = empty((rows, features), x.dtype), empty((rows, features), torch.int32)
        x = x if adjacent(x) else x.contiguous()
        starts, ends = adjacency.starts.contiguous(), adjacency.ends.contiguous()
        values = adjacency.values_as(KINDS[x.dtype][1])
        _MAX[x.dtype](
            *(starts.data_ptr(), ends.data_ptr(), adjacency.indices.data_ptr(), pointer(values)),
            *(x.data_ptr(), out.data_ptr(), winner.data_ptr()),
            *(rows, features, adjacency.column_base, x.stride(0), features, threads()),
        )
        ctx.save_for_backward(winner)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (winner,) = ctx.saved_tensors
        adjacency: Adjacency = ctx.adjacency
        turned = adjacency.transpose(positions=True)
        if not native(gradient) or turned.positions is None:
            return max_backward_torch(gradient, winner, adjacency), None
        rows, features = turned.rows, gradient.shape[1]
        out = empty((rows, features), gradient.dtype)
        gradient = gradient if adjacent(gradient) else gradient.contiguous()
        starts, ends = turned.starts.contiguous(), turned.ends.contiguous()
        origins, positions = adjacency.starts.contiguous(), turned.long_positions()
        values = turned.values_as(KINDS[gradient.dtype][1])
        _MAX_BACKWARD[gradient.dtype](
            *(starts.data_ptr(), ends.data_ptr(), turned.indices.data_ptr(), positions.data_ptr()),
            *(origins.data_ptr(), pointer(values), gradient.data_ptr(), winner.data_ptr(), out.data_ptr()),
            *(rows, features, turned.column_base, gradient.stride(0), features, threads()),
        )
        return out, None


def _check(x: Tensor, adjacency: Adjacency) -> None:
    if x.dim() != 2 or x.shape[0] != adjacency.columns:
        raise DataError(
            f"x has the shape {tuple(x.shape)}; an adjacency of {adjacency.columns} columns reads "
            f"[{adjacency.columns}, features]."
        )
    if not x.is_floating_point():
        raise DataError(f"x has the type {x.dtype}; convert it to a floating type first.")
    if adjacency.values is not None and adjacency.values.requires_grad:
        raise DataError(
            "The values of the adjacency require a gradient, which aggregate does not give; detach them, or use "
            "ops.attend for weights that are learnt."
        )
    if x.device != adjacency.device:
        raise DataError(f"x is on {x.device} and the adjacency on {adjacency.device}; move one of them.")
