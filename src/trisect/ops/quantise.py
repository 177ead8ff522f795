"""Rows as int8 with a scale a row and stochastic rounding: a quarter of float32, without bias."""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.native.library import INT, INT64, POINTER, UINT64, Kernel, available, threads
from trisect.noise import random_bits
from trisect.ops.memory import empty

SCALE_BYTES = 4

_QUANTISE = Kernel("trisect_quantise", *[POINTER] * 3, *[INT64] * 3, UINT64, INT)
_DEQUANTISE = Kernel("trisect_dequantise", POINTER, POINTER, *[INT64] * 3, INT)


def quantise(x: Tensor, key: int, *, which: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """x [·, width] → int8 [rows, width + 4], where the last four bytes of a row are its scale as float32.

    A row that holds an infinity or a NaN comes back as NaN.

    Args:
        x: floating point, its rows dense.
        key: decides which way each element is rounded.
        which: the rows to take, int64; all of them unless given.
        out: where to write, dense.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32 or not available():
        message = quantise_torch(x if which is None else x.index_select(0, which), key)
        return message if out is None else out.copy_(message)
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, width = x.shape[0] if which is None else which.numel(), x.shape[1]
    message = empty((rows, width + SCALE_BYTES), torch.int8) if out is None else out
    _QUANTISE(
        *(x.data_ptr(), message.data_ptr(), None if which is None else which.data_ptr()),
        *(rows, width, x.stride(0), key, threads()),
    )
    return message


def dequantise(message: Tensor, dtype: torch.dtype) -> Tensor:
    """int8 [rows, width + 4] of `quantise` → rows [rows, width] of `dtype`."""
    if message.device.type != "cpu" or dtype != torch.float32 or not available():
        return dequantise_torch(message, dtype)
    rows, width = message.shape[0], message.shape[1] - SCALE_BYTES
    out = empty((rows, width), dtype)
    _DEQUANTISE(message.data_ptr(), out.data_ptr(), rows, width, width, threads())
    return out


def quantise_torch(x: Tensor, key: int) -> Tensor:
    """Do the same by torch's operations, for other devices and types; the native kernel equals it bit for bit."""
    scale = (x.abs().amax(1, keepdim=True) / 127.0).clamp_min(torch.finfo(torch.float32).tiny).float()
    position = torch.arange(x.shape[0], device=x.device)
    chance = random_bits(key, position, x.shape[1]).to(torch.float32) * 2.0**-32
    rounded = torch.floor(x.float() / scale + chance).clamp_(-127, 127)
    quantised = torch.where(scale.isfinite(), rounded, 0.0).to(torch.int8)
    return torch.cat([quantised, scale.view(torch.int8)], 1)


def dequantise_torch(message: Tensor, dtype: torch.dtype) -> Tensor:
    """Do what `dequantise` does with torch's own operations."""
    # a clone: a slice of a single row counts as contiguous, wherever in memory it begins
    scale = message[:, -SCALE_BYTES:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return message[:, :-SCALE_BYTES].to(dtype) * scale.to(dtype)
