"""Edge lists to CSR arrays: sorted rows, duplicates added up. Input is already checked (see `graph.build`).

The native path deals edges to buckets and sorts those in cache; the torch path sorts 64-bit keys and is its oracle.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from trisect.errors import TrisectError
from trisect.native.library import INT, INT64, POINTER, Kernel, available, threads

_SHIFT = Kernel("trisect_coo_shift", INT64, INT64, returns=INT)
_SORT = Kernel(
    "trisect_coo_sort",
    *(POINTER, POINTER, INT, POINTER, POINTER, POINTER, INT64, INT64, INT64, INT),
    *(INT64, INT64, INT, POINTER, POINTER, POINTER, POINTER, POINTER, INT),
    returns=INT64,
)
_WRITE = Kernel("trisect_coo_write", POINTER, POINTER, POINTER, INT64, INT, INT, POINTER, POINTER, INT)

Csr = tuple[Tensor, Tensor, Tensor | None]


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges src → dst, or the stretch first..last-1 of a longer list, none of it copied.

    Args:
        src, dst: int32 or int64 [events], the same type.
        weight: float [events], or None where every edge counts 1.
        segments: int64 [parts + 1] ascending positions from `first` to `last`; part p is multiplied by coefficients[p].
        coefficients: float64 [parts].
        both: whether each edge counts in both directions (a loop once).
    """

    src: Tensor
    dst: Tensor
    weight: Tensor | None = None
    first: int = 0
    last: int = -1
    segments: Tensor | None = None
    coefficients: Tensor | None = None
    both: bool = False

    @property
    def stop(self) -> int:
        """Give the position one past the last edge."""
        return self.src.numel() if self.last < 0 else self.last


def assemble(
    edges: Edges, rows: int, columns: int, dtype: torch.dtype = torch.float32, *, native: bool | None = None
) -> Csr:
    """(pointers int64 [rows + 1], indices int32, values or None) of the matrix with row = dst and column = src.

    Values are None where nothing is weighted and no pair occurs twice.
    """
    if native is None:
        native = available() and dtype == torch.float32 and edges.src.device.type == "cpu"
    return _assemble_native(edges, rows, columns) if native else _assemble_torch(edges, rows, columns, dtype)


def _assemble_native(edges: Edges, rows: int, columns: int) -> Csr:
    count = edges.stop - edges.first
    records = 2 * count if edges.both else count
    weighted = edges.weight is not None or edges.coefficients is not None
    weight = None if edges.weight is None else edges.weight.to(torch.float32).contiguous()
    shift = _SHIFT(rows, records)
    keys = torch.empty(records, dtype=torch.int64)
    load = torch.empty(records if weighted else 0, dtype=torch.float32)
    starts = torch.empty(((rows - 1) >> shift) + 2, dtype=torch.int64)
    pointers = torch.zeros(rows + 1, dtype=torch.int64)
    ones = ctypes.c_int(1)
    parts = 0 if edges.coefficients is None else edges.coefficients.numel()
    source, target = edges.src.contiguous(), edges.dst.contiguous()
    entries = _SORT(
        source.data_ptr(),
        target.data_ptr(),
        int(source.dtype == torch.int64),
        None if weight is None else weight.data_ptr(),
        None if edges.segments is None else edges.segments.data_ptr(),
        None if edges.coefficients is None else edges.coefficients.data_ptr(),
        parts,
        edges.first,
        edges.stop,
        int(edges.both),
        rows,
        columns,
        shift,
        keys.data_ptr(),
        load.data_ptr() if weighted else None,
        starts.data_ptr(),
        pointers[1:].data_ptr(),
        ctypes.addressof(ones),
        threads(),
    )
    if entries < 0:
        raise TrisectError(f"There is not enough memory to sort {records} edges.")
    del load
    torch.cumsum(pointers, 0, out=pointers)
    indices = torch.empty(entries, dtype=torch.int32)
    values = torch.empty(entries, dtype=torch.float32) if weighted or not ones.value else None
    _WRITE(
        keys.data_ptr(),
        starts.data_ptr(),
        pointers.data_ptr(),
        rows,
        shift,
        int(weighted),
        indices.data_ptr(),
        None if values is None else values.data_ptr(),
        threads(),
    )
    return pointers, indices, values


def _assemble_torch(edges: Edges, rows: int, columns: int, dtype: torch.dtype) -> Csr:
    stretch = slice(edges.first, edges.stop)
    source, target = edges.src[stretch].long(), edges.dst[stretch].long()
    weight = None if edges.weight is None else edges.weight[stretch].double()
    if edges.coefficients is not None and edges.segments is not None:
        factor = torch.repeat_interleave(edges.coefficients, edges.segments.diff().to(edges.coefficients.device))
        weight = factor if weight is None else weight * factor
    if edges.both:
        back = source != target
        source, target = torch.cat([source, target[back]]), torch.cat([target, source[back]])
        weight = None if weight is None else torch.cat([weight, weight[back]])
    pairs, which, times = torch.unique(target * columns + source, return_inverse=True, return_counts=True)
    row_of = torch.div(pairs, columns, rounding_mode="floor")
    values: Tensor | None
    if weight is not None:
        values = torch.zeros(pairs.numel(), dtype=torch.float64, device=pairs.device).index_add_(0, which, weight)
        values = values.to(dtype)
    else:
        values = None if bool((times == 1).all()) else times.to(dtype)
    pointers = torch.zeros(rows + 1, dtype=torch.int64, device=pairs.device)
    pointers[1:] = torch.cumsum(torch.bincount(row_of, minlength=rows), 0)
    return pointers, (pairs - row_of * columns).to(torch.int32), values
