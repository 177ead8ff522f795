"""Activations that wait for backward, without their zeros.

After relu and dropout three of four elements are zero. Kept as a bit an element and the rest in a row they take about
0.3 of the memory, and come back to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trisect.native.library import INT, INT64, POINTER, Kernel, available, threads
from trisect.ops.memory import empty

_KINDS = {torch.float32: "f32", torch.float64: "f64"}
_MARK = {
    dtype: Kernel(f"trisect_pack_mark_{kind}", POINTER, INT64, INT64, INT64, INT64, POINTER, POINTER, returns=INT64)
    for dtype, kind in _KINDS.items()
}
_PACK = {
    dtype: Kernel(f"trisect_pack_{kind}", POINTER, INT64, INT64, INT64, POINTER, POINTER, POINTER, INT)
    for dtype, kind in _KINDS.items()
}
_UNPACK = {
    dtype: Kernel(f"trisect_unpack_{kind}", POINTER, POINTER, POINTER, INT64, INT64, POINTER, INT)
    for dtype, kind in _KINDS.items()
}

_SPARE = 8  # elements that kernels may touch after the last
_DENSEST = 0.6  # of the elements; with more, packing gains little
_SAMPLE = 64  # rows that are looked at first
_SLAB = 16 << 20


class Slabs:
    """Hands out parts of large buffers in the order of use; a buffer is free when all of its parts are."""

    def __init__(self) -> None:
        self._slab: Tensor | None = None
        self._at = 0

    def take(self, size: int) -> Tensor:
        """Hand out uint8 [size], which begins at a multiple of 64 bytes."""
        if self._slab is None or self._at + size > self._slab.numel():
            self._slab, self._at = empty((max(size, _SLAB),), torch.uint8), 0
        part = self._slab[self._at : self._at + size]
        self._at += -(-size // 64) * 64
        return part

    def drop(self) -> None:
        """Begin a new buffer at the next call of `take`."""
        self._slab = None


@dataclass(frozen=True, eq=False)
class Packed:
    """A matrix without its zeros.

    Attributes:
        shape, dtype: of the matrix.
        bits: uint8 [rows, ⌈width / 8⌉].
        starts: int32 [rows + 1], where a row's values begin.
        values: those that are not zero.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    bits: Tensor
    starts: Tensor
    values: Tensor

    @property
    def nbytes(self) -> int:
        """Count the bytes that are held."""
        return self.bits.nbytes + self.starts.nbytes + self.values.nbytes

    def unpack(self) -> Tensor:
        """Make the matrix again, with its zeros."""
        rows, width = self.shape
        x = empty(self.shape, self.dtype)
        _UNPACK[self.dtype](
            *(self.values.data_ptr(), self.bits.data_ptr(), self.starts.data_ptr(), rows, width, x.data_ptr()),
            threads(),
        )
        return x


def pack(x: Tensor, slabs: Slabs) -> Packed | None:
    """x without its zeros; None where it has too few of them, or no kernel fits it."""
    if x.dim() != 2 or x.dtype not in _KINDS or x.device.type != "cpu" or not available():
        return None
    rows, width = x.shape
    if rows == 0 or width == 0 or x.stride(1) != 1 or rows * width >= 2**31 or not _MARK[x.dtype].exists():
        return None
    sample = x[:: max(1, rows // _SAMPLE)]
    if int(torch.count_nonzero(sample)) > _DENSEST * sample.numel():
        return None
    marks = torch.empty(rows, -(-width // 8), dtype=torch.uint8)
    starts = torch.empty(rows + 1, dtype=torch.int32)
    most = int(_DENSEST * rows * width)
    total = _MARK[x.dtype](x.data_ptr(), x.stride(0), rows, width, most, marks.data_ptr(), starts.data_ptr())
    if total < 0:
        return None
    values = slabs.take((total + _SPARE) * x.element_size()).view(x.dtype)
    _PACK[x.dtype](
        *(x.data_ptr(), x.stride(0), rows, width, marks.data_ptr(), starts.data_ptr(), values.data_ptr()), threads()
    )
    return Packed((rows, width), x.dtype, marks, starts, values)
