"""What a stage remembers of a piece of a chunk between forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from trisect.graph.adjacency import Adjacency
from trisect.nn.base import Layer
from trisect.ops.memory import empty


@dataclass(frozen=True)
class Segment:
    """Layers between two readings of neighbours: `combine` reads, `local` work on single rows, `prepare` sends."""

    combine: int | None
    local: tuple[int, ...]
    prepare: int | None


def segments_of(layers: Sequence[Layer], *, known: bool = False) -> tuple[Segment, ...]:
    """The segments of a stage; their layers are counted from the stage's first.

    With `known`, what the first layer asks of its neighbours is known beforehand, so that it reads none.
    """
    result = []
    combine: int | None = None
    local: list[int] = []
    for number, layer in enumerate(layers):
        if layer.spatial and not (known and number == 0):
            result.append(Segment(combine, tuple(local), number))
            combine, local = number, []
        else:
            local.append(number)
    result.append(Segment(combine, tuple(local), None))
    return tuple(result)


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows that are computed together.

    Attributes:
        rows: of the part.
        block: their adjacency; its columns are those of the part, or, with `reads`, those alone.
        reads: int64, the columns of the part that become the block's; None: all.
    """

    rows: slice
    block: Adjacency
    reads: Tensor | None = None


@dataclass
class Reading:
    """The gradient of rows that were read, as far as autograd has found it; `own` are a piece's rows of a message."""

    gradient: Tensor | None = None
    own: Tensor | None = None
    _summed: bool = False

    @torch.no_grad()
    def add(self, gradient: Tensor | None) -> None:
        """There is more of it."""
        if gradient is None:
            return
        if self.gradient is None:
            self.gradient = gradient
        elif self._summed:
            self.gradient += gradient
        else:
            # the first may be somebody else's too
            place = empty(gradient.shape, gradient.dtype, gradient.device)
            self.gradient = torch.add(self.gradient, gradient, out=place)
            self._summed = True


@dataclass
class Visit:
    """A piece of a chunk on its way through the stage in one epoch; dictionaries by segment, emptied by backward.

    Of rows that backward begins at, only their place in the graph is held, not the rows; of shared inputs, once forward
    is over, only their gradients.

    Attributes:
        shared: the shared inputs' rows by name, those that entered and those that the stage's layers wrote.
        shared_gradients: by name, what backward has found of theirs.
        shared_inputs: the names of those that entered.
        written: by layer, where backward begins at the rows that it wrote.
    """

    piece: Piece
    x: Tensor | None
    shared: dict[str, Tensor]
    inputs: Reading
    shared_inputs: tuple[str, ...]
    shared_gradients: dict[str, Reading]
    output: Tensor | None = None
    roots: dict[int, GradientEdge | None] = field(default_factory=dict)
    messages: dict[int, GradientEdge] = field(default_factory=dict)
    leaves: dict[int, Reading] = field(default_factory=dict)
    readings: dict[int, Reading] = field(default_factory=dict)
    written: dict[int, tuple[GradientEdge | None, Reading]] = field(default_factory=dict)

    @property
    def rows(self) -> slice:
        """Of the part."""
        return self.piece.rows


class _Read(torch.autograd.Function):
    """Rows of a buffer as a message: its gradient is kept aside, and nothing holds on to the buffer."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, rows: list[Tensor], reading: Reading) -> Tensor:
        ctx.reading = reading
        ctx.set_materialize_grads(False)
        return same_rows(rows[0], 0, rows[0].shape[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[None, ...]:
        ctx.reading.add(gradient)
        return None, None, None


def read_rows(token: Tensor, rows: Tensor, reading: Reading) -> Tensor:
    """Rows as a message; where autograd finds its gradient, it is put into `reading`. `token` requires a gradient."""
    message: Tensor = _Read.apply(token, [rows], reading)  # type: ignore[no-untyped-call]
    return message


def same_rows(x: Tensor, start: int, stop: int) -> Tensor:
    """Rows of a contiguous tensor as one of its own, no view: autograd does not count what is written to the rest."""
    offset = x.storage_offset() + start * x.stride(0)
    shape = (stop - start, *x.shape[1:])
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage(), offset, shape, x.stride())


def place_in_graph(x: Tensor) -> GradientEdge | None:
    """Where backward through x begins; None where nothing is to be found there."""
    return get_gradient_edge(x) if x.requires_grad else None


def joined_gradients(found: Sequence[tuple[int, Tensor | None]]) -> Tensor | None:
    """The gradients of consecutive rows, each with their number, as one tensor; None where there are none."""
    known = [gradient for _, gradient in found if gradient is not None]
    if not known:
        return None
    if len(found) == 1:
        return known[0]
    return torch.cat([known[0].new_zeros(rows, known[0].shape[1]) if g is None else g for rows, g in found])
