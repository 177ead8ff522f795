"""Layer norm with relu and dropout behind it, in one pass; nothing but the input is kept for backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trisect.native.library import DOUBLE, INT, INT64, POINTER, Kernel, threads
from trisect.noise import Noise
from trisect.ops._finish import FINISH_TYPES, KINDS, Finish, rows_contiguous, usable
from trisect.ops.dropout import dropout
from trisect.ops.memory import empty

_FORWARD = {
    dtype: Kernel(
        f"trisect_normalise_{kind}",
        *(POINTER, INT64, POINTER, POINTER, DOUBLE, POINTER, INT64, INT64, *FINISH_TYPES, INT),
    )
    for dtype, kind in KINDS.items()
}
_GRADIENT = {
    dtype: Kernel(
        f"trisect_normalise_gradient_{kind}",
        *(POINTER, INT64, POINTER, POINTER, DOUBLE, POINTER, INT64, POINTER, POINTER, POINTER, INT64, INT64),
        *FINISH_TYPES,
        INT,
        returns=INT,
    )
    for dtype, kind in KINDS.items()
}


def normalise(
    x: Tensor, norm: nn.LayerNorm, *, relu: bool = False, p: float = 0.0, noise: Noise | None = None
) -> Tensor:
    """dropout(relu(norm(x))), each row for itself; no dropout without noise.

    Shapes: x [rows, channels] → the same; `norm` is over the channels.
    """
    finish = Finish.of(relu, p, noise, x.shape[0])
    weight, bias = norm.weight, norm.bias
    if (
        x.dim() == 2
        and usable(x, weight, bias)
        and weight is not None
        and bias is not None
        and weight.shape == bias.shape == x.shape[1:]
    ):
        result: Tensor = _Normalise.apply(x, weight, bias, norm.eps, finish)  # type: ignore[no-untyped-call]
        return result
    y: Tensor = norm(x)
    return dropout(torch.relu(y) if relu else y, finish.p, finish.noise)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, finish: Finish) -> Tensor:
        x, weight, bias = rows_contiguous(x), weight.contiguous(), bias.contiguous()
        out = empty((x.shape[0], x.shape[1]), x.dtype)
        _FORWARD[x.dtype](
            *(x.data_ptr(), x.stride(0), weight.data_ptr(), bias.data_ptr(), eps, out.data_ptr(), *x.shape),
            *(*finish.arguments(), threads()),
        )
        ctx.save_for_backward(x, weight, bias)
        ctx.eps, ctx.finish = eps, finish
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        gradient = rows_contiguous(gradient)
        result, d_weight, d_bias = (
            empty((x.shape[0], x.shape[1]), x.dtype),
            torch.empty_like(weight),
            torch.empty_like(bias),
        )
        failed = _GRADIENT[x.dtype](
            *(x.data_ptr(), x.stride(0), weight.data_ptr(), bias.data_ptr(), ctx.eps),
            *(gradient.data_ptr(), gradient.stride(0), result.data_ptr(), d_weight.data_ptr(), d_bias.data_ptr()),
            *(*x.shape, *ctx.finish.arguments(), threads()),
        )
        if failed:
            raise MemoryError("There is no memory for the gradient of a layer norm; use fewer threads.")
        return result, d_weight, d_bias, None, None
