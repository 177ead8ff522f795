"""`History`: chunks of a graph read each other's rows from boards: fresh ones where this epoch made them already, and
those of an earlier epoch elsewhere.

Each call of a layer has a board of all columns of the part. A chunk writes its own rows over the old ones, exchanges
what other parts read of them, and sums up over the whole board. Backward goes over the chunks in reverse. A row's
gradient is complete when its chunk's turn comes: chunks that read it as history give none. The one inexact exchange;
no byte more crosses than a halo moves.

Sums over all rows have a board of the sums of chunks, in all parts alike: each as fresh, or as old, as its rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from trisect.comm.rows import Rows, Shape
from trisect.graph.adjacency import Adjacency
from trisect.ops.memory import empty
from trisect.ops.spmm.collect import Collector, add_rows
from trisect.ops.spmm.sums import aggregate_into
from trisect.partition.halo import PartGraph
from trisect.partition.reach import reach_of
from trisect.views import halo
from trisect.views.door import Door, Posted
from trisect.views.ending import Ending
from trisect.views.history_rows import HistoryRows
from trisect.views.rows import same_rows
from trisect.views.spatial import Spatial
from trisect.views.total import sum_over_parts


class Boards:
    """The boards of one rank, their gradients while backward goes over the chunks, and what crosses for each chunk.

    Args:
        graph: the part's block with its halo lists by chunk.
        rows: what readers see, and history; it outlives passes.
        sums: the same of the chunks' sums over rows, [chunks, width] in float64.
        interior: of each chunk, the own row from which on no row takes part in the exchange.
        column_ids: the user's ids of the columns.
        scale: by how much the gradient of rows read fresh by other chunks is multiplied.
    """

    def __init__(
        self,
        graph: PartGraph,
        rows: HistoryRows,
        sums: HistoryRows,
        door: Door,
        *,
        interior: Sequence[int] | None = None,
        column_ids: Tensor | None = None,
        scale: float = 1.0,
    ) -> None:
        self.graph, self.rows, self.sums, self.door, self.scale = graph, rows, sums, door, scale
        self.interior, self.column_ids = interior, column_ids
        self.parts = door.mesh.layout.vertex
        self._slots: dict[Hashable, int] = {}
        self._sum_slots: dict[Hashable, int] = {}
        self._later: dict[Hashable, Tensor] = {}
        self._chunks: dict[int | None, History] = {}
        self._whole = True
        self._chunk: int | None = None
        self._waiting = torch.zeros(0, dtype=torch.bool)
        self._stores: dict[int, Tensor] = {}
        self._collectors: dict[int, Collector] = {}
        self._narrowed: dict[Hashable, Any] = {}

    def begin(self, *, chunked: bool, keep: float | None) -> None:
        """Begin a pass chunk by chunk, or over all rows at once; see `HistoryRows.begin` for `keep`."""
        self.rows.begin(chunked=chunked, keep=keep)
        self.sums.begin(chunked=chunked, keep=keep)
        self._whole = not chunked
        columns, device = self.graph.adjacency.columns, self.graph.adjacency.device
        self._waiting = torch.full((columns,), chunked, dtype=torch.bool, device=device)

    def turn(self) -> None:
        """All chunks have gone forward: history is complete, and nothing is read any more."""
        self.rows.turn()
        self.sums.turn()

    def back_to(self, chunk: int | None) -> None:
        """Backward comes to a chunk: rows of those before it in backward were history to it."""
        if self._whole or chunk == self._chunk:
            return
        self._narrowed.clear()
        if self._chunk is not None:
            self._mark(self._waiting, self._chunk, value=False)
        self._chunk = chunk

    def end(self) -> None:
        """Let go of everything but history."""
        self._stores.clear()
        self._collectors.clear()
        self._narrowed.clear()
        self._later.clear()
        self._chunk = None
        self.rows.end()
        self.sums.end()

    def chunk(self, number: int | None) -> History:
        """Return the view of a chunk; None: of all rows."""
        if number not in self._chunks:
            self._chunks[number] = History(self, number)
        return self._chunks[number]

    def slot(self, call: Hashable) -> int:
        """Return the number of a call's board; calls come in the same order in every pass."""
        return self._slots.setdefault(call, len(self._slots))

    def state(self) -> dict[str, Tensor]:
        """Return all that a resumed run needs, by name."""
        return {**self.rows.history(), **self.sums.history()}

    def restore(self, named: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave."""
        for rows in (self.rows, self.sums):
            rows.restore({name: value for name, value in named.items() if name.startswith(f"{rows.name}.")})

    # Sums over all rows

    def total(self, call: Hashable, chunk: int | None, own: Tensor) -> Tensor:
        """Put sums of a chunk on the board, or of all chunks; return the sum over all rows, fresh and old: [1, width].

        Args:
            own: of the rows of all parts, [1, width], or [chunks, width].
        """
        slot = self._sum_slots.setdefault(call, len(self._sum_slots))
        low, high = (0, len(self.graph.chunk_rows) - 1) if chunk is None else (chunk, chunk + 1)
        self.sums.write(slot, low, high, own.to(self.sums.dtype))
        board = own if chunk is None else self.sums.rows(slot)
        return board.sum(0, keepdim=True).to(own.dtype)

    def total_gradient(self, call: Hashable, chunk: int | None, gradient: Tensor) -> Tensor:
        """Return the gradient of a chunk's own sums, from all chunks that read them fresh, [1, width]."""
        if chunk is None:
            return gradient
        later = self._later.get(call)
        self._later[call] = gradient if later is None else later + gradient
        return gradient if later is None else gradient + self.scale * later

    @property
    def pulls(self) -> bool:
        """Whether each row reads its gradient from the rows that read it: then nothing is added up."""
        return self.parts == 1 or self.graph.symmetric

    def columns_of(self, chunk: int | None) -> list[slice]:
        """Return the own rows of a chunk, and those of every owner in the halo."""
        if chunk is None:
            return [slice(0, self.graph.adjacency.columns)]
        own = self.graph.rows
        others = [slice(own + low, own + high) for low, high in (owner[chunk] for owner in self.graph.receive)]
        return [self.graph.rows_of(chunk), *(columns for columns in others if columns.stop > columns.start)]

    def _mark(self, columns: Tensor, chunk: int | None, *, value: bool) -> None:
        for some in self.columns_of(chunk):
            columns[some] = value

    # Gradients

    def store(self, slot: int, like: Tensor) -> Tensor:
        """Return where gradients are kept by the rows that they belong to, [columns, width]."""
        store = self._stores.get(slot)
        if store is None:
            if self._whole:
                self._stores.clear()  # the layer behind has been done
                store = empty((self.graph.adjacency.columns, like.shape[-1]), like.dtype, like.device)
            else:
                store = self.rows.memory_for_gradients(slot)
            self._stores[slot] = store
        return store

    def collector(self, slot: int, width: int) -> Collector:
        """Return the sum of gradients by the rows that were read."""
        collector = self._collectors.get(slot)
        if collector is None:
            shape = (self.graph.adjacency.columns, width)
            memory = None if self._whole else partial(self.rows.memory_for_gradients, slot)
            device, dtype = self.graph.adjacency.device, self.rows.dtype
            collector = self._collectors[slot] = Collector(shape, dtype, device, self._awaited, memory)
        return collector

    def readers(self, rows: slice) -> Adjacency:
        """Return what reads some own rows, [rows, columns], without entries of chunks that backward has not come to."""
        key = ("readers", rows.start, rows.stop)
        turned: Adjacency | None = self._narrowed.get(key)
        if turned is None:
            # the rows of a symmetric matrix are its own columns
            matrix = self.graph.adjacency if self.parts > 1 else self.graph.adjacency.transpose()
            whole = (rows.start, rows.stop) == (0, self.graph.rows)
            turned = matrix if whole else matrix.rows_between(rows.start, rows.stop)
            if not self._whole:
                done = ~self._waiting
                self._mark(done, self._chunk, value=True)
                turned = entries_in(turned, done)
            self._narrowed[key] = turned
        return turned

    def _awaited(self, block: Adjacency) -> tuple[Tensor | None, Adjacency]:
        """Return `Adjacency.read_columns` without those of chunks whose backward is done."""
        wanted: tuple[Tensor | None, Adjacency] | None = self._narrowed.get(id(block))
        if wanted is None:
            targets, turned = block.read_columns()
            if not self._whole:
                keep = self._waiting if targets is None else self._waiting[targets]
                if not bool(keep.all()):
                    targets = torch.nonzero(keep)[:, 0] if targets is None else targets[keep]
                    turned = turned.rows_at(keep)
            wanted = self._narrowed[id(block)] = (targets, turned)
        return wanted


class History(Spatial):
    """The rows of one chunk, or all rows where `chunk` is None."""

    steps = 1
    stale = True

    def __init__(self, boards: Boards, chunk: int | None) -> None:
        graph = boards.graph
        self._boards, self._chunk, self._span = boards, chunk, graph.rows_of(chunk)
        self.rows = self._span.stop - self._span.start
        self.moves = boards.parts > 1
        low, high = self._span.start, self._span.stop
        middle = high
        if self.moves and boards.interior is not None and self.rows >= halo.OVERLAP_ROWS:
            index = 0 if chunk is None else chunk
            middle = boards.interior[index] if chunk is not None or len(boards.interior) == 1 else high
        # boundary rows and interior rows, each with its matrix
        self._sides = [slice(low, middle), slice(middle, high)]
        whole = (low, high) == (0, graph.rows)
        self._matrix = graph.adjacency if whole else graph.adjacency.rows_between(low, high)
        self._matrices = [self._matrix if middle == high else graph.adjacency.rows_between(low, middle)]
        self._matrices.append(graph.adjacency.rows_between(middle, high))
        chunks = range(len(graph.chunk_rows) - 1) if chunk is None else range(chunk, chunk + 1)
        self._sends = [torch.cat([lists[c] for c in chunks]) for lists in graph.send]
        bounds = [(graph.rows + owner[chunks[0]][0], graph.rows + owner[chunks[-1]][1]) for owner in graph.receive]
        self._halo = [slice(first, last) for first, last in bounds]
        self._near: tuple[Adjacency, Tensor | None] | None = None
        if chunk is None:
            self.pieces = [high - low for low, high in pairwise(graph.chunk_rows)]

    @property
    def blocks(self) -> Sequence[Adjacency]:
        """Return the chunk's rows × the columns that `gather` gives."""
        return [self._read()[0]]

    def _read(self) -> tuple[Adjacency, Tensor | None]:
        """Return the matrix of the columns that are read, and which these are; None: all."""
        if self._near is None:
            if self._chunk is None:
                self._near = self._matrix, None
            else:
                low, high = self._span.start, self._span.stop
                reach = reach_of(self._boards.graph.adjacency, low, high)
                own = torch.arange(low, high, device=reach.others.device)
                self._near = reach.adjacency, torch.cat([own, reach.others])
        return self._near

    def column_ids(self, step: int) -> Tensor | None:
        """Return the user's ids of the columns that are read."""
        ids, reads = self._boards.column_ids, self._read()[1]
        return ids if ids is None or reads is None else ids[reads]

    # Forward

    def room(self, call: Hashable, like: Tensor, width: int) -> Tensor | None:
        """Return the chunk's rows on the board, where nothing that they replace counts."""
        rows = self._boards.rows
        if rows.blends:
            return None
        board = rows.rows(self._boards.slot(call))
        return same_rows(board, self._span.start, self._span.stop)[None]

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
        board, posted = self._written(call, x)
        noise = ending.noise(0)

        def some(side: int) -> None:
            rows, matrix = self._sides[side], self._matrices[side]
            low, high = rows.start - self._span.start, rows.stop - self._span.start
            whole = high - low == self.rows
            aggregate_into(
                out[0] if whole else out[0, low:high],
                board,
                matrix,
                alpha=alpha,
                add=None if add is None else add[0, low:high],
                beta=beta,
                bias=bias,
                relu=ending.plain_relu,
                slope=ending.slope,
                p=ending.p,
                noise=noise if whole or noise is None else noise.rows(low, high),
            )

        if self._sides[1].stop > self._sides[1].start:
            some(1)
        self._arrived(call, posted)
        if self._sides[0].stop > self._sides[0].start or self.rows == 0:
            some(0)

    def _written(self, call: Hashable, x: Tensor) -> tuple[Tensor, Posted | None]:
        """Put own rows on the board, and begin to exchange them; return the board."""
        boards = self._boards
        slot = boards.slot(call)
        board = boards.rows.rows(slot)
        low, high = self._span.start, self._span.stop
        if boards.rows.blends or x.data_ptr() != board[low:high].data_ptr() or not x.numel():
            boards.rows.write(slot, low, high, x[0])
        if not self.moves:
            return board, None
        room: list[Tensor | Shape] = [board[columns] for columns in self._halo]
        if boards.rows.blends:
            room = [Shape(rows.shape[0], rows.shape[1], board.dtype) for rows in room]
        return board, self._begin(call, board, room, "halo")

    def _begin(self, call: Hashable, board: Tensor, room: Sequence[Tensor | Shape], kind: str) -> Posted:
        outgoing = [Rows(board, rows) for rows in self._sends]
        return self._boards.door.swap("halo", call, outgoing, room, kind, back=kind != "halo", key=kind)

    def _arrived(self, call: Hashable, posted: Posted | None) -> None:
        if posted is None:
            return
        boards, received = self._boards, posted.wait()
        if boards.rows.blends:
            slot = boards.slot(call)
            for columns, rows in zip(self._halo, received, strict=True):
                if columns.stop > columns.start:
                    boards.rows.write(slot, columns.start, columns.stop, rows)

    def gather(self, call: Hashable, x: Tensor) -> list[Tensor]:
        """Return the columns that are read, as they are now."""
        board, posted = self._written(call, x)
        self._arrived(call, posted)
        _, reads = self._read()
        return [same_rows(board, 0, board.shape[0]) if reads is None else board.index_select(0, reads)]

    # Backward

    def gradient_room(self, call: Hashable, like: Tensor, width: int) -> Tensor | None:
        """Return where the gradient of the chunk's sums is kept, where it is pulled."""
        boards = self._boards
        if not boards.pulls or (boards.parts == 1 and self._chunk is None):
            return None
        store = boards.store(boards.slot(call), like)
        return same_rows(store, self._span.start, self._span.stop)[None]

    def sum_gradient(self, call: Hashable, gradient: Tensor, trail: Any, *, alpha: float = 1.0) -> Tensor:
        """Return the gradients of own rows, from all chunks that read them fresh."""
        boards = self._boards
        boards.back_to(self._chunk)
        slot, width = boards.slot(call), gradient.shape[2]
        if not boards.pulls:
            collector = boards.collector(slot, width)
            self._scale(collector)
            collector.add(gradient[0], self._matrix, alpha=alpha)
            return self._collected(call, collector)
        out = empty((1, self.rows, width), gradient.dtype, gradient.device)
        if boards.parts == 1 and self._chunk is None:
            aggregate_into(out[0], gradient[0], boards.readers(self._span), alpha=alpha)
            return out
        store, low, high = boards.store(slot, gradient), self._span.start, self._span.stop
        if gradient.data_ptr() != store[low:high].data_ptr():
            store[low:high] = gradient[0]
        room = [store[columns] for columns in self._halo]
        posted = self._begin(call, store, room, "halo-gradients") if self.moves else None
        if self._sides[1].stop > self._sides[1].start:
            self._pull(out, store, self._sides[1], alpha)
        if posted is not None:
            posted.wait()
        if self._sides[0].stop > self._sides[0].start:
            self._pull(out, store, self._sides[0], alpha)
        return out

    def _pull(self, out: Tensor, store: Tensor, rows: slice, alpha: float) -> None:
        scale, turned = self._boards.scale if self._chunk is not None else 1.0, self._boards.readers(rows)
        result = out[0, rows.start - self._span.start : rows.stop - self._span.start]
        aggregate_into(result, store, turned, alpha=alpha * scale)
        for columns in self._boards.columns_of(self._chunk) if scale != 1.0 else ():
            near = turned.columns_between(columns.start, columns.stop)
            aggregate_into(result, store[columns], near, alpha=alpha * (1.0 - scale), add=result)

    def gather_gradient(self, call: Hashable, gradients: Sequence[Tensor]) -> Tensor:
        """Return the gradients of own rows, from all chunks that read them fresh."""
        boards, (gradient,) = self._boards, gradients
        boards.back_to(self._chunk)
        collector = boards.collector(boards.slot(call), gradient.shape[1])
        self._scale(collector)
        _, reads = self._read()
        if reads is None:
            collector.rows().add_(gradient)
        else:
            add_rows(collector.rows(), reads, gradient)
        return self._collected(call, collector)

    def _scale(self, collector: Collector) -> None:
        """Multiply what other chunks gave (technique 3), to make up for those that read old rows and give none."""
        if self._boards.scale != 1.0 and self._chunk is not None and not collector.blank:
            for columns in self._boards.columns_of(self._chunk):
                collector.rows()[columns] *= self._boards.scale

    def _collected(self, call: Hashable, collector: Collector) -> Tensor:
        """Return the gradients of own rows, those that other parts found included."""
        total = collector.rows()
        if self.moves:
            door, kind = self._boards.door, "halo-gradients"
            outgoing = [total[columns] for columns in self._halo]
            shapes = [Shape(rows.numel(), total.shape[1], total.dtype) for rows in self._sends]
            received = door.swap("halo", call, outgoing, shapes, kind, back=True, key=kind).wait()
            for rows, gradient in zip(self._sends, received, strict=True):
                add_rows(total, rows, gradient)
        return total[self._span][None]

    def total(self, call: Hashable, sums: Tensor) -> Tensor:
        """Return the sum over fresh and old rows of all parts."""
        boards, (own,) = self._boards, sums
        if self.moves:
            own = sum_over_parts(boards.door, call, own, back=False)
        return boards.total(call, self._chunk, own)

    def total_gradient(self, call: Hashable, gradient: Tensor) -> Tensor:
        """Return the gradient of own rows, from those of all parts and chunks that read their sum fresh."""
        boards = self._boards
        if self.moves:
            gradient = sum_over_parts(boards.door, call, gradient, back=True)
        return boards.total_gradient(call, self._chunk, gradient)


def entries_in(block: Adjacency, columns: Tensor) -> Adjacency:
    """Return a block without the entries of other columns than those marked, bool [columns]."""
    low = int(block.starts[0]) if block.rows else 0
    high = int(block.ends[-1]) if block.rows else 0
    if not torch.equal(block.ends[:-1], block.starts[1:]):
        raise RuntimeError("internal error: the rows of a piece are not in one interval of entries")
    kept = columns.index_select(0, block.indices[low:high] - block.column_base)
    before = torch.zeros(high - low + 1, dtype=torch.int64, device=block.device)
    torch.cumsum(kept, 0, out=before[1:])
    return replace(
        block,
        starts=before[block.starts - low],
        ends=before[block.ends - low],
        indices=block.indices[low:high][kept],
        values=None if block.values is None else block.values[low:high][kept],
        positions=None,
    )
