"""How rows look on the wire: as they are, as bfloat16, or as int8 with a scale a row and stochastic rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.layout import Wire
from trisect.noise import random_bits


def encoded_bytes(rows: int, width: int, wire: Wire, dtype: torch.dtype) -> int:
    """Bytes of `rows` rows of `width` elements on the wire."""
    if wire == "int8":
        return rows * (width + 4)
    return rows * width * (2 if wire == "bfloat16" else dtype.itemsize)


def form(rows: int, width: int, wire: Wire, dtype: torch.dtype) -> tuple[tuple[int, int], torch.dtype]:
    """Shape and type of a message of `rows` rows."""
    if wire == "int8":
        return (rows, width + 4), torch.int8
    return (rows, width), torch.bfloat16 if wire == "bfloat16" else dtype


def encode(x: Tensor, wire: Wire, key: int) -> Tensor:
    """x [rows, width] → the message. With int8, `key` decides which way each element is rounded."""
    if wire == "float32":
        return x.contiguous()
    if wire == "bfloat16":
        return x.to(torch.bfloat16)
    scale = (x.abs().amax(1, keepdim=True) / 127.0).clamp_min(torch.finfo(torch.float32).tiny).float()
    position = torch.arange(x.shape[0], device=x.device)
    chance = random_bits(key, position, x.shape[1]).to(torch.float32) * 2.0**-32
    quantised = torch.floor(x.float() / scale + chance).clamp_(-127, 127).to(torch.int8)
    return torch.cat([quantised, scale.view(torch.int8)], 1)


def decode(message: Tensor, wire: Wire, dtype: torch.dtype) -> Tensor:
    """The message → rows [rows, width] of `dtype`."""
    if wire != "int8":
        return message.to(dtype)
    # a clone: a slice of a single row counts as contiguous, wherever in memory it begins
    scale = message[:, -4:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return message[:, :-4].to(dtype) * scale.to(dtype)
