"""Checks of arrays that users hand in; each failure is a DataError that names the array, the position and the value."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trisect.data.formats.npy import check_mapped
from trisect.data.room import require_room
from trisect.errors import DataError, unknown
from trisect.native.library import INT, INT64, POINTER, Kernel, available

_FIRST_OUTSIDE = Kernel("trisect_first_outside", POINTER, INT, INT64, INT64, returns=INT64)

LIMIT = 2**31
SPLITS = ("train", "val", "test")
_MANY = 1 << 24
_SLAB = 1 << 21  # numbers that are looked at together
_NUMBERED = "number the vertices from 0, or use from_table, which takes ids of any kind"
_INSTEAD_OF_TEXT = {
    "src": _NUMBERED,
    "dst": _NUMBERED,
    "y": "number the classes from 0 (numpy.unique(y, return_inverse=True) does), or use from_table",
}


def as_tensor(name: str, array: Any) -> Tensor:
    """A tensor over the same memory where that is possible."""
    if isinstance(array, Tensor):
        if array.is_meta or array.is_quantized:
            raise DataError(
                f"{name} is a tensor without plain numbers (on the meta device, or quantised); give numbers."
            )
        return array.detach() if array.layout == torch.strided else array.detach().to_dense()
    if hasattr(array, "toarray"):  # a sparse matrix of SciPy
        array = array.toarray()
    check_mapped(name, array)
    try:
        numbers = np.asarray(array)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name} is not an array of numbers ({error}).") from error
    if numbers.dtype.kind == "u" and numbers.dtype.itemsize > 1:
        if numbers.size and int(numbers.max()) >= 2**63:
            raise DataError(f"{name} holds {numbers.max()}, which no vertex can have; ids must be below 2^31.")
        numbers = numbers.astype(np.int64)
    if numbers.dtype.kind not in "biuf":
        if numbers.dtype.kind in "US":
            raise DataError(f"{name} holds text; {_INSTEAD_OF_TEXT.get(name, 'give numbers')}.")
        raise DataError(f"{name} holds {numbers.dtype} values; give numbers.")
    if not numbers.dtype.isnative:
        numbers = numbers.astype(numbers.dtype.newbyteorder("="))
    if any(stride < 0 for stride in numbers.strides):
        numbers = numbers.copy()
    with warnings.catch_warnings():
        # torch warns on read-only memory (a memory map), which nothing here writes to
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(numbers)


def index_array(name: str, array: Any) -> Tensor:
    """One dimension of int32 or int64, checked to be integers."""
    index = as_tensor(name, array)
    if index.dim() != 1:
        both = index.dim() == 2 and index.shape[0] == 2 and name == "src"
        remedy = "of an edge_index give both rows: from_edges(*edge_index)" if both else "give one dimension"
        raise DataError(f"{name} has the shape {list(index.shape)}; {remedy}.")
    if index.numel() == 0 and not isinstance(array, (Tensor, np.ndarray)):
        return index.to(torch.int64)
    if index.dtype == torch.bool or index.dtype.is_floating_point or index.dtype.is_complex:
        raise DataError(f"{name} holds {str(index.dtype).removeprefix('torch.')} values; vertex ids must be integers.")
    return index.contiguous() if index.dtype in (torch.int32, torch.int64) else index.to(torch.int32)


def check_index(name: str, array: Tensor, bound: int) -> None:
    """Refuse an index outside 0..bound-1."""
    if available() and array.device.type == "cpu":
        position = _FIRST_OUTSIDE(array.data_ptr(), int(array.dtype == torch.int64), array.numel(), bound)
    else:
        outside = (array < 0) | (array >= bound)
        position = int(outside.nonzero()[0]) if bool(outside.any()) else -1
    if position < 0:
        return
    value = int(array[position])
    if value < 0:
        raise DataError(f"{name}[{position}] is {value}; vertex ids must not be negative.")
    raise DataError(
        f"{name}[{position}] is {value}, but there are {bound} vertices (0..{bound - 1}); raise the number of vertices "
        "or number the vertices from 0 without gaps."
    )


def check_finite(name: str, array: Tensor) -> None:
    """Refuse an array that holds NaN or infinity."""
    # in slabs of rows, since the test makes temporary arrays of 9 bytes a number
    rows = max(1, _SLAB * len(array) // max(1, array.numel()))
    for first in range(0, len(array), rows):
        finite = torch.isfinite(array[first : first + rows])
        if not bool(finite.all()):
            row, *column = (~finite).nonzero()[0].tolist()
            position = [first + row, *column]
            raise DataError(f"{name}{position} is {float(array[tuple(position)])}; every number must be finite.")


def weight_array(name: str, array: Any, length: int, dtype: torch.dtype) -> Tensor:
    """One finite weight an edge, as `dtype`."""
    weight = as_tensor(name, array)
    if weight.dim() == 2 and weight.shape[1] == 1:
        weight = weight[:, 0]
    if weight.dim() != 1 or weight.numel() != length:
        raise DataError(f"{name} has the shape {list(weight.shape)} for {length} edges; give one weight an edge.")
    if weight.is_complex():
        raise DataError(f"{name} holds complex values; weights must be real.")
    weight = weight.to(dtype).contiguous()
    check_finite(name, weight)
    return weight


def vertex_count(vertices: int | None, *ends: Tensor) -> int:
    """Give the number of vertices that was asked for, or the largest id plus one."""
    if vertices is None:
        largest = max((int(end.max()) for end in ends if end.numel()), default=-1)
        vertices = largest + 1
        if largest < 0 and all(end.numel() == 0 for end in ends):
            raise DataError("The graph is empty: it has no edges; give the number of vertices.")
        vertices = max(vertices, 1)
    if isinstance(vertices, bool) or not isinstance(vertices, (int, np.integer)):
        raise DataError(f"vertices is {vertices!r}; give an integer.")
    if vertices < 1:
        raise DataError(f"vertices is {vertices}; a graph needs at least one vertex.")
    if vertices >= LIMIT:
        raise DataError(
            f"The graph has {vertices} vertices; indices are 32-bit, so that at most {LIMIT - 1} are possible."
        )
    if vertices > _MANY:  # each has a place where its entries begin, in the matrix and in its transpose
        require_room(16.0 * vertices, f"A graph of {vertices:,} vertices")
    return int(vertices)


def rows_of(array: Any) -> int | None:
    """Give the length of an array; None where it has none, which its own check then says."""
    try:
        return len(array)
    except TypeError:
        return None


def check_flag(name: str, value: Any) -> bool:
    """Refuse what is neither True nor False: a text such as 'no' would count as True."""
    if not isinstance(value, (bool, np.bool_)):
        raise DataError(f"{name} is {str(value)[:80]!r}; give True or False.")
    return bool(value)


def check_names(names: Any, vertices: int) -> None:
    """Refuse names that are not one a vertex."""
    count = rows_of(names)
    if names is not None and count != vertices:
        held = "no list" if count is None else f"{count} entries"
        raise DataError(f"names has {held} for {vertices} vertices; give one name a vertex.")


def check_class_names(field: str, names: Any, labels: Tensor | None) -> None:
    """Refuse names that are not one a class."""
    if names is None:
        return
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{field} is a {type(names).__name__}; give a list of texts, one for each class.")
    if labels is None or labels.is_floating_point():
        raise DataError(f"{field} has {len(names)} names, and there are no classes; give labels that are integers.")
    classes = int(labels.max()) + 1 if labels.numel() else 0
    if len(names) < classes:
        raise DataError(f"{field} has {len(names)} names for {classes} classes; give one for each class.")


def order_array(order: Any, vertices: int) -> Tensor:
    """Give the order as int64 [vertices], and refuse one that is no permutation."""
    permutation = index_array("order", order).long()
    if permutation.numel() != vertices:
        raise DataError(f"order has {permutation.numel()} entries for {vertices} vertices; give each vertex once.")
    check_index("order", permutation, vertices)
    counts = torch.bincount(permutation, minlength=vertices)
    if bool((counts != 1).any()):
        vertex = int((counts > 1).nonzero()[0])
        raise DataError(f"order names vertex {vertex} {int(counts[vertex])} times; give each vertex once.")
    return permutation


def positions_of(order: Tensor) -> Tensor:
    """The inverse permutation: at which position each vertex stands."""
    result = torch.empty_like(order)
    result[order] = torch.arange(order.numel(), dtype=order.dtype, device=order.device)
    return result


def feature_array(name: str, array: Any, shape: tuple[int, ...]) -> Tensor:
    """float32 of `shape` + [features], finite; a copy where the memory is read-only."""
    features = _numbers(name, array)
    if features.shape[:-1] != shape:
        wanted = ", ".join(str(size) for size in shape)
        raise DataError(f"{name} has the shape {list(features.shape)}; it must be [{wanted}, features].")
    features = features.to(torch.float32)
    check_finite(name, features)
    return features.contiguous()


def row_weights(array: Any, count: int) -> Tensor:
    """How much each vertex counts in a loss, float32 [count] from 0."""
    weight = weight_array("y_weight", array, count, torch.float32)
    if bool((weight < 0).any()):
        raise DataError(f"y_weight has {float(weight.min()):g}; weights of vertices are numbers from 0.")
    return weight


def label_array(name: str, array: Any, *, widen: bool = True) -> Tensor:
    """int64 classes (-1: none; without `widen` in their own type) or float32 targets (NaN: none)."""
    labels = _numbers(name, array)
    if labels.is_floating_point():
        labels = labels.to(torch.float32)
        if bool(torch.isinf(labels).any()):
            raise DataError(f"{name} holds an infinite target; use NaN where there is none.")
        return labels
    labels = labels.long() if widen or labels.dtype == torch.bool else labels
    if labels.numel() and int(labels.min()) < -1:
        raise DataError(f"{name} holds the class {int(labels.min())}; classes count from 0, and -1 means none.")
    return labels


def split_masks(splits: Mapping[str, Any], vertices: int, split: int, labelled: Tensor | None) -> dict[str, Tensor]:
    """Masks bool [vertices] by name. Of several splits the one numbered `split`; vertices without a label drop out."""
    result: dict[str, Tensor] = {}
    if not isinstance(splits, Mapping):
        raise DataError(f"splits is a {type(splits).__name__}; give a mapping of train, val and test to masks.")
    if isinstance(split, bool) or not isinstance(split, (int, np.integer)):
        raise DataError(f"split is {str(split)[:80]!r}; give the number of one, counted from 0.")
    for name, array in splits.items():
        if name not in SPLITS:
            raise DataError(unknown("split", str(name), SPLITS))
        mask = _numbers(f"{name} mask", array)
        if mask.dtype != torch.bool:
            if bool(((mask != 0) & (mask != 1)).any()):
                raise DataError(f"The {name} mask holds {mask.dtype} values other than 0 and 1; give booleans.")
            mask = mask.bool()
        if mask.dim() not in (1, 2) or mask.shape[0] != vertices:
            raise DataError(
                f"The {name} mask has the shape {list(mask.shape)}; it must be [{vertices}] or [{vertices}, splits]."
            )
        if mask.dim() == 2:
            if not 0 <= split < mask.shape[1]:
                raise DataError(f"split is {split}, but the {name} mask has {mask.shape[1]} splits, counted from 0.")
            mask = mask[:, split].contiguous()
        if labelled is not None:
            mask = mask & labelled
        if not bool(mask.any()):
            raise DataError(f"The {name} mask selects no vertex with a label; give each split at least one.")
        result[name] = mask
    return result


def _numbers(name: str, array: Any) -> Tensor:
    numbers = as_tensor(name, array)
    if numbers.is_complex():
        raise DataError(f"{name} holds complex values; give real numbers.")
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        numbers = numbers.clone()
    return numbers
