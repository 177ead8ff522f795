"""What is sent and what is expected: rows of a tensor, and the shape of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trisect.ops import memory


@dataclass(frozen=True)
class Rows:
    """Some rows of a tensor [·, width], to be sent: gathered straight to where the message is written.

    Attributes:
        of: the tensor.
        which: int64.
    """

    of: Tensor
    which: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Give the shape of the message."""
        return self.which.numel(), self.of.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Give the type of the tensor."""
        return self.of.dtype

    @property
    def is_gathered_by_ring(self) -> bool:
        """Say whether a ring of shared memory can gather the rows itself."""
        return self.of.is_cpu and self.of.stride(1) == 1 and self.which.is_contiguous()

    def gathered(self, out: Tensor | None = None) -> Tensor:
        """Copy the rows into a tensor, in reused memory or in `out`."""
        if out is None:
            out = memory.empty(self.shape, self.of.dtype, self.of.device)
        return torch.index_select(self.of, 0, self.which, out=out)


@dataclass(frozen=True)
class Shape:
    """The shape of expected rows, which may stay in whatever memory they arrive in."""

    rows: int
    width: int
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """Give (rows, width), as a tensor does."""
        return self.rows, self.width


def gathered(rows: Tensor | Rows) -> Tensor:
    """Turn rows into a tensor."""
    return rows.gathered() if isinstance(rows, Rows) else rows
