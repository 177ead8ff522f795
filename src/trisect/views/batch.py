"""`Batch`: the chunks of one step of the optimizer, which read each other fresh and all other rows from history.

The columns of a batch are its own rows, then rows of the same chunks that other parts have (fresh too), then all other
rows that it reads, as the boards have them: constants. With `drop` the last are left out, and the matrix is that of the
batch alone. Gradients go to the first two. Fresh rows are pushed to the boards when they were read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from trisect.comm.ledger import Ledger
from trisect.comm.rows import Rows, Shape
from trisect.comm.transport import Transport
from trisect.graph.adjacency import Adjacency
from trisect.ops.memory import empty
from trisect.ops.spmm.collect import add_rows
from trisect.ops.spmm.sums import aggregate_into
from trisect.partition.halo import PartGraph
from trisect.views.door import Door
from trisect.views.ending import Ending
from trisect.views.history import Boards
from trisect.views.spatial import Spatial
from trisect.views.total import sum_over_parts

# renormalise(matrix of a batch, its columns among those of the part, a function from own values [rows, 1] to those of
# all columns) → the matrix without the edges that were left out
Renormalise = Callable[[Adjacency, Tensor, Callable[[Tensor], Tensor]], Adjacency]


@dataclass(frozen=True, eq=False)
class Reading:
    """What the rows of some chunks read.

    Attributes:
        own: the own rows, a slice where they stand together.
        inside: the columns of these chunks: own rows, and behind them those of other parts.
        others: the columns that are read beside these, ascending.
        matrix: [own rows, inside + others]; in each row entries inside come first.
        fresh: its columns inside.
    """

    own: slice | Tensor
    inside: Tensor
    others: Tensor
    matrix: Adjacency
    fresh: Adjacency


def reading_of(graph: PartGraph, chunks: Sequence[int], *, drop: bool = False) -> Reading:
    """Return what some chunks of a part read; with `drop`, of each other alone."""
    matrix, device = graph.adjacency, graph.adjacency.device
    spans = [graph.rows_of(chunk) for chunk in chunks]
    halo = [
        range(graph.rows + low, graph.rows + high)
        for owner in graph.receive
        for low, high in (owner[chunk] for chunk in chunks)
    ]
    rows = torch.cat([torch.arange(span.start, span.stop) for span in spans]).to(device)
    inside = torch.cat([rows, *(torch.arange(span.start, span.stop, device=device) for span in halo)])
    together = all(before.stop == after.start for before, after in pairwise(spans))
    own: slice | Tensor = slice(spans[0].start, spans[-1].stop) if together else rows
    block = matrix.rows_between(own.start, own.stop) if isinstance(own, slice) else matrix.rows_at(own)
    at = torch.full((matrix.columns,), -1, dtype=torch.int64, device=device)
    at[inside] = torch.arange(inside.numel(), device=device)
    row, column = block.coordinates()
    entry, lengths = block.entry_positions(), block.ends - block.starts
    others = inside[:0]
    if drop:
        kept = torch.nonzero(at[column] >= 0)[:, 0]
        row, column, entry = row[kept], column[kept], entry[kept]
        lengths = torch.bincount(row, minlength=rows.numel())
        counts = lengths
    else:
        outer = at[column] < 0
        read = torch.zeros(matrix.columns, dtype=torch.bool, device=device)
        read[column[outer]] = True
        others = torch.nonzero(read)[:, 0]
        at[others] = torch.arange(inside.numel(), inside.numel() + others.numel(), device=device)
        order, counts = _inside_first(row, outer, lengths)
        entry, column = entry[order], column[order]
    pointers = torch.zeros(rows.numel() + 1, dtype=torch.int64, device=device)
    torch.cumsum(lengths, 0, out=pointers[1:])
    values = None if matrix.values is None else matrix.values[entry]
    whole = Adjacency.from_csr(pointers, at[column], values, inside.numel() + others.numel()).vouched()
    if matrix.features is not None:
        whole = whole.with_features(matrix.features[entry])
    fresh = whole
    if others.numel():
        fresh = replace(whole, ends=whole.starts + counts, columns=inside.numel()).vouched()
    return Reading(own, inside, others, whole, fresh)


def _inside_first(row: Tensor, outer: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the order of entries in which those inside come first in each row, and how many these are; both kinds
    keep their order."""
    before = torch.zeros(outer.numel() + 1, dtype=torch.int64, device=outer.device)
    torch.cumsum(outer, 0, out=before[1:])
    ends = torch.cumsum(lengths, 0)
    starts = ends - lengths
    counts = lengths - (before[ends] - before[starts])
    outers = before[:-1] - before[starts][row]  # of the row, before the entry
    place = torch.where(outer, (starts + counts)[row] + outers, torch.arange(row.numel(), device=row.device) - outers)
    order = torch.empty_like(place)
    order[place] = torch.arange(row.numel(), device=row.device)
    return order, counts


class Batch(Spatial):
    """The rows of some chunks as one cell.

    Args:
        boards: from which rows outside are read, and to which own ones are pushed; None: edges to them are left out.
        column_ids: the user's ids of the part's columns.
        renormalise: makes the values of a matrix that edges were left out of.

    Attributes:
        own: which own rows of the part they are.
        push: the weight of what a board was before where own rows are pushed; None: they are not.
    """

    steps = 1

    def __init__(
        self,
        graph: PartGraph,
        chunks: Sequence[int],
        door: Door,
        boards: Boards | None,
        *,
        column_ids: Tensor | None = None,
        renormalise: Renormalise | None = None,
    ) -> None:
        reading = reading_of(graph, chunks, drop=boards is None)
        self.own, self._inside, self._others = reading.own, reading.inside, reading.others
        self.door, self._boards = door, boards
        self.push: float | None = 0.0
        self.moves, self.stale = door.mesh.layout.vertex > 1, boards is not None
        self.rows = reading.matrix.rows
        self._matrix, self._fresh = reading.matrix, reading.fresh
        counts = [sum(owner[chunk][1] - owner[chunk][0] for chunk in chunks) for owner in graph.receive]
        ends = list(accumulate(counts, initial=self.rows))
        self._halo = [slice(first, last) for first, last in pairwise(ends)]
        starts = list(accumulate((graph.chunk_rows[c + 1] - graph.chunk_rows[c] for c in chunks), initial=0))
        self._sends = [
            torch.cat([owner[c] - graph.chunk_rows[c] + start for c, start in zip(chunks, starts, strict=False)])
            for owner in graph.send
        ]
        if renormalise is not None:
            self._matrix = self._fresh = renormalise(reading.matrix, reading.inside, self._spread)
        if graph.symmetric and not self.moves:
            self._fresh = self._fresh.as_symmetric()
        self._ids = None if column_ids is None else column_ids[torch.cat([self._inside, self._others])]
        self._rooms: dict[Hashable, Tensor] = {}

    def _spread(self, own: Tensor) -> Tensor:
        """Return numbers of the own rows, [rows, 1], with those of the rows of other parts behind them."""
        if not self.moves:
            return own
        outgoing = [Rows(own, sent) for sent in self._sends]
        shapes = [Shape(columns.stop - columns.start, 1, own.dtype) for columns in self._halo]
        way = Transport(self._door.mesh, Ledger())
        received = way.begin_swap(outgoing, shapes, "features", 0, once=True).wait()
        return torch.cat([own, *(rows for rows, shape in zip(received, shapes, strict=True) if shape.rows)])

    @property
    def blocks(self) -> Sequence[Adjacency]:
        """Return the batch's rows × the columns that `gather` gives."""
        return [self._matrix]

    def column_ids(self, step: int) -> Tensor | None:
        """Return the user's ids of the columns that are read."""
        return self._ids

    # Forward

    def room(self, call: Hashable, like: Tensor, width: int) -> Tensor | None:
        """Return the first rows of what is read."""
        if self._matrix.columns == self.rows:
            return None
        near = self._rooms[call] = empty((self._matrix.columns, width), like.dtype, like.device)
        return near[: self.rows][None]

    def sum(
        self,
        call: Hashable,
        x: Tensor,
        out: Tensor,
        *,
        alpha: float = 1.0,
        add: Tensor | None = None,
        beta: float = 1.0,
        bias: Tensor | None = None,
        ending: Ending = Ending.NONE,
        trained: bool = False,
    ) -> Any:
        """Write the sums over fresh and old rows."""
        aggregate_into(
            out[0],
            self._read(call, x[0], self._rooms.pop(call, None)),
            self._matrix,
            alpha=alpha,
            add=None if add is None else add[0],
            beta=beta,
            bias=bias,
            relu=ending.plain_relu,
            slope=ending.slope,
            p=ending.p,
            noise=ending.noise(0),
        )

    def gather(self, call: Hashable, x: Tensor) -> list[Tensor]:
        """Return the rows that are read."""
        return [self._read(call, x[0], x.new_empty(self._matrix.columns, x.shape[2]))]

    def _read(self, call: Hashable, x: Tensor, near: Tensor | None) -> Tensor:
        """Return all rows that are read, and push those that are fresh."""
        rows, inside = self.rows, self._inside.numel()
        if self._matrix.columns == rows:
            near = x
        else:
            if near is None:
                near = empty((self._matrix.columns, x.shape[1]), x.dtype, x.device)
            if near.data_ptr() != x.data_ptr() or not rows:
                near[:rows] = x
        if self.moves:
            outgoing = [Rows(near, sent) for sent in self._sends]
            room: list[Tensor | Shape] = [near[columns] for columns in self._halo]
            self._door.swap("halo", call, outgoing, room, "halo", back=False, key="halo").wait()
        if self._boards is not None:
            board = self._boards.rows.kept(self._boards.slot(call))
            if self._others.numel():
                torch.index_select(board, 0, self._others, out=near[inside:])
            self._push(board, near[:inside])
        return near

    def _push(self, board: Tensor, fresh: Tensor) -> None:
        if self.push is None:
            return
        if isinstance(self.own, slice) and fresh.shape[0] == self.rows:
            kept = board[self.own]
            _ = kept.copy_(fresh) if self.push == 0.0 else kept.lerp_(fresh, 1.0 - self.push)
            return
        if self.push > 0.0:
            fresh = torch.lerp(board.index_select(0, self._inside), fresh, 1.0 - self.push)
        board.index_copy_(0, self._inside, fresh)

    # Backward

    def sum_gradient(self, call: Hashable, gradient: Tensor, trail: Any, *, alpha: float = 1.0) -> Tensor:
        """Return the gradients of own rows, from all rows of the batch that read them."""
        found = empty((self._fresh.columns, gradient.shape[2]), gradient.dtype, gradient.device)
        aggregate_into(found, gradient[0], self._fresh.transpose(), alpha=alpha)
        return self._collected(call, found)

    def gather_gradient(self, call: Hashable, gradients: Sequence[Tensor]) -> Tensor:
        """Return the gradients of own rows, from all rows of the batch that read them."""
        (gradient,) = gradients
        return self._collected(call, gradient.clone() if self.moves else gradient)

    def _collected(self, call: Hashable, found: Tensor) -> Tensor:
        """Return the gradients of own rows, those that other parts found included."""
        own = found[: self.rows]
        if self.moves:
            outgoing = [found[columns] for columns in self._halo]
            shapes = [Shape(sent.numel(), found.shape[1], found.dtype) for sent in self._sends]
            kind = "halo-gradients"
            received = self._door.swap("halo", call, outgoing, shapes, kind, back=True, key=kind).wait()
            for sent, rows in zip(self._sends, received, strict=True):
                add_rows(own, sent, rows)
        return own[None]

    @property
    def _door(self) -> Door:
        if self.door is None:
            raise RuntimeError("internal error: a batch of several parts has no way to them")
        return self.door

    def total(self, call: Hashable, sums: Tensor) -> Tensor:
        """Return the sum over all rows of the batch."""
        return sum_over_parts(self._door, call, sums[:, 0], back=False) if self.moves else sums[:, 0]

    def total_gradient(self, call: Hashable, gradient: Tensor) -> Tensor:
        """Return the sum of what all parts want of the total."""
        return sum_over_parts(self._door, call, gradient, back=True) if self.moves else gradient
