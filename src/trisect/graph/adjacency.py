"""`Adjacency`: a sparse matrix of edges by rows, whose row and column ranges are views.

Row i lists what vertex i reads: an edge j → i of weight w is the entry (row i, column j, value w).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from trisect.errors import DataError, TrisectError
from trisect.native.library import INT, INT64, POINTER, Kernel, available, threads

_TRANSPOSE = Kernel(
    "trisect_transpose",
    *(POINTER, POINTER, POINTER, INT64, INT64, INT64, INT64, POINTER, POINTER, POINTER, POINTER, POINTER, INT),
    returns=INT,
)
_LOWER_BOUND = Kernel("trisect_lower_bound", POINTER, POINTER, POINTER, INT64, INT64, POINTER, INT)


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
    def dtype(self) -> torch.dtype:
        """The type of the values; float32 where there are none."""
        return torch.float32 if self.values is None else self.values.dtype

    @property
    def entries(self) -> int:
        """How many entries the block has."""
        found = self._cache.get("entries")
        if not isinstance(found, int):
            found = int((self.ends - self.starts).sum())
            self._cache["entries"] = found
        return found

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays, those of a transpose that is already built included; shared arrays count once."""
        seen: dict[int, int] = {}
        self._count_bytes(seen)
        return sum(seen.values())

    def _count_bytes(self, seen: dict[int, int]) -> None:
        cached = (item for item in self._cache.values() if isinstance(item, Tensor))
        for array in (self.starts, self.ends, self.indices, self.values, self.positions, *cached):
            if array is not None:
                storage = array.untyped_storage()
                seen[storage.data_ptr()] = storage.nbytes()
        found = self._cache.get("transpose")
        if isinstance(found, Adjacency):
            found._count_bytes(seen)

    def rows_between(self, start: int, stop: int) -> Adjacency:
        """Rows start..stop-1, as a view."""
        _check_range("rows", start, stop, self.rows)
        block = replace(
            self,
            starts=self.starts[start:stop],
            ends=self.ends[start:stop],
            self_start=self.self_start + start,
            _cache={},
        )
        block._cache["origin"] = ("rows", self, start, stop)
        return block

    def columns_between(self, start: int, stop: int) -> Adjacency:
        """Columns start..stop-1, numbered from 0, as a view (two searches per row, no copy of the entries)."""
        _check_range("columns", start, stop, self.columns)
        block = replace(
            self,
            starts=_lower_bound(self.indices, self.starts, self.ends, start + self.column_base),
            ends=_lower_bound(self.indices, self.starts, self.ends, stop + self.column_base),
            columns=stop - start,
            column_base=self.column_base + start,
            self_start=self.self_start - start,
            _cache={},
        )
        block._cache["origin"] = ("columns", self, start, stop)
        return block

    def transpose(self, *, positions: bool = False) -> Adjacency:
        """The transposed matrix, built once. The transpose of a view is a view of the whole matrix's.

        Its `positions` point into this matrix's `indices`, which views share with the whole. A matrix that is symmetric
        shares its arrays with its transpose; such a one, and one whose maker knows a shorter way to its transpose (see
        `with_transpose`), have positions only where they are asked for.
        """
        found = self._cache.get("transpose")
        if isinstance(found, weakref.ref):
            found = found()
        if isinstance(found, Adjacency) and (found.positions is not None or not positions):
            return found
        origin, known = self._cache.get("origin"), self._cache.get("turn")
        if isinstance(origin, tuple):
            kind, whole, start, stop = origin
            turned: Adjacency = whole.transpose(positions=positions)
            result = turned.columns_between(start, stop) if kind == "rows" else turned.rows_between(start, stop)
        elif callable(known) and not positions:
            result = known()
        else:
            result = _transpose(self)
            if not positions and _equal(result, self):
                result = replace(self, self_start=-self.self_start, positions=None, _cache={})
        self._cache["transpose"] = result
        self._cache.pop("turn", None)  # it holds arrays, and is not needed again
        # Weak, since a cycle would keep large arrays until the garbage collector's next full pass.
        result._cache["transpose"] = weakref.ref(self)
        return result

    def with_transpose(self, make: Callable[[], Adjacency]) -> Adjacency:
        """This matrix, with a way to its transpose that is shorter than sorting; called at the first need."""
        self._cache["turn"] = make
        return self

    def as_symmetric(self) -> Adjacency:
        """This matrix, known to be symmetric with its values: the transpose has the same arrays."""
        turned = replace(self, self_start=-self.self_start, _cache={})
        turned._cache["transpose"] = weakref.ref(self)
        self._cache["transpose"] = turned
        return self

    def is_symmetric(self) -> bool:
        """Whether the matrix, with its values, is its own transpose (which is built for the answer).

        Not told of a view: False.
        """
        if "origin" in self._cache:
            return False
        turned = self.transpose()
        return self.shape == turned.shape and self.indices.data_ptr() == turned.indices.data_ptr()

    def entry_positions(self) -> Tensor:
        """int64 [entries]: where the block's entries, row by row, stand in `indices`."""
        lengths = self.ends - self.starts
        offsets = torch.cumsum(lengths, 0) - lengths
        return torch.repeat_interleave(self.starts - offsets, lengths) + torch.arange(self.entries, device=self.device)

    def is_plain(self) -> bool:
        """Whether the entries lie one after the other from position 0 and columns are `indices` themselves."""
        if self.column_base != 0 or self.indices.numel() != self.entries:
            return False
        if self.rows == 0 or self.entries == 0:
            return True
        return int(self.starts[0]) == 0 and bool((self.starts[1:] == self.ends[:-1]).all())

    def compact(self) -> Adjacency:
        """The block as a matrix of its own, with contiguous entries; itself where that is so already."""
        if self.is_plain():
            return self
        entry = self.entry_positions()
        pointers = torch.zeros(self.rows + 1, dtype=torch.int64, device=self.device)
        torch.cumsum(self.ends - self.starts, 0, out=pointers[1:])
        return Adjacency(
            pointers[:-1],
            pointers[1:],
            self.indices[entry] - self.column_base,
            None if self.values is None else self.values[entry],
            self.columns,
            self_start=self.self_start,
        )

    def pointers(self) -> Tensor:
        """int64 [rows + 1] of a matrix whose entries are contiguous."""
        return torch.cat([self.starts, self.ends[-1:]]) if self.rows else torch.zeros(1, dtype=torch.int64)

    def edge_index(self) -> Tensor:
        """int64 [2, entries], as PyG's layers read it: row 0 the column (source) and row 1 the row (target) of each
        entry, both numbered from 0 within the block. Made once."""
        found = self._cache.get("edge_index")
        if isinstance(found, Tensor):
            return found
        row, column = self.coordinates()
        result = torch.stack([column, row])
        self._cache["edge_index"] = result
        return result

    def coordinates(self) -> tuple[Tensor, Tensor]:
        """The row and the column of each entry, row by row: int64 [entries] both, numbered from 0 within the block."""
        row = torch.repeat_interleave(torch.arange(self.rows, device=self.device), self.ends - self.starts)
        read = self.indices if self.is_plain() else self.indices[self.entry_positions()] - self.column_base
        return row, read.long()

    def edge_weight(self) -> Tensor | None:
        """The values in the order of `edge_index`, or None."""
        if self.values is None or self.is_plain():
            return self.values
        return self.values[self.entry_positions()]

    def to(self, target: torch.device | str | torch.dtype) -> Adjacency:
        """The same matrix on another device, or with values of another type. Views are made compact on a move."""
        if isinstance(target, torch.dtype):
            if self.values is None or self.values.dtype == target:
                return self
            return self.with_values(self.values.to(target))
        device = torch.device(target)
        if device == self.device:
            return self
        matrix = self.compact()
        return Adjacency(
            matrix.starts.to(device),
            matrix.ends.to(device),
            matrix.indices.to(device),
            None if matrix.values is None else matrix.values.to(device),
            matrix.columns,
            matrix.column_base,
            matrix.self_start,
            None if matrix.positions is None else matrix.positions.to(device),
        )

    def double(self) -> Adjacency:
        """The same matrix with float64 values."""
        return self.to(torch.float64)

    def float(self) -> Adjacency:
        """The same matrix with float32 values."""
        return self.to(torch.float32)

    def with_values(self, values: Tensor | None) -> Adjacency:
        """The same entries with other values (laid out like `indices`). A transpose that exists is not built again."""
        result = replace(self, values=values, _cache={})
        turned = self._cache.get("transpose")
        if isinstance(turned, Adjacency) and turned.positions is not None:
            moved = None if values is None else values[turned.positions.long()]
            result._cache["transpose"] = replace(turned, values=moved, _cache={"transpose": weakref.ref(result)})
        return result

    def dense(self) -> Tensor:
        """The matrix as a dense tensor [rows, columns]; for tests and small graphs."""
        out = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        source, target = self.edge_index()
        weight = self.edge_weight()
        ones = torch.ones(self.entries, dtype=self.dtype, device=self.device)
        return out.index_put_((target, source), ones if weight is None else weight, accumulate=True)

    def __repr__(self) -> str:
        return f"Adjacency({self.rows} x {self.columns}, {self.entries} entries, weighted={self.values is not None})"


def _check_range(what: str, start: int, stop: int, size: int) -> None:
    if not 0 <= start <= stop <= size:
        raise DataError(f"The range of {what} {start}..{stop} does not lie within 0..{size}.")


def _lower_bound(indices: Tensor, starts: Tensor, ends: Tensor, bound: int) -> Tensor:
    """For each row the first position whose index is not below `bound`."""
    if available() and indices.device.type == "cpu":
        starts, ends = starts.contiguous(), ends.contiguous()
        out = torch.empty_like(starts)
        _LOWER_BOUND(
            *(indices.data_ptr(), starts.data_ptr(), ends.data_ptr(), starts.numel(), bound, out.data_ptr(), threads())
        )
        return out
    return _lower_bound_torch(indices, starts, ends, bound)


def _lower_bound_torch(indices: Tensor, starts: Tensor, ends: Tensor, bound: int) -> Tensor:
    """Binary search in all rows at once."""
    low, high = starts.clone(), ends.clone()
    while bool((low < high).any()):
        middle = (low + high) >> 1
        active = low < high
        below = active & (indices[middle.clamp(max=max(indices.numel() - 1, 0))] < bound)
        low = torch.where(below, middle + 1, low)
        high = torch.where(active & ~below, middle, high)
    return low


def _equal(turned: Adjacency, matrix: Adjacency) -> bool:
    """Whether a new transpose has the very arrays of the matrix."""
    if matrix.rows != matrix.columns or not matrix.is_plain() or not torch.equal(turned.starts, matrix.starts):
        return False
    if not torch.equal(turned.indices, matrix.indices):
        return False
    return matrix.values is None or (turned.values is not None and torch.equal(turned.values, matrix.values))


def _transpose(matrix: Adjacency) -> Adjacency:
    """Counting sort by column; within a column the rows stay ascending."""
    small = matrix.indices.numel() < 2**31 and matrix.rows > 0 and matrix.columns > 0
    if available() and matrix.device.type == "cpu" and small:
        return _transpose_native(matrix)
    return _transpose_torch(matrix)


def _transpose_native(matrix: Adjacency) -> Adjacency:
    entries = matrix.entries
    starts, ends, indices = matrix.starts.contiguous(), matrix.ends.contiguous(), matrix.indices.contiguous()
    keys, load = torch.empty(entries, dtype=torch.int64), torch.empty(entries, dtype=torch.int32)
    pointers = torch.empty(matrix.columns + 1, dtype=torch.int64)
    rows, positions = torch.empty(entries, dtype=torch.int32), torch.empty(entries, dtype=torch.int32)
    failed = _TRANSPOSE(
        *(starts.data_ptr(), ends.data_ptr(), indices.data_ptr()),
        *(matrix.column_base, matrix.rows, matrix.columns, entries, keys.data_ptr(), load.data_ptr()),
        *(pointers.data_ptr(), rows.data_ptr(), positions.data_ptr(), threads()),
    )
    if failed:
        raise TrisectError(f"There is not enough memory to transpose a matrix of {entries} entries.")
    del keys, load
    values = None if matrix.values is None else matrix.values[positions]
    return Adjacency(
        pointers[:-1], pointers[1:], rows, values, matrix.rows, self_start=-matrix.self_start, positions=positions
    )


def _transpose_torch(matrix: Adjacency) -> Adjacency:
    device = matrix.device
    lengths = matrix.ends - matrix.starts
    row_of = torch.repeat_interleave(torch.arange(matrix.rows, device=device), lengths)
    entry = matrix.entry_positions()
    column = matrix.indices[entry].to(torch.int64) - matrix.column_base
    order = torch.argsort(column, stable=True)
    entry = entry[order]
    pointers = torch.zeros(matrix.columns + 1, dtype=torch.int64, device=device)
    pointers[1:] = torch.cumsum(torch.bincount(column, minlength=matrix.columns), 0)
    return Adjacency(
        starts=pointers[:-1],
        ends=pointers[1:],
        indices=row_of[order].to(torch.int32),
        values=None if matrix.values is None else matrix.values[entry],
        columns=matrix.rows,
        self_start=-matrix.self_start,
        positions=entry.to(torch.int32) if matrix.indices.numel() < 2**31 else entry,
    )
