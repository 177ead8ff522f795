"""Gradients of rows that were read, pulled by the rows themselves instead of pushed to them.

When backward comes to a chunk, all that read it fresh are done. Their gradients, kept by the rows that they belong to,
are then read through the transposed adjacency: each row of the chunk is written once, where adding to the rows of other
chunks would go over most of the memory again for every chunk. Chunks that read it as history are not done yet; entries
of the matrix that belong to them are left out, on average half of all.

Between parts it is the same. With a symmetric matrix, the vertices that read our rows are exactly our halo, so their
gradients arrive where the halo's rows did, and nothing is added up on arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from trisect.engine.values import same_rows
from trisect.graph.adjacency import Adjacency
from trisect.ops.memory import empty
from trisect.ops.spmm.collect import Collector
from trisect.ops.spmm.sums import aggregate_into, reads_last_rows


class Pulled(Collector):
    """What the rows of one segment have given so far.

    Args:
        adjacency: [rows, columns] of the part; with a halo, of a symmetric matrix.
        features, dtype: of a gradient row.
        turned: gives, for some own rows, what reads them, with entries of chunks that are done, or being done, alone.
        memory: gives [columns, features], where gradients are kept.

    Attributes:
        halo: [halo, features], where the halo's gradients are read, if not in their own place.
    """

    def __init__(
        self,
        adjacency: Adjacency,
        features: int,
        dtype: torch.dtype,
        turned: Callable[[slice], Adjacency],
        memory: Callable[[], Tensor] | None = None,
    ) -> None:
        super().__init__((adjacency.columns, features), dtype, adjacency.device, memory=memory)
        self._turned, self._own_rows = turned, adjacency.rows
        self._written: set[int] = set()
        self._own: dict[int, Tensor] = {}
        self._rest: Tensor | None = None
        self.halo: Tensor | None = None

    def reset(self) -> None:
        """Forget all that was given."""
        super().reset()
        self._written.clear()
        self._own.clear()
        self._rest = self.halo = None

    def rows(self) -> Tensor:
        """What was given, by the row that it came from, [columns, features]."""
        return self._storage()

    def staging(self, block: Adjacency) -> Tensor | None:
        """Where the gradient of the block's rows may be written before it is added; None where something is already."""
        first = block.self_start
        return None if first in self._written else self._storage()[first : first + block.rows]

    def add(
        self,
        gradient: Tensor,
        block: Adjacency,
        *,
        alpha: float = 1.0,
        row_scale: Tensor | None = None,
        column_scale: Tensor | None = None,
    ) -> None:
        """Keep alpha · diag(row_scale) · gradient as that of the block's rows."""
        if column_scale is not None:
            raise RuntimeError("the gradient of scaled columns cannot be kept by rows")
        first = block.self_start
        target = self._storage()[first : first + block.rows]
        if row_scale is not None:
            gradient = gradient * row_scale[:, None]
        if first in self._written:
            target.add_(gradient, alpha=alpha)
        elif gradient.data_ptr() == target.data_ptr():
            _ = target if alpha == 1.0 else target.mul_(alpha)
        elif alpha == 1.0:
            target.copy_(gradient)
        else:
            torch.mul(gradient, alpha, out=target)
        self._written.add(first)

    def close(self, rows: slice) -> None:
        """All is given that these rows give."""
        if rows.start not in self._written:
            self._storage()[rows].zero_()

    def add_own(self, rows: slice, gradient: Tensor) -> None:
        """A gradient of the rows themselves, which came another way."""
        self._own[rows.start] = gradient

    def add_rest(self, gradient: Tensor) -> None:
        """A gradient of all rows that autograd found."""
        self._rest = gradient if self._rest is None else self._rest + gradient

    def of_rows(self, rows: slice, scale: float = 1.0, own: Sequence[slice] = (), out: Tensor | None = None) -> Tensor:
        """Give the gradient of some own rows, [rows, features]; what was given by others than the columns `own`, those
        of the rows' chunk, is multiplied by `scale`. It is written to `out` where that is not None.
        """
        gradients, halo = readable(self._storage(), self._own_rows, self.halo)
        turned = self._turned(rows)
        result = (
            empty((rows.stop - rows.start, gradients.shape[1]), gradients.dtype, gradients.device)
            if out is None
            else out
        )
        add = self._own.pop(rows.start, None)
        aggregate_into(result, gradients, turned, alpha=scale, add=add, last_rows=halo)
        for columns in own if scale != 1.0 else ():
            near = turned.columns_between(columns.start, columns.stop)
            aggregate_into(result, gradients[columns], near, alpha=1.0 - scale, add=result)
        if self._rest is not None:
            result += self._rest[rows]
        return result


def readable(rows: Tensor, own: int, halo: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Give own rows, and those that stand behind them elsewhere, in the form that kernels read.

    Args:
        rows: its first `own` rows count; behind them the storage goes on for at least as many rows as `halo` has.
        halo: [last columns, features]; None: they stand behind the own rows.

    Returns: [columns, features], and where its last rows are read instead, or None.
    """
    if halo is None:
        return rows, None
    if halo.shape[0] == 0:
        return rows[:own], None
    columns = same_rows(rows, 0, own + halo.shape[0])
    return (columns, halo) if reads_last_rows(columns, halo) else (joined(rows[:own], halo), None)


def joined(own: Tensor, halo: Tensor) -> Tensor:
    """Return a copy of the own rows with the halo rows behind them, [columns, features]."""
    if halo.shape[0] == 0:
        return own
    columns = empty((own.shape[0] + halo.shape[0], own.shape[1]), own.dtype, own.device)
    return torch.cat([own, halo], out=columns)


def entries_in(block: Adjacency, columns: Tensor) -> Adjacency:
    """The block without the entries of other columns than those marked (bool [columns])."""
    low = int(block.starts[0]) if block.rows else 0
    high = int(block.ends[-1]) if block.rows else 0
    if not torch.equal(block.ends[:-1], block.starts[1:]):
        raise RuntimeError("the rows of a piece are not in one interval of entries")
    kept = columns.index_select(0, block.indices[low:high] - block.column_base)
    before = torch.zeros(high - low + 1, dtype=torch.int64, device=block.device)
    torch.cumsum(kept, 0, out=before[1:])
    return replace(
        block,
        starts=before[block.starts - low],
        ends=before[block.ends - low],
        indices=block.indices[low:high][kept],
        values=None if block.values is None else block.values[low:high][kept],
        positions=None,
    )
