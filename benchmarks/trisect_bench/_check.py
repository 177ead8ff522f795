"""Whether the candidates of a benchmark compute the same, before they are timed."""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.errors import RunError

FACTOR = 32.0
"""How many roundings of the sum of absolute values a sum may be off. Terms of random signs give at most 4, whatever
their number and order; one term that is missing shows in rows of up to 1 / (FACTOR · eps), 250 000, entries."""


def require_sums(name: str, result: Tensor, expected: Tensor, magnitude: Tensor, factor: float = FACTOR) -> None:
    """Refuse a result whose elements differ from their sums in float64 by more than rounding explains.

    A fixed tolerance does not do: how far a sum may be off depends on what was added up, and a hub adds up much.

    Args:
        name: of the candidate.
        result: float32, any shape.
        expected: float64, the same sums.
        magnitude: float64, the sums of the terms' absolute values.
    """
    limit = factor * torch.finfo(result.dtype).eps * magnitude
    excess = (result.detach().double() - expected).abs() - limit
    if not bool((excess <= 0).all()):  # which is also so where a result is nan
        worst = int(torch.where(excess.isnan(), torch.inf, excess).argmax())
        got, wanted, allowed = (float(tensor.flatten()[worst]) for tensor in (result, expected, limit))
        raise RunError(
            f"{name} gives {got!r} for element {worst} where float64 gives {wanted!r}, more than {allowed:.2g} apart; "
            "its kernel is wrong, so nothing was measured."
        )
