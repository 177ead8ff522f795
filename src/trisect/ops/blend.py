"""`replace_rows`: fresh rows take the place of those that readers see, whose running mean is kept."""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.native.library import DOUBLE, INT, INT64, POINTER, Kernel, threads
from trisect.ops._finish import KINDS, usable

_BLEND = {
    dtype: Kernel(f"trisect_blend_{kind}", POINTER, POINTER, POINTER, INT64, DOUBLE, INT)
    for dtype, kind in KINDS.items()
}


def replace_rows(seen: Tensor, fresh: Tensor, mean: Tensor, share: float) -> None:
    """mean = (1-share)·seen + share·fresh, then seen = fresh, without autograd.

    Shapes: [rows, width] each; `seen` and `mean` are contiguous.
    """
    if fresh.shape == seen.shape and fresh.is_contiguous() and usable(seen, fresh, mean):
        _BLEND[seen.dtype](seen.data_ptr(), fresh.data_ptr(), mean.data_ptr(), seen.numel(), share, threads())
        return
    torch.lerp(seen, fresh, share, out=mean)
    seen.copy_(fresh)
