"""Rows of a device without collectives of its own go through host memory: here is how they get there and back."""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.ops import memory


def needs_staging(device: torch.device, backends: str) -> bool:
    """Say whether rows of a device are sent from host memory.

    Args:
        backends: what torch.distributed was started with, such as `gloo` or `cpu:gloo,cuda:nccl`.
    """
    return device.type != "cpu" and not (device.type == "cuda" and "nccl" in backends)


def host_buffer(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Host memory for rows of a device; pinned for CUDA, whose copies are then faster."""
    if device.type == "cuda":
        return torch.empty(shape, dtype=dtype, pin_memory=True)
    return memory.empty(shape, dtype)


def to_host(rows: Tensor) -> Tensor:
    """Give a copy of rows in host memory, complete when this returns."""
    return host_buffer(tuple(rows.shape), rows.dtype, rows.device).copy_(rows)


def to_device(rows: Tensor, device: torch.device) -> Tensor:
    """Give a copy of rows on a device, complete when this returns."""
    return rows.to(device, copy=True)
