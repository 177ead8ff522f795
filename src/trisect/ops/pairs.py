"""Scores of pairs of rows, by a small network or by a product; nothing as large as the pairs' rows is ever made."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trisect.errors import DataError
from trisect.native.library import INT, INT64, POINTER, Kernel, pointer, threads
from trisect.ops._finish import KINDS, Finish, rows_contiguous, usable
from trisect.ops._products import product_gradient
from trisect.ops.fused import check_shape, dense
from trisect.ops.memory import empty

_SCORES = {
    dtype: Kernel(
        f"trisect_pair_scores_{kind}",
        *(POINTER, POINTER, INT64, INT64, POINTER, POINTER, INT64, POINTER, POINTER, INT64, POINTER, INT),
        returns=INT,
    )
    for dtype, kind in KINDS.items()
}
_GRADIENTS = {
    dtype: Kernel(
        f"trisect_pair_gradients_{kind}",
        *(POINTER, POINTER, INT64, INT64, POINTER, POINTER, INT64, POINTER, INT64),
        *(POINTER, POINTER, POINTER, POINTER, INT),
        returns=INT,
    )
    for dtype, kind in KINDS.items()
}


def score_pairs(
    z: Tensor, src: Tensor, dst: Tensor, weight_in: Tensor, bias_in: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """weight·relu(weight_in·[z_src ‖ z_dst] + bias_in) + bias.

    The first product is taken of each half once a row, and again in backward; a pair costs the sum of two rows. All
    sums are in a fixed order.

    Shapes: z [rows, channels]; src, dst int64 [pairs]; weight_in [hidden, 2 · channels], bias_in [hidden]; weight
    [outputs, hidden], bias [outputs] → [pairs, outputs].
    """
    src, dst = _ends(z, src, dst)
    hidden, outputs = weight_in.shape[0], weight.shape[0]
    check_shape("weight_in", weight_in, hidden, 2 * z.shape[1])
    check_shape("bias_in", bias_in, hidden)
    check_shape("weight", weight, outputs, hidden)
    check_shape("bias", bias, outputs)
    if usable(z, weight_in, bias_in, weight, bias):
        result: Tensor = _ScorePairs.apply(z, src, dst, weight_in, bias_in, weight, bias)  # type: ignore[no-untyped-call]
        return result
    left, right = _halves(z, weight_in, bias_in)
    inner = take_rows(left, src) + take_rows(right, dst)
    return functional.linear(inner.relu_(), weight, bias)


def multiply_pairs(left: Tensor, right: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """⟨left_src, right_dst⟩ of each pair: left, right [rows, channels] → [pairs]. All sums are in a fixed order."""
    src, dst = _ends(left, src, dst)
    check_shape("right", right, *left.shape)
    if usable(left, right):
        result: Tensor = _MultiplyPairs.apply(left, right, src, dst)  # type: ignore[no-untyped-call]
        return result
    return (take_rows(left, src) * take_rows(right, dst)).sum(1)


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows], whose backward adds in a fixed order (that of plain indexing does not, on several threads)."""
    return functional.embedding(rows, x)


def _ends(rows: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
    if rows.dim() != 2:
        raise DataError(f"the rows of pairs have the shape {list(rows.shape)}; [rows, channels] is needed.")
    if src.shape != dst.shape or src.dim() != 1:
        raise DataError(f"src has the shape {list(src.shape)} and dst {list(dst.shape)}; give a vector of rows each.")
    if src.device != rows.device or dst.device != rows.device:
        raise DataError(f"src is on {src.device}, dst on {dst.device} and rows on {rows.device}; bring all to one.")
    return src.long().contiguous(), dst.long().contiguous()


def _halves(z: Tensor, weight_in: Tensor, bias_in: Tensor) -> tuple[Tensor, Tensor]:
    """The products of the first layer with both halves of its weight, [rows, hidden] each."""
    channels = z.shape[1]
    return dense(z, weight_in[:, :channels], bias_in), dense(z, weight_in[:, channels:])


class _ScorePairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        src: Tensor,
        dst: Tensor,
        weight_in: Tensor,
        bias_in: Tensor,
        weight: Tensor,
        bias: Tensor,
    ) -> Tensor:
        z = rows_contiguous(z)
        ctx.save_for_backward(z, src, dst, weight_in, bias_in, weight)
        return _scores(*_halves(z, weight_in, bias_in), src, dst, weight.contiguous(), bias.contiguous())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        z, src, dst, weight_in, bias_in, weight = ctx.saved_tensors
        channels, result = z.shape[1], empty(z.shape, z.dtype)
        left, right = _halves(z, weight_in, bias_in)
        d_left, d_right, d_weight = _gradients(left, right, src, dst, weight.contiguous(), gradient)
        near, d_bias = product_gradient(
            d_left, None, z, weight_in[:, :channels], Finish.NONE, inputs=channels, gx=result, want_bias=True
        )
        far, _ = product_gradient(
            d_right, None, z, weight_in[:, channels:], Finish.NONE, inputs=channels, gx=result, accumulate=True
        )
        d_weight_in = None if near is None or far is None else torch.cat([near, far], 1)
        return result, None, None, d_weight_in, d_bias, d_weight, gradient.sum(0)


class _MultiplyPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        left, right = left.contiguous(), right.contiguous()
        ctx.save_for_backward(left, right, src, dst)
        return _scores(left, right, src, dst, None, None)[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        left, right, src, dst = ctx.saved_tensors
        d_left, d_right, _ = _gradients(left, right, src, dst, None, gradient[:, None])
        return d_left, d_right, None, None


def _scores(
    left: Tensor, right: Tensor, src: Tensor, dst: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    outputs = 1 if weight is None else weight.shape[0]
    scores = empty((src.numel(), outputs), left.dtype)
    failed = _SCORES[left.dtype](
        *(left.data_ptr(), right.data_ptr(), *left.shape, src.data_ptr(), dst.data_ptr(), src.numel()),
        *(pointer(weight), pointer(bias), outputs, scores.data_ptr(), threads()),
    )
    if failed == 2:
        low, high = (min(int(src.min()), int(dst.min())), max(int(src.max()), int(dst.max())))
        raise DataError(f"pairs name rows from {low} to {high}; there are rows 0 to {left.shape[0] - 1}.")
    if failed:
        raise MemoryError("There is no memory for the scores of pairs; use fewer threads.")
    return scores


def _gradients(
    left: Tensor, right: Tensor, src: Tensor, dst: Tensor, weight: Tensor | None, gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of both sides, and of the weight where there is one."""
    d_left, d_right = empty(left.shape, left.dtype), empty(right.shape, right.dtype)
    d_weight = None if weight is None else torch.empty_like(weight)
    gradient = gradient.contiguous()
    failed = _GRADIENTS[left.dtype](
        *(left.data_ptr(), right.data_ptr(), *left.shape, src.data_ptr(), dst.data_ptr(), src.numel()),
        *(pointer(weight), gradient.shape[1], gradient.data_ptr(), d_left.data_ptr(), d_right.data_ptr()),
        *(pointer(d_weight), threads()),
    )
    if failed:
        raise MemoryError("There is no memory for the gradients of pairs; score fewer of them at once.")
    return d_left, d_right, d_weight
