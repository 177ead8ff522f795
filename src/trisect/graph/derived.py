"""What an `Adjacency` keeps beside its arrays: the matrix that it is a view of, and what has been made of it so far."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from trisect.graph.adjacency import Adjacency


@dataclass(frozen=True, eq=False)
class Origin:
    """The matrix that a block is a view of, and which of its rows or columns."""

    axis: Literal["rows", "columns"]
    matrix: Adjacency
    start: int
    stop: int


KernelArrays = tuple[Tensor, Tensor, Tensor, Tensor | None]


@dataclass(eq=False)
class Derived:
    """What has been made of a matrix so far. Each is made once, and none of it changes what the matrix is.

    Attributes:
        version: the `Adjacency._version` of the arrays that all else was made of; None before the first of it.
        sound: whether the entries are known to lie within the arrays and columns.
        origin: where the matrix is a view of another.
        transpose: the transposed matrix.
        original: the matrix that has this one as its transpose. The reference is weak, since a cycle would keep large
            arrays until the garbage collector's next full pass.
        make_transpose: a shorter way to the transpose than sorting; dropped when it was used, since it holds arrays.
        entries: how many entries there are.
        edge_index: int64 [2, entries].
        read: the columns that have entries (None: all), and their rows of the transpose.
        positions: the positions of a transpose as int64.
        values, features, inverse_counts, csr, kernels: by type.
        relations: matrices of relations, by form; see `graph.relations`.
    """

    version: tuple[object, ...] | None = None
    sound: bool = False
    origin: Origin | None = None
    transpose: Adjacency | None = None
    original: weakref.ref[Adjacency] | None = None
    make_transpose: Callable[[], Adjacency] | None = None
    entries: int | None = None
    edge_index: Tensor | None = None
    read: tuple[Tensor | None, Adjacency] | None = None
    positions: Tensor | None = None
    values: dict[torch.dtype, Tensor] = field(default_factory=dict)
    features: dict[torch.dtype, Tensor] = field(default_factory=dict)
    inverse_counts: dict[torch.dtype, Tensor] = field(default_factory=dict)
    csr: dict[torch.dtype, Tensor] = field(default_factory=dict)
    kernels: dict[torch.dtype, KernelArrays] = field(default_factory=dict)
    relations: dict[object, Adjacency] = field(default_factory=dict)

    def forget(self) -> None:
        """Drop what was made of arrays that have changed since; their version and the matrix of a view stay."""
        fresh = Derived(version=self.version, origin=self.origin)
        for item in fields(self):
            setattr(self, item.name, getattr(fresh, item.name))

    def arrays(self) -> list[Tensor]:
        """List the tensors that are kept, those of the transpose excepted."""
        arrays = [array for array in (self.edge_index, self.positions) if array is not None]
        arrays += [*self.values.values(), *self.features.values(), *self.inverse_counts.values()]
        for matrix in self.csr.values():
            arrays += [matrix.crow_indices(), matrix.col_indices(), matrix.values()]
        return arrays
