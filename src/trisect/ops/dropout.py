"""Dropout whose mask is a function of (seed, epoch, layer, step, vertex, column)."""

from __future__ import annotations

from torch import Tensor

from trisect.noise import Noise, drop_threshold, random_bits


def dropout(x: Tensor, p: float, noise: Noise | None) -> Tensor:
    """Zero each element with probability p and scale the rest by 1/(1-p); without noise (evaluation) x itself."""
    if noise is None or p == 0.0:
        return x
    rows = noise.vertex_ids(x.shape[0], x.device)
    keep = random_bits(noise.key("dropout"), rows, x.shape[1]) >= drop_threshold(p)
    return x * keep.to(x.dtype) * (1.0 / (1.0 - p))
