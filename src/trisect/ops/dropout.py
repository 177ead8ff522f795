"""Dropout whose mask is a function of (seed, epoch, layer, step, vertex, column)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trisect.errors import ConfigError, DataError
from trisect.native.library import DOUBLE, INT, INT64, POINTER, UINT32, UINT64, Kernel, available, threads
from trisect.noise import Noise, drop_threshold, random_bits
from trisect.ops.memory import empty

_DROPOUT = {
    dtype: Kernel(f"trisect_dropout_{kind}", *[POINTER] * 3, *[INT64] * 4, UINT64, UINT32, DOUBLE, INT)
    for dtype, kind in ((torch.float32, "f32"), (torch.float64, "f64"), (torch.bfloat16, "bf16"))
}


def dropout(x: Tensor, p: float, noise: Noise | None) -> Tensor:
    """Zero each element with probability p and scale the rest by 1/(1-p); without noise (evaluation) x itself.

    No mask is kept: backward draws it again.

    Args:
        x: [rows, features]; row i belongs to vertex `noise.vertices[i]`.
        p: at least 0 and below 1.
    """
    if not 0.0 <= p < 1.0:
        raise ConfigError(f"dropout is {p}; choose a probability from 0 up to, but not including, 1.")
    if noise is None or p == 0.0:
        return x
    noise_ids(noise, x.shape[0])
    result: Tensor = _Dropout.apply(x, p, noise)  # type: ignore[no-untyped-call]
    return result


def dropout_torch(x: Tensor, p: float, noise: Noise) -> Tensor:
    """Do the same by torch's operations: for other devices, and the oracle of the native kernel, bit for bit."""
    rows = noise.vertex_ids(x.shape[0], x.device)
    keep = random_bits(noise.key("dropout"), rows, x.shape[1]) >= drop_threshold(p)
    return torch.where(keep, x * (1.0 / (1.0 - p)), torch.zeros((), dtype=x.dtype, device=x.device))


def noise_ids(noise: Noise, rows: int) -> Tensor | None:
    """Return the vertex ids as a kernel reads them (None: row numbers); there must be one for each row."""
    ids = noise.vertices
    if ids is None:
        return None
    if ids.numel() != rows:
        raise DataError(f"noise.vertices has {ids.numel()} ids; there are {rows} rows.")
    return ids if ids.dtype == torch.int64 and ids.is_contiguous() else ids.to(torch.int64).contiguous()


class _Dropout(torch.autograd.Function):
    """Linear in x with a fixed mask, so that it is its own backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, noise: Noise) -> Tensor:
        ctx.p, ctx.noise = p, noise
        if x.device.type != "cpu" or x.dtype not in _DROPOUT or not available():
            return dropout_torch(x, p, noise)
        rows, features = x.shape
        x = x if x.stride(1) == 1 else x.contiguous()
        vertices = noise_ids(noise, rows)
        out = empty((rows, features), x.dtype)
        _DROPOUT[x.dtype](
            *(x.data_ptr(), out.data_ptr(), None if vertices is None else vertices.data_ptr()),
            *(rows, features, x.stride(0), features),
            *(noise.key("dropout"), drop_threshold(p), 1.0 / (1.0 - p), threads()),
        )
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return dropout(gradient, ctx.p, ctx.noise), None, None
