"""`Smoothing`: how a snapshot gathers the edges of the steps before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from trisect.errors import DataError

Kind = Literal["none", "edge-life", "m-transform"]
Matrix = Literal["mean", "harmonic", "ones"]


@dataclass(frozen=True)
class Smoothing:
    """A'_t = Σ_k M[t, k] A_k over the steps k = t - length + 1 .. t.

    Args:
        kind: `none`: A'_t = A_t. `edge-life`: an edge lives `length` steps, values add up. `m-transform`: see `matrix`.
        length: how many steps the window spans.
        matrix: `mean`: 1 / (steps in the window); `harmonic`: 1 / (t - k + 1); `ones`.
    """

    kind: Kind = "none"
    length: int = 1
    matrix: Matrix = "mean"

    def __post_init__(self) -> None:
        if self.kind not in ("none", "edge-life", "m-transform"):
            raise DataError(f"smoothing.kind is {self.kind!r}; choose none, edge-life or m-transform.")
        if self.matrix not in ("mean", "harmonic", "ones"):
            raise DataError(f"smoothing.matrix is {self.matrix!r}; choose mean, harmonic or ones.")
        if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < 1:
            raise DataError(f"smoothing.length is {self.length!r}; give a number of steps from 1.")

    @classmethod
    def of(cls, value: Smoothing | Mapping[str, Any] | str | None) -> Smoothing:
        """From None, a kind, or a mapping of the fields."""
        if isinstance(value, Smoothing):
            return value
        if value is None:
            return cls()
        if isinstance(value, str):
            return cls(value)  # type: ignore[arg-type]
        if not isinstance(value, Mapping):
            raise DataError(f"smoothing is {str(value)[:80]!r}; give a kind, or a mapping of kind, length and matrix.")
        unknown = set(value) - {"kind", "length", "matrix"}
        if unknown:
            raise DataError(f"smoothing has no field {sorted(map(str, unknown))[0]!r}; it has kind, length and matrix.")
        return cls(**value)

    @property
    def window(self) -> int:
        """How many steps a snapshot spans."""
        return 1 if self.kind == "none" else self.length

    def first_step(self, step: int) -> int:
        """The first step that reaches into the snapshot of `step` (counted from 0)."""
        return max(0, step - self.window + 1)

    def coefficients(self, step: int) -> Tensor | None:
        """float64: the factor of each step in the window, the earliest first; None where all are 1."""
        if self.kind != "m-transform" or self.matrix == "ones":
            return None
        count = step - self.first_step(step) + 1
        if self.matrix == "mean":
            return torch.full((count,), 1.0 / count, dtype=torch.float64)
        return 1.0 / torch.arange(count, 0, -1, dtype=torch.float64)
