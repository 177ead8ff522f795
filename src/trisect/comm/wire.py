"""How rows look on the wire: as they are, as bfloat16, or as int8 with a scale a row and stochastic rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.layout import Wire
from trisect.ops.quantise import SCALE_BYTES, dequantise, quantise


def encoded_bytes(rows: int, width: int, wire: Wire, dtype: torch.dtype) -> int:
    """Bytes of `rows` rows of `width` elements on the wire."""
    if wire == "int8":
        return rows * (width + SCALE_BYTES)
    return rows * width * (2 if wire == "bfloat16" else dtype.itemsize)


def form(rows: int, width: int, wire: Wire, dtype: torch.dtype) -> tuple[tuple[int, int], torch.dtype]:
    """Shape and type of a message of `rows` rows."""
    if wire == "int8":
        return (rows, width + SCALE_BYTES), torch.int8
    return (rows, width), torch.bfloat16 if wire == "bfloat16" else dtype


def encode(x: Tensor, wire: Wire, key: int) -> Tensor:
    """x [rows, width] → the message. With int8, `key` decides which way each element is rounded."""
    if wire == "float32":
        return x.contiguous()
    return x.to(torch.bfloat16) if wire == "bfloat16" else quantise(x, key)


def decode(message: Tensor, wire: Wire, dtype: torch.dtype) -> Tensor:
    """Turn a message into rows [rows, width] of `dtype`."""
    return dequantise(message, dtype) if wire == "int8" else message.to(dtype)
