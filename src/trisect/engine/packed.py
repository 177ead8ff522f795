"""What autograd saves for backward while a chunk goes forward: without zeros where there are many."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from trisect.engine.history import HistoryRows
from trisect.ops.packing import Packed, Slabs, pack

SMALLEST = 1 << 18  # bytes of a tensor; packing a smaller one takes longer than computing it


class PackedActivations:
    """Hooks of autograd for the tensors that a stage saves.

    A layer's output is saved twice, as its own mask and as the input of the next layer. It is packed once, and unpacked
    once: of each the last is remembered.
    """

    def __init__(self, history: HistoryRows | None) -> None:
        self._history = history
        self._slabs = Slabs()
        self._rows = 0
        self._packed: tuple[Tensor, int, Packed | None] | None = None
        self._unpacked: tuple[Packed, Tensor] | None = None

    def hooks(self, rows: int) -> AbstractContextManager[object]:
        """For the time of a forward of that many rows; what has another number of them is no activation."""
        self._rows = rows
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def forget(self) -> None:
        """Hold on to nothing that autograd does not hold."""
        self._packed = self._unpacked = None

    def drop(self) -> None:
        """All that was saved is used up."""
        self.forget()
        self._slabs.drop()

    def _pack(self, x: Tensor) -> Tensor | Packed:
        if x.dim() != 2 or x.shape[0] != self._rows or not x.is_floating_point():
            return x
        if x.numel() * x.element_size() < SMALLEST:
            if self._history is not None:
                self._history.hold(x)
            return x
        last = self._packed
        # the tensor is held, so that the same address is the same tensor
        if last is not None and _same(last[0], x) and last[1] == x._version:
            packed = last[2]
        else:
            packed = pack(x, self._slabs)
            self._packed = (x, x._version, packed)
        if packed is None:
            if self._history is not None:
                self._history.hold(x)
            return x
        return packed

    def _unpack(self, saved: Tensor | Packed) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        if self._unpacked is None or self._unpacked[0] is not saved:
            self._unpacked = (saved, saved.unpack())
        return self._unpacked[1]


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
