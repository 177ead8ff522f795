"""Calls of the native products of a tall matrix with a small one (native/dense.c); no autograd here."""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.native.library import DOUBLE, INT, INT64, POINTER, Kernel, pointer, threads
from trisect.ops._finish import FINISH_TYPES, KINDS, Finish, rows_contiguous
from trisect.ops.memory import empty

_DENSE = {
    dtype: Kernel(
        f"trisect_dense_{kind}",
        *(POINTER, INT64, POINTER, INT64, INT64, DOUBLE, DOUBLE, POINTER, INT64, POINTER, INT64, POINTER),
        *(INT64, INT64, INT64, POINTER),
        *FINISH_TYPES,
        INT,
        returns=INT,
    )
    for dtype, kind in KINDS.items()
}
_GRADIENT = {
    dtype: Kernel(
        f"trisect_dense_gradient_{kind}",
        *(POINTER, INT64, POINTER, POINTER, INT64, POINTER, INT64, INT64, DOUBLE, DOUBLE),
        *(POINTER, INT64, DOUBLE, INT, POINTER, DOUBLE),
        *(POINTER, POINTER, POINTER, INT64, INT64, INT64, INT64),
        *FINISH_TYPES,
        INT,
        returns=INT,
    )
    for dtype, kind in KINDS.items()
}

# as in native/dense.c and native/scratch.h
_BLOCK, _GROUPS, _FEWEST, _SUMS = 32, 64, 8, 64 << 20


def sums_bytes(rows: float, inputs: int, outputs: int, itemsize: int) -> float:
    """Return the bytes in which `product_gradient` sums the gradient of a weight, in groups of rows."""
    one = (inputs + 1) * outputs * itemsize
    groups = min(_GROUPS, max(1, rows // _BLOCK // 16), max(_FEWEST, _SUMS // one))
    return float(groups * one)


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    add: Tensor | None,
    finish: Finish,
    mark: bool,
    out: Tensor | None = None,
    theta: float = 1.0,
) -> tuple[Tensor, Tensor | None]:
    """dropout(relu(x·wᵀ + add + bias)) with w = theta·weight + (1-theta)·I.

    With relu and `mark` also a bit an element: whether it is above 0. `out` [rows, outputs], elements of a row
    adjacent, is written where given.
    """
    rows, inputs = x.shape
    outputs = weight.shape[0]
    if out is None:
        out = empty((rows, outputs), x.dtype)
    bits = torch.empty(rows, (outputs + 7) // 8, dtype=torch.uint8) if mark and finish.relu else None
    add = None if add is None else rows_contiguous(add)
    bias = None if bias is None else bias.contiguous()
    failed = _DENSE[x.dtype](
        x.data_ptr(),
        x.stride(0),
        weight.data_ptr(),
        weight.stride(0),
        weight.stride(1),
        theta,
        1.0 - theta,
        pointer(add),
        0 if add is None else add.stride(0),
        out.data_ptr(),
        out.stride(0),
        pointer(bits),
        rows,
        inputs,
        outputs,
        pointer(bias),
        *finish.arguments(),
        threads(),
    )
    if failed:
        raise MemoryError(
            f"There is no memory for a product of {rows} rows, {inputs} to {outputs} channels; "
            "cut the graph into more parts."
        )
    return out, bits


def product_gradient(
    gradient: Tensor,
    bits: Tensor | None,
    x: Tensor | None,
    weight: Tensor | None,
    finish: Finish,
    *,
    inputs: int,
    gx: Tensor | None,
    accumulate: bool = False,
    want_bias: bool = False,
    masked: Tensor | None = None,
    theta: float = 1.0,
    factor: float = 1.0,
    more: Tensor | None = None,
    more_factor: float = 1.0,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the weight (where x is given) and the bias; fills gx and masked where given.

    Args:
        gradient: of the result, [rows, outputs].
        bits: from `product`.
        gx: [rows, inputs], written, or added to if `accumulate`: `factor` times the gradient of x.
        more: [rows, inputs], contiguous, gets `more_factor` times the gradient of x; not without gx.
        masked: [rows, outputs], gets the gradient before relu and dropout.
    """
    rows, outputs = gradient.shape
    gw = None if x is None else torch.empty(outputs, inputs, dtype=gradient.dtype)
    gbias = torch.empty(outputs, dtype=gradient.dtype) if want_bias else None
    failed = _GRADIENT[gradient.dtype](
        gradient.data_ptr(),
        gradient.stride(0),
        pointer(bits),
        pointer(x),
        0 if x is None else x.stride(0),
        pointer(weight),
        0 if weight is None else weight.stride(0),
        0 if weight is None else weight.stride(1),
        theta,
        1.0 - theta,
        pointer(gx),
        0 if gx is None else gx.stride(0),
        factor,
        int(accumulate),
        pointer(more),
        more_factor,
        pointer(gw),
        pointer(gbias),
        pointer(masked),
        0 if masked is None else masked.stride(0),
        rows,
        inputs,
        outputs,
        *finish.arguments(),
        threads(),
    )
    if failed:
        raise MemoryError(
            f"There is no memory for the gradient of a product of {rows} rows, {inputs} to {outputs} channels; "
            "cut the graph into more parts."
        )
    return gw, gbias
