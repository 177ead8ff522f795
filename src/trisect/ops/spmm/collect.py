"""`Collector` adds up the gradient of rows that several blocks read, past autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.ops.memory import empty
from trisect.ops.spmm.sums import aggregate_into, native


class Collector:
    """Adds up the gradient of rows that several blocks read.

    Autograd would make a tensor as large as all columns for each block. Here each block adds to the rows that it read.

    Args:
        shape, dtype, device: of the sum.
        reads: which columns of a block to add to, and their rows of its transpose (None: all that it reads).
        memory: gives a tensor of that shape for the sum when it is first needed.

    Attributes:
        blank: whether nothing was added yet.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device | None = None,
        reads: Callable[[Adjacency], tuple[Tensor | None, Adjacency]] | None = None,
        memory: Callable[[], Tensor] | None = None,
    ) -> None:
        self.blank = True
        self._reads = Adjacency.read_columns if reads is None else reads
        self._shape, self._dtype, self._device = shape, dtype, device
        self._memory = memory
        self._total: Tensor | None = None

    def rows(self) -> Tensor:
        """Return the sum so far [columns, features], zeros where nothing was added."""
        total = self._storage()
        if self.blank:
            total.zero_()
            self.blank = False
        return total

    def _storage(self) -> Tensor:
        """Return the memory for the sum, which is taken when it is first needed."""
        if self._total is None:
            memory = self._memory
            self._total = empty(self._shape, self._dtype, self._device) if memory is None else memory()
        return self._total

    def add(self, gradient: Tensor, block: Adjacency, *, alpha: float = 1.0) -> None:
        """sum += alpha · blockᵀ · gradient."""
        targets, turned = self._reads(block)
        if self.blank and 2 * turned.rows > block.columns:
            # the first to add writes all rows, which saves a pass that zeroes them
            self.blank = False
            aggregate_into(self._storage(), gradient, block.transpose(), alpha=alpha)
            return
        total = self.rows()
        aggregate_into(total, gradient, turned, alpha=alpha, add=total, targets=targets)


def add_rows(total: Tensor, rows: Tensor, x: Tensor) -> None:
    """total[rows] += x, for different rows (int64), without autograd."""
    count = rows.numel()
    if count == 0:
        return
    if not (native(total) and total.dtype == x.dtype):
        total.index_add_(0, rows, x.to(total.dtype))
        return
    positions = torch.arange(count + 1)
    each = Adjacency(positions[:-1], positions[1:], positions[:-1].to(torch.int32), None, count).vouched()
    aggregate_into(total, x, each, add=total, targets=rows)
