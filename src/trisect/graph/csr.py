"""Searches and transposes of CSR arrays: the native kernel, and the same in plain torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.errors import TrisectError
from trisect.native.library import INT, INT64, POINTER, Kernel, available, threads

_TRANSPOSE = Kernel(
    "trisect_transpose",
    *(POINTER, POINTER, POINTER, INT64, INT64, INT64, INT64, POINTER, POINTER, POINTER, POINTER, POINTER, INT),
    returns=INT,
)
_LOWER_BOUND = Kernel("trisect_lower_bound", POINTER, POINTER, POINTER, INT64, INT64, POINTER, INT)

Turned = tuple[Tensor, Tensor, Tensor]
"""A transpose: int64 [columns + 1] pointers, int32 [entries] rows, int32 or int64 [entries] positions of the entries in
the original's arrays."""


def lower_bound(indices: Tensor, starts: Tensor, ends: Tensor, bound: int) -> Tensor:
    """Find for each row the first position whose index is not below `bound`."""
    if available() and indices.device.type == "cpu":
        starts, ends = starts.contiguous(), ends.contiguous()
        out = torch.empty_like(starts)
        _LOWER_BOUND(
            *(indices.data_ptr(), starts.data_ptr(), ends.data_ptr(), starts.numel(), bound, out.data_ptr(), threads())
        )
        return out
    return lower_bound_torch(indices, starts, ends, bound)


def lower_bound_torch(indices: Tensor, starts: Tensor, ends: Tensor, bound: int) -> Tensor:
    """Do a binary search in all rows at once."""
    low, high = starts.clone(), ends.clone()
    while bool((low < high).any()):
        middle = (low + high) >> 1
        active = low < high
        below = active & (indices[middle.clamp(max=max(indices.numel() - 1, 0))] < bound)
        low = torch.where(below, middle + 1, low)
        high = torch.where(active & ~below, middle, high)
    return low


def turn(indices: Tensor, starts: Tensor, ends: Tensor, columns: int, column_base: int, entries: int) -> Turned:
    """Transpose by a counting sort over columns; within a column the rows stay ascending."""
    small = indices.numel() < 2**31 and starts.numel() > 0 and columns > 0
    if available() and indices.device.type == "cpu" and small:
        return _turn_native(indices, starts, ends, columns, column_base, entries)
    return turn_torch(indices, starts, ends, columns, column_base, entries)


def _turn_native(indices: Tensor, starts: Tensor, ends: Tensor, columns: int, column_base: int, entries: int) -> Turned:
    starts, ends, indices = starts.contiguous(), ends.contiguous(), indices.contiguous()
    keys, load = torch.empty(entries, dtype=torch.int64), torch.empty(entries, dtype=torch.int32)
    pointers = torch.empty(columns + 1, dtype=torch.int64)
    rows, positions = torch.empty(entries, dtype=torch.int32), torch.empty(entries, dtype=torch.int32)
    failed = _TRANSPOSE(
        *(starts.data_ptr(), ends.data_ptr(), indices.data_ptr()),
        *(column_base, starts.numel(), columns, entries, keys.data_ptr(), load.data_ptr()),
        *(pointers.data_ptr(), rows.data_ptr(), positions.data_ptr(), threads()),
    )
    if failed:
        raise TrisectError(f"There is not enough memory to transpose a matrix of {entries} entries.")
    return pointers, rows, positions


def turn_torch(indices: Tensor, starts: Tensor, ends: Tensor, columns: int, column_base: int, entries: int) -> Turned:
    """Transpose by torch's stable sort."""
    device = indices.device
    row_of = torch.repeat_interleave(torch.arange(starts.numel(), device=device), ends - starts)
    entry = entry_positions(starts, ends, entries)
    column = indices[entry].to(torch.int64) - column_base
    order = torch.argsort(column, stable=True)
    entry = entry[order]
    pointers = torch.zeros(columns + 1, dtype=torch.int64, device=device)
    pointers[1:] = torch.cumsum(torch.bincount(column, minlength=columns), 0)
    positions = entry.to(torch.int32) if indices.numel() < 2**31 else entry
    return pointers, row_of[order].to(torch.int32), positions


def entry_positions(starts: Tensor, ends: Tensor, entries: int) -> Tensor:
    """List where the entries, row by row, stand in the arrays: int64 [entries]."""
    lengths = ends - starts
    offsets = torch.cumsum(lengths, 0) - lengths
    return torch.repeat_interleave(starts - offsets, lengths) + torch.arange(entries, device=starts.device)
