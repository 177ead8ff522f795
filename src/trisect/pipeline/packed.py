"""What autograd saves for backward while a cell goes forward: without zeros where there are many."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from trisect.ops.packing import Packed, Slabs, pack

SMALLEST = 1 << 18  # bytes of a tensor; packing a smaller one takes longer than computing it


# a packed activation, and the shape in which autograd wants it back
_Saved = tuple[Packed, torch.Size]


class PackedActivations:
    """Hooks of autograd for the tensors that a stage saves: [rows, width], [steps · rows, width], [steps, rows, width].

    A layer's output is saved twice, as its own mask and as the input of the next layer. It is packed once, and unpacked
    once: of each the last is remembered.

    Args:
        row_bytes: of the widest layer.
        smallest: tensors of fewer bytes are saved as they are.

    Attributes:
        full_bytes, held_bytes: of all activations so far, with their zeros and as they were held.
    """

    def __init__(self, row_bytes: int, *, smallest: int = 0) -> None:
        self._row_bytes, self._smallest = row_bytes, smallest
        self._slabs = Slabs()
        self._rows = 0
        self._latest: tuple[Tensor, int, Packed | None] | None = None
        self._unpacked: tuple[Packed, Tensor] | None = None
        self.full_bytes = self.held_bytes = 0

    def hooks(self, rows: int) -> AbstractContextManager[object] | None:
        """Pack during a forward of that many rows; what has not a multiple of them is no activation.

        None is given where all are too small, since calling hooks takes longer than computing them.
        """
        if rows * self._row_bytes < self._smallest:
            return None
        self._rows = rows
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def forget(self) -> None:
        """Hold on to nothing that autograd does not hold."""
        self._latest = self._unpacked = None

    def end(self) -> None:
        """Let go of all memory, since all that was saved is used up."""
        self.forget()
        self._slabs.drop()

    def _pack(self, x: Tensor) -> Tensor | _Saved:
        if x.nbytes < self._smallest or not self._is_activation(x):
            return x
        latest = self._latest
        # the tensor is held, so that the same address is the same tensor
        if latest is not None and _same(latest[0], x) and latest[1] == x._version:
            packed = latest[2]
        else:
            packed = pack(x.detach().flatten(0, -2) if x.dim() > 2 else x, self._slabs)
            self._latest = (x, x._version, packed)
            self.full_bytes += x.nbytes
            self.held_bytes += x.nbytes if packed is None else packed.nbytes
        return x if packed is None else (packed, x.shape)

    def _is_activation(self, x: Tensor) -> bool:
        if not x.is_floating_point() or x.dim() not in (2, 3) or self._rows == 0 or x.numel() == 0:
            return False
        return x.shape[-2] % self._rows == 0 and (x.dim() == 2 or x.is_contiguous())

    def _unpack(self, saved: Tensor | _Saved) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        packed, shape = saved
        if self._unpacked is None or self._unpacked[0] is not packed:
            self._unpacked = (packed, packed.unpack())
        return self._unpacked[1].view(shape)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
