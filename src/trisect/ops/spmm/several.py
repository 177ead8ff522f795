"""Aggregation over several snapshots at once, where they share most of their entries.

The entries of any of the snapshots stand once, with a value for each snapshot (0 where it has none), and the features
of the snapshots lie side by side: one index and one gather serve all. Each snapshot keeps its own values, so that
degrees, weights and multiplicities may differ in any way. A snapshot's sums are added up in the order of its entries
whatever the group: they are the same to the bit alone and in any group, so that no result depends on when a group is
made, or on the memory for it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trisect.errors import ConfigError, DataError
from trisect.graph.adjacency import Adjacency
from trisect.native.library import INT64, POINTER, Kernel, available, level, pointer, threads
from trisect.ops.memory import empty

SIZES = (1, 2, 4, 8)
_KINDS = {torch.float32: "f32", torch.float64: "f64"}
_SUM = {dtype: Kernel(f"trisect_several_{kind}", POINTER) for dtype, kind in _KINDS.items()}
_PACK = {dtype: Kernel(f"trisect_several_pack_{kind}", POINTER) for dtype, kind in _KINDS.items()}
_COUNT = Kernel("trisect_overlay_count", POINTER, POINTER)
_WRITE = {dtype: Kernel(f"trisect_overlay_write_{kind}", *[POINTER] * 4) for dtype, kind in _KINDS.items()}


class _SumArguments(ctypes.Structure):
    """This mirrors `struct several_arguments` of native/several.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("starts", "ends", "indices", "values", "x", "bias", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "features", "pitch", "column_base", "out_stride")),
        ("slope", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("leaky", "steps", "threads")),
    )


class _PackArguments(ctypes.Structure):
    """This mirrors `struct pack_arguments` of native/several.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "sign", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "features", "pitch", "x_stride", "sign_stride")),
        ("slope", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("steps", "threads")),
    )


class _OverlayArguments(ctypes.Structure):
    """This mirrors `struct overlay_arguments` of native/several.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("starts", "ends", "indices", "values", "bases")),
        ("rows", INT64),
        *((name, ctypes.c_int32) for name in ("steps", "threads")),
    )


@dataclass(frozen=True, eq=False)
class Group:
    """The entries of several snapshots of equal shape, laid over each other.

    Attributes:
        starts, ends: int64 [rows].
        indices: int32 [entries]; an entry's column is indices[k] - column_base.
        values: [entries, steps], 0 where a snapshot has no such entry; None where all are 1.
        columns, column_base: as in `Adjacency`.
        steps: how many snapshots there are.
        symmetric: whether each is known to be its own transpose.
        only: the snapshot itself where it is the only one, whose transpose then serves.
    """

    starts: Tensor
    ends: Tensor
    indices: Tensor
    values: Tensor | None
    columns: int
    steps: int
    column_base: int = 0
    symmetric: bool = False
    only: Adjacency | None = None
    _turned: list[Group] = field(default_factory=list, init=False, repr=False)  # the transpose, once it is made

    @classmethod
    def of(cls, snapshots: Sequence[Adjacency], dtype: torch.dtype = torch.float32) -> Group:
        """Lay snapshots over each other: one of `SIZES`, of equal shape."""
        shapes = {snapshot.shape for snapshot in snapshots}
        if len(snapshots) not in SIZES or len(shapes) != 1:
            raise ConfigError(
                f"{len(snapshots)} snapshots of the shapes {sorted(shapes)} make no group; give {SIZES} of one shape."
            )
        snapshots = [snapshot.checked() for snapshot in snapshots]
        if len(snapshots) == 1:
            only = snapshots[0]
            arrays = (only.starts, only.ends, only.indices, only.values_as(dtype))
            return cls(*arrays, only.columns, 1, only.column_base, only=only)
        laid = Overlay(snapshots, dtype)
        return laid.group(laid.lengths())

    @property
    def rows(self) -> int:
        """Count the rows of each matrix."""
        return self.starts.numel()

    @property
    def memory_bytes(self) -> int:
        """Count the bytes of all arrays, and of the transpose where it is there."""
        own = sum(a.numel() * a.element_size() for a in (self.starts, self.indices, self.values) if a is not None)
        return own + sum(turned.memory_bytes for turned in self._turned)

    def transpose(self) -> Group:
        """Return the transposed matrices, which are made once."""
        if self.symmetric:
            return self
        if self._turned:
            return self._turned[0]
        if self.only is not None:
            return Group.of([self.only.transpose()], torch.float32 if self.values is None else self.values.dtype)
        flat = Adjacency(self.starts, self.ends, self.indices, None, self.columns, self.column_base).vouched()
        turned = flat.transpose(positions=True)
        values = self.values
        if values is not None and turned.positions is not None:
            values = _rows_at(values.view(-1, self.steps), turned.positions)
        self._turned.append(Group(turned.starts, turned.ends, turned.indices, values, self.rows, self.steps))
        return self._turned[0]

    def snapshot(self, step: int) -> Adjacency:
        """Return one of the matrices; it has the entries of all, some of them 0."""
        values = None if self.values is None else self.values.view(-1, self.steps)[:, step].contiguous()
        return Adjacency(self.starts, self.ends, self.indices, values, self.columns, self.column_base).vouched()


class Overlay:
    """Makes a group in two passes: the first counts the entries of each row, the second writes them."""

    def __init__(self, snapshots: Sequence[Adjacency], dtype: torch.dtype) -> None:
        self.snapshots, self.dtype = snapshots, dtype
        self.steps, self.rows = len(snapshots), snapshots[0].rows
        self.native = available() and all(s.device.type == "cpu" for s in snapshots) and dtype in _KINDS
        if not self.native:
            return
        columns = (
            [s.starts.contiguous() for s in snapshots],
            [s.ends.contiguous() for s in snapshots],
            [s.indices.contiguous() for s in snapshots],
            [s.values_as(dtype) for s in snapshots],
        )
        bases = (ctypes.c_int64 * self.steps)(*(s.column_base for s in snapshots))
        lists = [pointers(arrays) for arrays in columns]
        self._held = (columns, lists, bases)  # what the kernels read must live as long
        addresses = [*(ctypes.addressof(array) for array in lists), ctypes.addressof(bases)]
        self._arguments = _OverlayArguments(*addresses, self.rows, self.steps, threads())

    def lengths(self) -> Tensor:
        """Count the entries of each row: int64 [rows + 1], which begins with 0."""
        result = torch.zeros(self.rows + 1, dtype=torch.int64, device=self.snapshots[0].device)
        if self.native:
            _COUNT(ctypes.byref(self._arguments), result.data_ptr() + result.element_size())
        else:
            row = self._keys()[0] // max(self.snapshots[0].columns, 1)
            result[1:] = torch.bincount(row, minlength=self.rows)
        return result

    def group(self, lengths: Tensor) -> Group:
        """Make the group from what `lengths` counted."""
        offsets = lengths.cumsum(0)
        entries = int(offsets[-1])
        columns = self.snapshots[0].columns
        symmetric = all(s.transpose_shares_arrays() for s in self.snapshots)
        if self.native:
            indices = empty((entries,), torch.int32)
            values = empty((entries, self.steps), self.dtype)
            _WRITE[self.dtype](ctypes.byref(self._arguments), offsets.data_ptr(), indices.data_ptr(), values.data_ptr())
        else:
            keys, which = self._keys()
            indices = (keys % max(columns, 1)).to(torch.int32)
            values = torch.zeros(entries, self.steps, dtype=self.dtype, device=keys.device)
            for step, snapshot in enumerate(self.snapshots):
                weight = snapshot.edge_weight()
                values[which[step], step] = 1.0 if weight is None else weight.to(self.dtype)
        return Group(offsets[:-1], offsets[1:], indices, values, columns, self.steps, 0, symmetric)

    def _keys(self) -> tuple[Tensor, list[Tensor]]:
        """row * columns + column of the entries of any snapshot, ascending, and where each snapshot's stand."""
        each = []
        for snapshot in self.snapshots:
            row, column = snapshot.coordinates()
            each.append(row * snapshot.columns + column)
        keys = torch.unique(torch.cat(each))
        if any(bool((part.diff() == 0).any()) for part in each):
            raise DataError("A snapshot has an entry twice; add duplicates up before laying snapshots over each other.")
        return keys, [torch.searchsorted(keys, part) for part in each]


def packs(x: Tensor) -> bool:
    """Whether the kernels of this module take such features."""
    return available() and x.device.type == "cpu" and x.dtype in _KINDS


def side_by_side(x: Sequence[Tensor], *, sign: Sequence[Tensor] | None = None, slope: float = 0.0) -> Tensor:
    """Features of some steps, [columns, features] each, as [columns, steps, pitch], padded with 0.

    Args:
        sign: of each step [columns, features]; x is multiplied by `slope` where this is not above 0 (the gradient of
            the activation whose result it is).
    """
    rows, features = x[0].shape
    out = empty((rows, len(x), _pitch(features, x[0].dtype)), x[0].dtype)
    x = [frame if frame.stride(1) == 1 else frame.contiguous() for frame in x]
    x = x if len({frame.stride(0) for frame in x}) == 1 else [frame.contiguous() for frame in x]
    froms, signs = pointers(x), None if sign is None else pointers(sign)
    arguments = _PackArguments(
        ctypes.addressof(froms),
        None if signs is None else ctypes.addressof(signs),
        out.data_ptr(),
        *(rows, features, out.shape[2], x[0].stride(0), 0 if sign is None else sign[0].stride(0)),
        slope,
        *(len(x), threads()),
    )
    _PACK[out.dtype](ctypes.byref(arguments))
    return out


def aggregate_group_into(
    out: Sequence[Tensor], packed: Tensor, group: Group, bias: Tensor | None = None, slope: float | None = None
) -> None:
    """out[g] = leaky_relu(A_g · x_g + bias) of each step g of a group, without autograd.

    Args:
        out: of each step [rows, features], rows at the same distance in all.
        packed: x [columns, steps, pitch], from `side_by_side`.
        bias: [features].
        slope: below zero; None: no activation.
    """
    held = pointers(out)
    starts, ends, values = group.starts.contiguous(), group.ends.contiguous(), group.values
    bias = None if bias is None else bias.to(packed.dtype).contiguous()
    arguments = _SumArguments(
        *(starts.data_ptr(), ends.data_ptr(), group.indices.data_ptr(), pointer(values), packed.data_ptr()),
        *(pointer(bias), ctypes.addressof(held)),
        *(group.rows, out[0].shape[1], packed.shape[2], group.column_base, out[0].stride(0)),
        0.0 if slope is None else slope,
        *(int(slope is not None), group.steps, threads()),
    )
    _SUM[packed.dtype](ctypes.byref(arguments))


def pointers(arrays: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of some tensors to a kernel."""
    return (ctypes.c_void_p * len(arrays))(*(pointer(array) for array in arrays))


def _pitch(features: int, dtype: torch.dtype) -> int:
    """Round the features up to full vectors, SEVERAL_BYTES of native/several.h."""
    lanes = (16 if level() == "base" else 32) // dtype.itemsize
    return -(-features // lanes) * lanes


def _rows_at(rows: Tensor, positions: Tensor) -> Tensor:
    """rows[positions]; short rows are moved as one number each, which is several times faster."""
    word = {8: torch.int64, 16: torch.complex128}.get(rows.shape[1] * rows.element_size())
    if word is None or rows.dtype == word:
        return rows.index_select(0, positions.long())
    return rows.view(word)[:, 0].index_select(0, positions.long()).view(rows.dtype).view(-1, rows.shape[1])
