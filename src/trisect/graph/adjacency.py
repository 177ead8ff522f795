"""`Adjacency`: a sparse matrix of edges by rows, whose row and column ranges are views.

Row i lists what vertex i reads: an edge j → i of weight w is the entry (row i, column j, value w).
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from trisect.errors import DataError
from trisect.graph import csr
from trisect.graph.derived import Derived, KernelArrays, Origin
from trisect.graph.sound import check_arrays, check_entries, check_sizes, narrow_indices, pointer_array


@dataclass(frozen=True, eq=False)
class Adjacency:
    """A CSR matrix, or a rectangular block of one without a copy of its entries.

    The entries of row i are the positions starts[i] .. ends[i]-1 of `indices` and `values`, in ascending column
    order; an entry's column is indices[k] - column_base. A plain matrix has starts = indptr[:-1] and ends = indptr[1:].

    The arrays are not copied, and should not be changed. Where torch has changed one of them in place, all are checked
    again before the next use, and what was made of them is made anew; a change past torch (through numpy) is not seen.

    Args:
        starts, ends: int64 [rows].
        indices: int32 [entries of the whole matrix].
        values: float [same length], or None where every edge counts 1.
        columns: the number of columns.
        column_base: subtracted from `indices`; lets a block read a narrower matrix of features.
        self_start: the column that is row 0 itself; row i is column self_start + i. (Rows are a run of the columns.)
        positions: int32 or int64 [same length as indices], only in a transposed matrix: where each entry stands in the
            original's `indices`, for values that belong to edges and are made on the way (attention).
        features: float [same length as indices, features], those of each edge, or None. They live with the rows that
            read them: a transposed matrix has none, and finds them by its positions.
    """

    starts: Tensor
    ends: Tensor
    indices: Tensor
    values: Tensor | None
    columns: int
    column_base: int = 0
    self_start: int = 0
    positions: Tensor | None = None
    features: Tensor | None = None
    # not among the arguments, so that `replace` begins with nothing derived
    _derived: Derived = field(default_factory=Derived, init=False, repr=False)

    @classmethod
    def from_csr(
        cls, indptr: Tensor, indices: Tensor, values: Tensor | None, columns: int, self_start: int = 0
    ) -> Adjacency:
        """A matrix from CSR arrays, sorted within rows (`graph.build` makes one from edges in any order).

        A contiguous `indptr` of int64, contiguous `indices` of int32 and the values are not copied: do not write to
        them afterwards, nor to numpy arrays of the same memory, since kernels would read where changed entries point.
        """
        pointers, indices = pointer_array(indptr), narrow_indices(indices)
        return cls(pointers[:-1], pointers[1:], indices, values, columns, 0, self_start)

    def __post_init__(self) -> None:
        """Refuse arrays of another type, shape or device; what they hold is looked at by `checked`."""
        check_arrays(self.starts, self.ends, self.indices, self.values, self.positions, self.features)
        check_sizes(self.columns, self.column_base, self.self_start)

    def checked(self) -> Adjacency:
        """Return this matrix after a look at every entry, which is done once, and again where arrays were changed.

        Whatever hands the arrays to a kernel asks for it.

        Raises:
            DataError: an entry lies outside the arrays or the columns, or a row is not in ascending order.
        """
        if not self._current().sound:
            self._check()
        return self

    def _current(self) -> Derived:
        """Return what has been made of the arrays; nothing of arrays that were changed since, which are checked anew.

        Raises:
            DataError: the changed arrays are no matrix; at every call until they are one again.
        """
        derived, version = self._derived, self._version()
        if derived.version != version:
            if derived.version is not None:
                derived.forget()
                try:
                    self._check()
                except DataError as error:
                    raise DataError(f"an adjacency was changed in place after its check: {error}") from error
            derived.version = version
        return derived

    def _check(self) -> None:
        # a kernel looks at the entries, and must find arrays of the right types and lengths
        check_arrays(self.starts, self.ends, self.indices, self.values, self.positions, self.features)
        check_entries(self.starts, self.ends, self.indices, self.columns, self.column_base, self.positions)
        self._derived.sound = True

    def _version(self) -> tuple[object, ...]:
        """Return what differs after torch has changed an array in place, or put another in its place (`.data = …`).

        Inference tensors do not count changes. What is written through `numpy()` or `.data[…]` is not seen.
        """
        starts, ends, indices = self.starts, self.ends, self.indices
        others: tuple[object, ...] = ()
        try:
            version = starts._version + ends._version + indices._version
            for array in (self.values, self.positions, self.features):
                if array is not None:
                    version += array._version
                    others += (array.data_ptr(), array.shape)
        except RuntimeError:
            version = -1
        pointers = starts.data_ptr(), ends.data_ptr(), indices.data_ptr()
        return version, *pointers, starts.shape, ends.shape, indices.shape, others

    def vouched(self) -> Adjacency:
        """This matrix, which was made of sound ones in a way that keeps it so and need not be looked at."""
        self._current().sound = True
        return self

    def _as_sound_as(self, matrix: Adjacency) -> Adjacency:
        """Return this matrix, whose entries are some of those of another, and which is sound where that one is."""
        if matrix._current().sound:
            self.vouched()
        return self

    @property
    def rows(self) -> int:
        """Give the number of rows."""
        return self.starts.numel()

    @property
    def shape(self) -> tuple[int, int]:
        """Give the numbers of rows and columns."""
        return self.rows, self.columns

    @property
    def device(self) -> torch.device:
        """Give the device on which the arrays live."""
        return self.indices.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the values; float32 where there are none."""
        return torch.float32 if self.values is None else self.values.dtype

    @property
    def edge_channels(self) -> int:
        """Give the number of features of an edge; 0 where there are none."""
        return 0 if self.features is None else self.features.shape[1]

    @property
    def entries(self) -> int:
        """Count the entries of the block."""
        derived = self._current()
        if derived.entries is None:
            derived.entries = int((self.ends - self.starts).sum())
        return derived.entries

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays, those of a transpose that is already built included; shared arrays count once."""
        seen: dict[int, int] = {}
        self._count_bytes(seen)
        return sum(seen.values())

    def _count_bytes(self, seen: dict[int, int]) -> None:
        derived = self._derived
        own = (self.starts, self.ends, self.indices, self.values, self.positions, self.features)
        for array in (*own, *derived.arrays()):
            if array is not None:
                storage = array.untyped_storage()
                seen[storage.data_ptr()] = storage.nbytes()
        for matrix in derived.relations.values():
            matrix._count_bytes(seen)
        if derived.transpose is not None:
            derived.transpose._count_bytes(seen)

    def rows_between(self, start: int, stop: int) -> Adjacency:
        """Give the rows start..stop-1 as a view."""
        _check_range("rows", start, stop, self.rows)
        block = replace(
            self,
            starts=self.starts[start:stop],
            ends=self.ends[start:stop],
            self_start=self.self_start + start,
        )
        block._derived.origin = Origin("rows", self, start, stop)
        return block._as_sound_as(self)

    def rows_at(self, rows: Tensor) -> Adjacency:
        """Give the rows of these numbers, or where a mask is True, as a view."""
        return replace(self, starts=self.starts[rows], ends=self.ends[rows])._as_sound_as(self)

    def columns_between(self, start: int, stop: int) -> Adjacency:
        """Columns start..stop-1, numbered from 0, as a view (two searches per row, no copy of the entries)."""
        _check_range("columns", start, stop, self.columns)
        self.checked()
        block = replace(
            self,
            starts=csr.lower_bound(self.indices, self.starts, self.ends, start + self.column_base),
            ends=csr.lower_bound(self.indices, self.starts, self.ends, stop + self.column_base),
            columns=stop - start,
            column_base=self.column_base + start,
            self_start=self.self_start - start,
        )
        block._derived.origin = Origin("columns", self, start, stop)
        return block.vouched()

    def transpose(self, *, positions: bool = False) -> Adjacency:
        """The transposed matrix, built once. The transpose of a view is a view of the whole matrix's.

        Its `positions` point into this matrix's `indices`, which views share with the whole. A matrix that is symmetric
        shares its arrays with its transpose; such a one, and one whose maker knows a shorter way to its transpose (see
        `with_transpose`), have positions only where they are asked for.
        """
        transpose, derived = self._existing_transpose(), self._derived
        if transpose is not None and (transpose.positions is not None or not positions):
            return transpose
        origin = derived.origin
        if origin is not None:
            turned = origin.matrix.transpose(positions=positions)
            between = turned.columns_between if origin.axis == "rows" else turned.rows_between
            result = between(origin.start, origin.stop)
        elif derived.make_transpose is not None and not positions:
            result = derived.make_transpose()
        else:
            result = self._turned()
            if not positions and _equal(result, self):
                result = replace(self, self_start=-self.self_start, positions=None, features=None).vouched()
        self._join(result)
        derived.make_transpose = None
        return result

    def _existing_transpose(self) -> Adjacency | None:
        """Give the transpose if it is there already."""
        derived = self._current()
        if derived.transpose is None and derived.original is not None:
            original = derived.original()
            # one that was changed has let go of this matrix
            return original if original is not None and original._current().transpose is self else None
        return derived.transpose

    def _join(self, transpose: Adjacency) -> None:
        """Let the two matrices know each other as transposes."""
        self._derived.transpose = transpose
        transpose._derived.transpose, transpose._derived.original = None, weakref.ref(self)

    def _turned(self) -> Adjacency:
        """Sort the entries by column into a new matrix."""
        self.checked()
        arrays = (self.indices, self.starts, self.ends)
        pointers, rows, positions = csr.turn(*arrays, self.columns, self.column_base, self.entries)
        values = None if self.values is None else self.values[positions]
        return Adjacency(
            pointers[:-1], pointers[1:], rows, values, self.rows, self_start=-self.self_start, positions=positions
        ).vouched()

    def has_transpose(self) -> bool:
        """Tell whether the transpose is there already."""
        return self._existing_transpose() is not None

    def with_transpose(self, make: Callable[[], Adjacency]) -> Adjacency:
        """This matrix, with a way to its transpose that is shorter than sorting; called at the first need."""
        self._derived.make_transpose = make
        return self

    def as_symmetric(self) -> Adjacency:
        """This matrix, known to be symmetric with its values: the transpose has the same arrays."""
        self._join(replace(self, self_start=-self.self_start, features=None)._as_sound_as(self))
        return self

    def with_entries(self, entries: int) -> Adjacency:
        """This matrix, whose number of entries is known and need not be counted."""
        self._current().entries = entries
        return self

    def is_symmetric(self) -> bool:
        """Whether the matrix, with its values, is its own transpose (which is built for the answer).

        Not told of a view: False.
        """
        if self._derived.origin is not None:
            return False
        turned = self.transpose()
        return self.shape == turned.shape and self.indices.data_ptr() == turned.indices.data_ptr()

    def transpose_shares_arrays(self) -> bool:
        """Tell whether a transpose is there already and has the same arrays; nothing is built for the answer."""
        turned = self._existing_transpose()
        return turned is not None and turned.indices is self.indices and turned.values is self.values

    def read_columns(self) -> tuple[Tensor | None, Adjacency]:
        """Find the columns that the block reads (None: all), and their rows of its transpose; once."""
        derived = self.checked()._derived
        if derived.read is not None:
            return derived.read
        had_transpose = derived.transpose is not None or derived.original is not None
        turned = self.transpose()
        rows = torch.nonzero(turned.ends > turned.starts)[:, 0]
        derived.read = (None, turned)
        if rows.numel() < turned.rows:
            derived.read = (rows, turned.rows_at(rows))
            if not had_transpose and 2 * rows.numel() <= turned.rows:
                # two integers for every column of the whole matrix are much for a small block
                derived.transpose = None
        return derived.read

    def values_as(self, dtype: torch.dtype) -> Tensor | None:
        """Give the values in the type that a kernel reads; converted once for a matrix and all its views."""
        if self.values is None or _is_as(self.values, dtype):
            return self.values
        return _converted(self.values, dtype, self._home().checked()._derived.values)

    def for_kernels(self, dtype: torch.dtype) -> KernelArrays:
        """Give starts, ends, indices and values of that type, contiguous, after a check: as kernels read them; once."""
        arrays = self.checked()._derived.kernels.get(dtype)
        if arrays is None:
            if self.device.type != "cpu":
                raise DataError(f"the adjacency is on {self.device}, and the rows on the CPU; move one of them.")
            arrays = (self.starts.contiguous(), self.ends.contiguous(), self.indices, self.values_as(dtype))
            self._derived.kernels[dtype] = arrays
        return arrays

    def features_as(self, dtype: torch.dtype) -> Tensor | None:
        """Give the edges' features in the type that a kernel reads; converted once for a matrix and all its views."""
        if self.features is None or _is_as(self.features, dtype):
            return self.features
        return _converted(self.features, dtype, self._home().checked()._derived.features)

    def _home(self) -> Adjacency:
        """Give the matrix that this one is a view of, or itself."""
        home = self
        while home._derived.origin is not None:
            home = home._derived.origin.matrix
        return home

    def inverse_counts(self, dtype: torch.dtype) -> Tensor:
        """Give 1 / the number of entries for each row (1 for empty rows), [rows]; made once."""
        kept = self.checked()._derived.inverse_counts
        if dtype not in kept:
            kept[dtype] = (self.ends - self.starts).clamp(min=1).to(dtype).reciprocal()
        return kept[dtype]

    def long_positions(self) -> Tensor:
        """Give the `positions` of a transposed matrix as int64; made once."""
        derived = self.checked()._derived
        if derived.positions is None:
            if self.positions is None:
                raise DataError(f"{self} has no positions; take them of transpose(positions=True).")
            derived.positions = self.positions.to(torch.int64).contiguous()
        return derived.positions

    def csr_tensor(self, dtype: torch.dtype) -> Tensor:
        """Give the block as a sparse tensor of torch with values of that type; made once for each type."""
        kept = self.checked()._derived.csr
        if dtype not in kept:
            plain = self.compact()
            values = plain.values
            if values is None:
                values = torch.ones(plain.indices.numel(), device=plain.device)
            index = torch.int32 if plain.indices.numel() < 2**31 else torch.int64
            pointers = torch.cat([plain.starts[:1], plain.ends]).to(index)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "sparse CSR is in beta"
                kept[dtype] = torch.sparse_csr_tensor(
                    pointers, plain.indices.to(index), values.to(dtype).detach(), plain.shape
                )
        return kept[dtype]

    def entry_positions(self) -> Tensor:
        """int64 [entries]: where the block's entries, row by row, stand in `indices`."""
        return csr.entry_positions(self.starts, self.ends, self.entries)

    def is_plain(self) -> bool:
        """Whether the entries lie one after the other from position 0 and columns are `indices` themselves."""
        if self.column_base != 0 or self.indices.numel() != self.entries:
            return False
        if self.rows == 0 or self.entries == 0:
            return True
        return int(self.starts[0]) == 0 and bool((self.starts[1:] == self.ends[:-1]).all())

    def compact(self) -> Adjacency:
        """The block as a matrix of its own, with contiguous entries; itself where that is so already."""
        self.checked()
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
            features=None if self.features is None else self.features[entry],
        ).vouched()

    def pointers(self) -> Tensor:
        """int64 [rows + 1] of a matrix whose entries are contiguous."""
        return torch.cat([self.starts, self.ends[-1:]]) if self.rows else torch.zeros(1, dtype=torch.int64)

    def edge_index(self) -> Tensor:
        """int64 [2, entries], as PyG's layers read it: row 0 the column (source) and row 1 the row (target) of each
        entry, both numbered from 0 within the block. Made once."""
        self.checked()
        if self._derived.edge_index is None:
            row, column = self.coordinates()
            self._derived.edge_index = torch.stack([column, row])
        return self._derived.edge_index

    def coordinates(self) -> tuple[Tensor, Tensor]:
        """The row and the column of each entry, row by row: int64 [entries] both, numbered from 0 within the block."""
        self.checked()
        row = torch.repeat_interleave(torch.arange(self.rows, device=self.device), self.ends - self.starts)
        read = self.indices if self.is_plain() else self.indices[self.entry_positions()] - self.column_base
        return row, read.long()

    def edge_weight(self) -> Tensor | None:
        """The values in the order of `edge_index`, or None."""
        if self.values is None or self.is_plain():
            return self.values
        return self.values[self.checked().entry_positions()]

    def edge_attributes(self) -> Tensor | None:
        """The edges' features in the order of `edge_index`, [entries, features], or None; PyG's `edge_attr`."""
        if self.features is None or self.is_plain():
            return self.features
        return self.features[self.checked().entry_positions()]

    def to(self, target: torch.device | str | torch.dtype) -> Adjacency:
        """The same matrix on another device, or with values of another type. Views are made compact on a move."""
        if isinstance(target, torch.dtype):
            result = self
            if self.values is not None and self.values.dtype != target:
                result = self.with_values(self.values.to(target))
            if self.features is not None and self.features.dtype != target:
                result = result.with_features(self.features.to(target))
            return result
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
            None if matrix.features is None else matrix.features.to(device),
        )._as_sound_as(matrix)

    def double(self) -> Adjacency:
        """The same matrix with float64 values."""
        return self.to(torch.float64)

    def float(self) -> Adjacency:
        """The same matrix with float32 values."""
        return self.to(torch.float32)

    def with_values(self, values: Tensor | None) -> Adjacency:
        """The same entries with other values (laid out like `indices`). A transpose that exists is not built again."""
        result = replace(self, values=values)._as_sound_as(self)
        turned = self._derived.transpose
        if turned is not None and turned.positions is not None:
            moved = None if values is None else values[turned.positions.long()]
            result._join(replace(turned, values=moved)._as_sound_as(turned))
        return result

    def with_features(self, features: Tensor | None) -> Adjacency:
        """The same entries and values with these features of edges (laid out like `indices`)."""
        result = replace(self, features=features)._as_sound_as(self)
        result._derived.entries = self._derived.entries
        turned = self._derived.transpose
        if turned is not None and turned.positions is not None:
            result._join(replace(turned)._as_sound_as(turned))
        return result._as_sound_as(self)

    def dense(self) -> Tensor:
        """The matrix as a dense tensor [rows, columns]; for tests and small graphs."""
        out = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        source, target = self.edge_index()
        weight = self.edge_weight()
        ones = torch.ones(self.entries, dtype=self.dtype, device=self.device)
        return out.index_put_((target, source), ones if weight is None else weight, accumulate=True)

    def __repr__(self) -> str:
        return f"Adjacency({self.rows} x {self.columns}, {self.entries} entries, weighted={self.values is not None})"


def _is_as(array: Tensor, dtype: torch.dtype) -> bool:
    return array.dtype == dtype and array.is_contiguous()


def _converted(array: Tensor, dtype: torch.dtype, kept: dict[torch.dtype, Tensor]) -> Tensor:
    if dtype not in kept:
        kept[dtype] = array.to(dtype).contiguous()
    return kept[dtype]


def _check_range(what: str, start: int, stop: int, size: int) -> None:
    if not 0 <= start <= stop <= size:
        raise DataError(f"The range of {what} {start}..{stop} does not lie within 0..{size}.")


def _equal(turned: Adjacency, matrix: Adjacency) -> bool:
    """Whether a new transpose has the very arrays of the matrix."""
    if matrix.rows != matrix.columns or not matrix.is_plain() or not torch.equal(turned.starts, matrix.starts):
        return False
    if not torch.equal(turned.indices, matrix.indices):
        return False
    return matrix.values is None or (turned.values is not None and torch.equal(turned.values, matrix.values))
