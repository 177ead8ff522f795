"""Arrays on disk between the process that cuts the data and the ranks that map them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trisect.data.formats.npy import map_npy


def save_array(path: Path, tensor: Tensor) -> None:
    """Write a tensor to a .npy file."""
    np.save(path, tensor.contiguous().cpu().numpy(), allow_pickle=False)


def load_array(path: Path) -> Tensor:
    """Map it. Nothing is read before it is used, and pages are copied on write, so that torch may call it its own."""
    return torch.from_numpy(map_npy(path, "c", "start the run again"))


def create_array(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A new .npy file of that shape, to be filled in place."""
    kind = torch.empty(0, dtype=dtype).numpy().dtype
    return torch.from_numpy(np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape))
