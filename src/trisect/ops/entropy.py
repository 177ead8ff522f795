"""Cross entropy without a temporary as large as the logits: softmax is formed for a few rows at a time."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trisect.errors import DataError
from trisect.native.library import DOUBLE, INT, INT64, POINTER, Kernel, threads
from trisect.ops._finish import KINDS, rows_contiguous, usable
from trisect.ops.memory import empty

_FORWARD = {
    dtype: Kernel(
        f"trisect_cross_entropy_{kind}", POINTER, INT64, *[POINTER] * 2, *[INT64] * 2, POINTER, INT, returns=INT
    )
    for dtype, kind in KINDS.items()
}
_GRADIENT = {
    dtype: Kernel(
        f"trisect_cross_entropy_gradient_{kind}",
        *(POINTER, INT64, POINTER, POINTER, INT64, INT64, DOUBLE, POINTER, INT),
        returns=INT,
    )
    for dtype, kind in KINDS.items()
}


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the sum over rows of weights[label] · -log softmax(logits)[label]; on the CPU independent of the threads.

    Args:
        logits: [rows, classes].
        labels: int64 [rows], each a class.
        weights: [classes]; None: 1.

    Returns:
        A scalar of the type of the logits.
    """
    if logits.dim() != 2 or labels.shape != logits.shape[:1]:
        raise DataError(
            f"logits have shape {tuple(logits.shape)} and labels {tuple(labels.shape)}; [rows, classes] and [rows] are "
            "needed."
        )
    if labels.device != logits.device:
        raise DataError(f"labels are on {labels.device} and logits on {logits.device}; move one of them.")
    if weights is not None:
        weights = weights.to(logits).contiguous()
        if weights.shape != logits.shape[1:]:
            raise DataError(f"weights have shape {tuple(weights.shape)}; {tuple(logits.shape[1:])} is needed.")
    if not usable(logits) or logits.shape[1] == 0:
        return functional.cross_entropy(logits, labels, weights, reduction="sum")
    result: Tensor = _CrossEntropy.apply(logits, labels.long().contiguous(), weights)  # type: ignore[no-untyped-call]
    return result


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        logits = rows_contiguous(logits)
        total = ctypes.c_double()
        failed = _FORWARD[logits.dtype](
            *(logits.data_ptr(), logits.stride(0), labels.data_ptr(), None if weights is None else weights.data_ptr()),
            *(logits.shape[0], logits.shape[1], ctypes.addressof(total), threads()),
        )
        if failed == 2:
            raise DataError(f"labels reach from {int(labels.min())} to {int(labels.max())}; {_classes(logits)}")
        if failed:
            raise MemoryError("There is no memory for a cross entropy; use fewer threads.")
        ctx.save_for_backward(logits, labels, weights)
        return logits.new_tensor(total.value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels, weights = ctx.saved_tensors
        result = empty((logits.shape[0], logits.shape[1]), logits.dtype)
        failed = _GRADIENT[logits.dtype](
            *(logits.data_ptr(), logits.stride(0), labels.data_ptr(), None if weights is None else weights.data_ptr()),
            *(logits.shape[0], logits.shape[1], float(gradient), result.data_ptr(), threads()),
        )
        if failed:
            raise MemoryError("There is no memory for the gradient of a cross entropy; use fewer threads.")
        return result, None, None


def _classes(logits: Tensor) -> str:
    return f"with {logits.shape[1]} logits a row they must lie between 0 and {logits.shape[1] - 1}."
