"""The graph that the partitioner's kernels read, and the kernels (`native/cluster.c`, `native/refine.c`)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from trisect.errors import TrisectError
from trisect.graph.adjacency import Adjacency
from trisect.native.library import DOUBLE, INT, INT64, POINTER, UINT32, Kernel, pointer

_LABELS = Kernel("trisect_cluster_labels", *(POINTER,) * 2, INT64, INT, UINT32, *(POINTER,) * 2, returns=INT64)
_CONTRACT = Kernel("trisect_cluster_contract", *(POINTER,) * 4, INT64, INT64, *(POINTER,) * 3, returns=INT64)
_STREAM = Kernel("trisect_refine_stream", *(POINTER,) * 2, INT64, INT64, POINTER, returns=INT)
_SWEEP = Kernel("trisect_refine_sweep", *(POINTER,) * 2, INT64, INT64, INT, POINTER, returns=INT64)
_BALANCE = Kernel("trisect_refine_balance", POINTER, INT64, INT64, POINTER, returns=INT64)
_MOVES = Kernel("trisect_refine_moves", POINTER, *(INT64,) * 5, INT, POINTER, returns=DOUBLE)


class _Structure(ctypes.Structure):
    """`Graph` of native/neighbours.h."""

    _fields_ = (
        ("n", INT64),
        ("sides", INT64),
        ("starts", POINTER * 2),
        ("ends", POINTER * 2),
        ("indices", POINTER * 2),
        ("values", POINTER * 2),
        ("weights", POINTER),
    )


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The neighbours of vertices whatever the direction of an edge, what each edge counts and what each vertex weighs.

    Attributes:
        sides: one CSR matrix that is its own transpose, or one and its transpose.
        weights: int64 [vertices].
        counted: whether an edge counts what its value says, float32 and positive, and not 1.
    """

    sides: tuple[Adjacency, ...]
    weights: Tensor
    counted: bool = False

    @classmethod
    def of(cls, adjacency: Adjacency, weights: Tensor | None = None, *, counted: bool = False) -> Neighbours:
        """Of a square matrix on the host, without a copy; vertices weigh their edges and one where nothing is said."""
        matrix = adjacency.checked()
        turned = matrix.transpose()
        sides = (matrix,) if matrix.is_symmetric() else (matrix, turned)
        if weights is None:
            weights = sum((side.ends - side.starts for side in sides), torch.ones(matrix.rows, dtype=torch.int64))
        return cls(sides, weights, counted)

    @property
    def count(self) -> int:
        """Give the number of vertices."""
        return self.weights.numel()

    @property
    def entries(self) -> int:
        """Count the entries of all sides."""
        return sum(side.entries for side in self.sides)

    def values_of(self, side: Adjacency) -> Tensor | None:
        """What the edges of a side count; None: each 1."""
        return side.values_as(torch.float32) if self.counted else None

    @cached_property
    def _arrays(self) -> list[list[Tensor | None]]:
        return [
            [side.starts.contiguous(), side.ends.contiguous(), side.indices.contiguous(), self.values_of(side)]
            for side in (self.sides[0], self.sides[-1])
        ]

    @cached_property
    def _structure(self) -> _Structure:
        pairs = [(POINTER * 2)(*map(pointer, pair)) for pair in zip(*self._arrays, strict=True)]
        return _Structure(self.count, len(self.sides), *pairs, self.weights.data_ptr())

    @property
    def address(self) -> int:
        """Where a kernel finds it, as long as this object lives."""
        return ctypes.addressof(self._structure)

    # What the kernels do; their C sources say how

    def clusters(
        self, limit: int, rounds: int, seed: int, within: Tensor | None = None, sequence: Tensor | None = None
    ) -> Tensor:
        """The cluster of each vertex, int32 [vertices], numbered from 0, at most `limit` heavy: label propagation."""
        label = torch.arange(self.count, dtype=torch.int32)
        arguments = (pointer(sequence), limit, rounds, seed & 0xFFFFFFFF, pointer(within), label.data_ptr())
        _check_memory(_LABELS(self.address, *arguments))
        number = torch.cumsum(label == torch.arange(self.count, dtype=torch.int32), 0, dtype=torch.int32).sub_(1)
        return number[label]

    def contracted(self, label: Tensor, most: int) -> Neighbours | None:
        """The graph of the clusters, or None where it would have more than `most` entries."""
        clusters = int(label.max()) + 1
        first = torch.zeros(clusters + 1, dtype=torch.int64)
        first[1:] = torch.cumsum(torch.bincount(label, minlength=clusters), 0)
        members = torch.argsort(label, stable=True).to(torch.int32)
        pointers = torch.empty(clusters + 1, dtype=torch.int64)
        groups = (self.address, label.data_ptr(), members.data_ptr(), first.data_ptr(), clusters, most)
        entries = _CONTRACT(*groups, pointers.data_ptr(), None, None)
        if entries == -2:
            return None
        _check_memory(entries)
        indices, values = torch.empty(entries, dtype=torch.int32), torch.empty(entries)
        _check_memory(_CONTRACT(*groups, pointers.data_ptr(), indices.data_ptr(), values.data_ptr()))
        weights = torch.zeros(clusters, dtype=torch.int64).index_add_(0, label.long(), self.weights)
        # rows are in the order of the members' neighbours, which suits kernels that only walk along them
        return Neighbours(
            (Adjacency(pointers[:-1], pointers[1:], indices, values, clusters).vouched(),), weights, counted=True
        )

    def stream(self, part: Tensor, parts: int, limit: int, sequence: Tensor | None = None) -> None:
        """Pass over the vertices once, each joining the part of most neighbours and room; `part` is -1 at first."""
        _check_memory(_STREAM(self.address, pointer(sequence), parts, limit, part.data_ptr()))

    def sweep(self, part: Tensor, parts: int, limit: int, rounds: int, sequence: Tensor | None = None) -> None:
        """Move vertices where the cut gains, in sweeps over all."""
        _check_memory(_SWEEP(self.address, pointer(sequence), parts, limit, rounds, part.data_ptr()))

    def balance(self, part: Tensor, parts: int, limit: int) -> None:
        """Move vertices out of parts that are too heavy."""
        _check_memory(_BALANCE(self.address, parts, limit, part.data_ptr()))

    def moves(self, part: Tensor, parts: int, limit: int, slack: int, patience: int, widest: int, passes: int) -> None:
        """Move vertices one by one, the best first, and take back what led to nothing."""
        _check_memory(_MOVES(self.address, parts, limit, slack, patience, widest, passes, part.data_ptr()))


def _check_memory(code: float) -> None:
    if code < 0:
        raise TrisectError("There is not enough memory to cut the graph; use layout.spatial: redistribute.")
