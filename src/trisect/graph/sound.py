"""Whether the arrays of an `Adjacency` may be read: kernels take pointers, and would read whatever lies there."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor

from trisect.errors import DataError
from trisect.graph.check import LIMIT
from trisect.native.library import INT64, POINTER, Kernel, available

_FIRST_UNSOUND = Kernel("trisect_first_unsound", *[POINTER] * 3, *[INT64] * 4, POINTER, returns=INT64)
_OUTSIDE_ARRAYS, _OUTSIDE_COLUMNS, _DESCENDS = 1, 2, 3


def check_arrays(
    starts: Tensor,
    ends: Tensor,
    indices: Tensor,
    values: Tensor | None,
    positions: Tensor | None,
    features: Tensor | None = None,
) -> None:
    """Raise a DataError for an array of another type, shape, layout or device than a matrix has; reads none of them."""
    _check("starts", starts, (torch.int64,), None, starts, contiguous=False)
    _check("ends", ends, (torch.int64,), starts.numel(), starts, contiguous=False)
    _check("indices", indices, (torch.int32,), None, starts)
    if values is not None:
        if not isinstance(values, Tensor) or not values.is_floating_point():
            raise DataError(f"values are {_kind(values)}; give a tensor of floating-point numbers.")
        _check("values", values, (values.dtype,), indices.numel(), starts, contiguous=False)
    if positions is not None:
        _check("positions", positions, (torch.int32, torch.int64), indices.numel(), starts)
    if features is not None:
        check_features(features, indices)


def check_features(features: Tensor, indices: Tensor) -> None:
    """Raise a DataError for features of edges of another type, shape or device than those of these entries have."""
    if not isinstance(features, Tensor) or not features.is_floating_point() or features.layout != torch.strided:
        raise DataError(f"The edges' features are {_kind(features)}; give a dense tensor of floating-point numbers.")
    if features.dim() != 2 or features.shape[0] != indices.numel():
        raise DataError(
            f"The edges' features have the shape {list(features.shape)}; [{indices.numel()}, features] is needed."
        )
    if features.device != indices.device:
        raise DataError(
            f"The edges' features are on {features.device}, and indices on {indices.device}; bring all arrays to one"
            " device."
        )


def _check(
    name: str,
    array: object,
    dtypes: tuple[torch.dtype, ...],
    length: int | None,
    like: Tensor,
    *,
    contiguous: bool = True,
) -> None:
    if not isinstance(array, Tensor) or array.dtype not in dtypes or array.layout != torch.strided:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise DataError(f"{name} is {_kind(array)}; give a dense tensor of {wanted}.")
    if array.dim() != 1 or (length is not None and array.numel() != length):
        wanted = "one dimension" if length is None else f"[{length}]"
        raise DataError(f"{name} has the shape {list(array.shape)}; it must be {wanted}.")
    if array.device != like.device:
        raise DataError(f"{name} is on {array.device}, and starts on {like.device}; bring all arrays to one device.")
    if contiguous and not array.is_contiguous():
        raise DataError(f"{name} has a stride of {array.stride(0)}; give {name}.contiguous().")


def _kind(array: object) -> str:
    return f"{array.dtype} ({array.layout})" if isinstance(array, Tensor) else type(array).__name__


def check_sizes(columns: int, column_base: int, self_start: int) -> None:
    """Raise a DataError for numbers that are no integers, or that no matrix has."""
    for name, number, least in (
        ("columns", columns, 0),
        ("column_base", column_base, 0),
        ("self_start", self_start, -LIMIT),
    ):
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
            raise DataError(f"{name} is {number!r}; give an integer.")
        if not least <= number < LIMIT:
            raise DataError(f"{name} is {number}; it must be from {least} to {LIMIT - 1}.")


def check_entries(
    starts: Tensor, ends: Tensor, indices: Tensor, columns: int, column_base: int, positions: Tensor | None = None
) -> None:
    """Raise a DataError that names the first row whose entries lie outside the arrays or columns, or descend."""
    if available() and indices.device.type == "cpu" and _FIRST_UNSOUND.exists():
        flaw = ctypes.c_int(0)
        starts, ends = starts.contiguous(), ends.contiguous()
        row = _FIRST_UNSOUND(
            *(starts.data_ptr(), ends.data_ptr(), indices.data_ptr()),
            *(starts.numel(), indices.numel(), column_base, columns, ctypes.addressof(flaw)),
        )
        kind = flaw.value
    else:
        row, kind = first_unsound_torch(starts, ends, indices, columns, column_base)
    if row >= 0:
        raise DataError(_sentence(row, kind, starts, ends, indices, columns, column_base))
    if positions is not None and positions.numel():
        low, high = int(positions.min()), int(positions.max())
        if low < 0:
            raise DataError(f"positions has {low}; it must not be negative.")
        if high >= LIMIT and indices.numel() < LIMIT:
            raise DataError(f"positions has {high}, more than a matrix of this size has entries.")


def first_unsound_torch(
    starts: Tensor, ends: Tensor, indices: Tensor, columns: int, column_base: int
) -> tuple[int, int]:
    """Give the first row that must not be read and why, or -1; with torch's own operations."""
    wrong = (starts < 0) | (ends < starts) | (ends > indices.numel())
    if bool(wrong.any()):
        return int(wrong.nonzero()[0]), _OUTSIDE_ARRAYS
    lengths = ends - starts
    row_of = torch.repeat_interleave(torch.arange(starts.numel(), device=starts.device), lengths)
    offsets = torch.cumsum(lengths, 0) - lengths
    entry = torch.repeat_interleave(starts - offsets, lengths) + torch.arange(row_of.numel(), device=starts.device)
    column = indices[entry].long() - column_base
    outside = (column < 0) | (column >= columns)
    if bool(outside.any()):
        return int(row_of[outside.nonzero()[0]]), _OUTSIDE_COLUMNS
    descends = (column[1:] < column[:-1]) & (row_of[1:] == row_of[:-1])
    if bool(descends.any()):
        return int(row_of[1:][descends.nonzero()[0]]), _DESCENDS
    return -1, 0


def _sentence(
    row: int, flaw: int, starts: Tensor, ends: Tensor, indices: Tensor, columns: int, column_base: int
) -> str:
    start, end = int(starts[row]), int(ends[row])
    if flaw == _OUTSIDE_ARRAYS:
        return (
            f"row {row} has the entries {start} to {end - 1}, and there are {indices.numel()}; starts and ends must lie"
            f" within 0..{indices.numel()}, and no row may end before it starts."
        )
    own = indices[start:end].long() - column_base
    if flaw == _OUTSIDE_COLUMNS:
        column = int(own[(own < 0) | (own >= columns)][0])
        return f"row {row} reads column {column}, and there are {columns}; indices must lie within 0..{columns - 1}."
    return f"the columns of row {row} are not in ascending order; sort them, or use trisect.graph.adjacency_from_edges."


def pointer_array(indptr: Tensor) -> Tensor:
    """Give the pointers of a CSR matrix as int64 [rows + 1]."""
    if not isinstance(indptr, Tensor) or indptr.dtype not in (torch.int64, torch.int32):
        raise DataError(f"indptr is {_kind(indptr)}; give a tensor of int64.")
    if indptr.dim() != 1 or indptr.numel() == 0:
        raise DataError(f"indptr has the shape {list(indptr.shape)}; it must be [rows + 1].")
    return indptr.to(torch.int64).contiguous()


def narrow_indices(indices: Tensor) -> Tensor:
    """Give the indices of a CSR matrix as int32, and refuse what would become another number."""
    if not isinstance(indices, Tensor) or indices.dtype not in (torch.int64, torch.int32):
        raise DataError(f"indices is {_kind(indices)}; give a tensor of int32.")
    if (
        indices.dtype == torch.int64
        and indices.numel()
        and not -LIMIT <= int(indices.min()) <= int(indices.max()) < LIMIT
    ):
        raise DataError(f"indices holds {int(indices.max())}; columns must be below {LIMIT}.")
    return indices.to(torch.int32).contiguous()
