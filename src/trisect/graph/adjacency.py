"""`Adjacency`: a sparse matrix of edges by rows, whose row and column ranges are views.

Row i lists what vertex i reads: an edge j → i of weight w is the entry (row i, column j, value w).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Adjacency:
    """A CSR matrix, or a rectangular block of one without a copy of its entries.

    The entries of row i are the positions starts[i] .. ends[i]-1 of `indices` and `values`, in ascending column
    order; an entry's column is indices[k] - column_base. A plain matrix has starts = indptr[:-1] and ends = indptr[1:].

    Args:
        starts, ends: int64 [rows].
        indices: int32 [entries of the whole matrix].
        values: float [same length], or None where every edge counts 1.
        columns: the number of columns.
        column_base: subtracted from `indices`; lets a block read a narrower matrix of features.
        self_start: the column that is row 0 itself; row i is column self_start + i. (Rows are a run of the columns.)
        positions: int32 or int64 [same length as indices], only in a transposed matrix: where each entry stands in the
            original's `indices`, for values that belong to edges and are made on the way (attention).
    """

    starts: Tensor
    ends: Tensor
    indices: Tensor
    values: Tensor | None
    columns: int
    column_base: int = 0
    self_start: int = 0
    positions: Tensor | None = None
    _cache: dict[str, object] = field(default_factory=dict, repr=False)

    @classmethod
    def from_csr(
        cls, indptr: Tensor, indices: Tensor, values: Tensor | None, columns: int, self_start: int = 0
    ) -> Adjacency:
        """A matrix from CSR arrays that are already valid and sorted (see `graph.build` for user input)."""
        pointers = indptr.to(torch.int64)
        return cls(pointers[:-1], pointers[1:], indices.to(torch.int32), values, columns, 0, self_start)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.starts.numel()

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.rows, self.columns

    @property
    def device(self) -> torch.device:
        """Where the arrays live."""
        return self.indices.device

    @property
    def entries(self) -> int:
        """How many entries the block has."""
        return int((self.ends - self.starts).sum())

    def rows_between(self, start: int, stop: int) -> Adjacency:
        """Rows start..stop-1, as a view."""
        block = replace(
            self,
            starts=self.starts[start:stop],
            ends=self.ends[start:stop],
            self_start=self.self_start + start,
            _cache={},
        )
        block._cache["origin"] = (self, start, stop)
        return block

    def columns_between(self, start: int, stop: int) -> Adjacency:
        """Columns start..stop-1, numbered from 0, as a view (two searches per row, no copy of the entries)."""
        low = _lower_bound(self.indices, self.starts, self.ends, start + self.column_base)
        high = _lower_bound(self.indices, self.starts, self.ends, stop + self.column_base)
        return replace(
            self,
            starts=low,
            ends=high,
            columns=stop - start,
            column_base=self.column_base + start,
            self_start=self.self_start - start,
            _cache={},
        )

    def transpose(self) -> Adjacency:
        """The transposed matrix, built once. The transpose of a row range is a view of the whole matrix's."""
        found = self._cache.get("transpose")
        if isinstance(found, Adjacency):
            return found
        origin = self._cache.get("origin")
        if isinstance(origin, tuple):
            whole, start, stop = origin
            result: Adjacency = whole.transpose().columns_between(start, stop)
        else:
            result = _transpose(self)
        self._cache["transpose"] = result
        return result

    def __repr__(self) -> str:
        return f"Adjacency({self.rows} x {self.columns}, {self.entries} entries, weighted={self.values is not None})"


def _lower_bound(indices: Tensor, starts: Tensor, ends: Tensor, bound: int) -> Tensor:
    """For each row the first position whose index is not below `bound` (binary search, all rows at once)."""
    low, high = starts.clone(), ends.clone()
    while bool((low < high).any()):
        middle = (low + high) >> 1
        active = low < high
        below = active & (indices[middle.clamp(max=max(indices.numel() - 1, 0))] < bound)
        low = torch.where(below, middle + 1, low)
        high = torch.where(active & ~below, middle, high)
    return low


def _transpose(matrix: Adjacency) -> Adjacency:
    """Counting sort by column; within a column the rows stay ascending."""
    lengths = matrix.ends - matrix.starts
    device = matrix.device
    row_of = torch.repeat_interleave(torch.arange(matrix.rows, device=device), lengths)
    # position of each entry in `indices`: contiguous for a plain matrix, with gaps for a view
    offsets = torch.cumsum(lengths, 0) - lengths
    entry = torch.arange(row_of.numel(), device=device) + (matrix.starts - offsets)[row_of]
    column = matrix.indices[entry].to(torch.int64) - matrix.column_base
    order = torch.argsort(column, stable=True)
    entry = entry[order]
    pointers = torch.zeros(matrix.columns + 1, dtype=torch.int64, device=device)
    pointers[1:] = torch.cumsum(torch.bincount(column, minlength=matrix.columns), 0)
    result = Adjacency(
        starts=pointers[:-1],
        ends=pointers[1:],
        indices=row_of[order].to(torch.int32),
        values=None if matrix.values is None else matrix.values[entry],
        columns=matrix.rows,
        self_start=-matrix.self_start,
        positions=entry.to(torch.int32) if matrix.indices.numel() < 2**31 else entry,
    )
    result._cache["transpose"] = matrix
    return result
