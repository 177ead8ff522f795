"""The gradients of what a stage's layers send to their readers, while backward goes over the chunks.

What a row sends is used by several chunks, so its gradient is complete only when the last of them is done; backward
runs in exactly the reverse order of forward, so it is complete when it is needed. Each layer and step has one collector
for it, to which the pieces that read the layer's rows add, or from which each row pulls (see `pulled`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from trisect.engine.pulled import Pulled, entries_in
from trisect.engine.values import Reading, same_rows
from trisect.graph.adjacency import Adjacency
from trisect.ops.memory import empty
from trisect.ops.spmm.collect import Collector, add_rows
from trisect.partition.halo import PartGraph
from trisect.views.history_rows import HistoryRows


class MessageGradients:
    """Those of the layers of one stage, over the steps of one block.

    Args:
        history: the rows themselves, whose memory gradients may take once all chunks have gone forward.
        widths: of each layer's message.
        dtype: of the rows.
        collects: whether all layers that read neighbours do no more with their message than sum it up.
        symmetric: whether every matrix is its own transpose.
        scale: by how much the gradient of rows read fresh by other chunks is multiplied (technique 3; 1: not at all).
    """

    def __init__(
        self,
        history: HistoryRows,
        widths: Sequence[int],
        dtype: torch.dtype,
        *,
        collects: bool,
        symmetric: bool,
        halo: bool,
        scale: float,
    ) -> None:
        self._history, self._widths, self._dtype = history, list(widths), dtype
        self.collects, self._scale = collects, scale
        # A row's gradient is read from the rows that read it, those of other parts included, where the matrix is
        # symmetric: then what the halo's rows of a buffer hold are the gradients that these rows were given.
        self.pulls = collects and symmetric and halo
        self._graphs: Sequence[PartGraph] = ()
        self._rows = 0
        self._at_once = True
        self._collectors: dict[tuple[int, int], Collector] = {}
        self._slabs: dict[int, Tensor] = {}
        # the chunk at work, the columns whose chunks are still to come, and what its pieces add to
        self._chunk: int | None = None
        self._waiting = torch.ones(0, dtype=torch.bool)
        self._wanted: dict[int, tuple[Tensor | None, Adjacency]] = {}
        self._turned_rows: dict[int, Adjacency] = {}

    def begin(self, graphs: Sequence[PartGraph], *, at_once: bool) -> None:
        """Begin a block over all rows at once, or chunk by chunk (then of one step)."""
        self.end()
        self._graphs, self._at_once, self._chunk = graphs, at_once, None
        self._rows = graphs[0].rows if graphs else 0
        if not at_once:
            self._waiting = torch.ones(graphs[0].adjacency.columns, dtype=torch.bool, device=graphs[0].adjacency.device)

    def end(self) -> None:
        """Let go of all gradients: the block is done."""
        self._collectors.clear()
        self._slabs.clear()
        self._wanted.clear()
        self._turned_rows.clear()

    def of(self, slot: int, step: int) -> Collector:
        """Give the collector of a layer's rows at a step of the block."""
        collector = self._collectors.get((slot, step))
        if collector is None:
            adjacency, width = self._graphs[step].adjacency, self._widths[slot]
            pulled = self.pulls or (self.collects and not self._at_once and adjacency.columns == adjacency.rows)
            memory = None if self._at_once else partial(self._history.memory_for_gradients, slot)
            if pulled:
                if len(self._graphs) > 1:
                    memory = partial(self._part_of_slab, slot, step)
                collector = Pulled(adjacency, width, self._dtype, partial(self._turned, step), memory)
            else:
                collector = Collector(
                    (adjacency.columns, width),
                    self._dtype,
                    adjacency.device,
                    self._awaited if not self._at_once else None,
                    memory,
                )
            self._collectors[slot, step] = collector
        return collector

    def slab(self, slot: int) -> Tensor:
        """Give the gradients that own rows of all steps were given, and room for those of the halo behind them."""
        if len(self._graphs) == 1:
            return self.of(slot, 0).rows()
        slab = self._slabs.get(slot)
        if slab is None:
            halo = sum(graph.adjacency.columns - graph.rows for graph in self._graphs)
            shape = (len(self._graphs) * self._rows + halo, self._widths[slot])
            slab = self._slabs[slot] = empty(shape, self._dtype, self._graphs[0].adjacency.device)
        return slab

    def _part_of_slab(self, slot: int, step: int) -> Tensor:
        first = step * self._rows
        return same_rows(self.slab(slot), first, first + self._rows)

    def forget(self, slot: int) -> None:
        """Let go of a layer's gradients, where the pass is whole."""
        if self._at_once:
            self._slabs.pop(slot, None)
            for step in range(len(self._graphs)):
                self._collectors.pop((slot, step), None)

    def turn_to(self, chunk: int) -> None:
        """Backward comes to a chunk: the one before it is done, and rows of it that are read from here on were history,
        whose gradients nobody wants.
        """
        done, self._chunk = self._chunk, chunk
        if done == chunk or self._at_once:
            return
        self._wanted.clear()
        self._turned_rows.clear()
        if done is not None:
            for columns in self._columns_of(done):
                self._waiting[columns] = False

    def adds(self, rows: slice, *, reads_all: bool) -> bool:
        """Say whether a piece adds to what others give; one of all rows gives all there is."""
        return reads_all and (self.pulls or rows.stop - rows.start < self._rows)

    def collect(self, slot: int, step: int, rows: slice, reads: Tensor | None, reading: Reading) -> None:
        """Add what autograd found of the gradient of the rows that a piece read.

        Args:
            reads: the columns that the piece read; None: all.
        """
        if reads is None and not self.adds(rows, reads_all=True):
            if reading.gradient is not None:
                self._collectors[slot, step] = Collector.of(reading.gradient)
            return
        collector = self.of(slot, step)
        own = None if reading.own is None else reading.own.grad
        if isinstance(collector, Pulled) and reads is None:
            collector.close(rows)
            if reading.gradient is not None and self.pulls:
                raise RuntimeError("internal error: a layer that collects read its message otherwise than by a sum")
            if reading.gradient is not None:
                collector.add_rest(reading.gradient)
            if own is not None:
                collector.add_own(rows, own)
            return
        if reading.gradient is not None:
            total = collector.rows()
            if reads is None:
                total += reading.gradient
            else:
                add_rows(total, reads, reading.gradient)
        if own is not None:
            collector.rows()[rows] += own

    def scale_fresh(self, chunk: int, slot: int) -> None:
        """GNNPipe's technique 3: multiply the gradient from chunks that read these rows fresh, to make up for the
        chunks that read them as history and give none.
        """
        collector = self._collectors.get((slot, 0))
        if self._at_once or self._scale == 1.0 or collector is None or collector.blank or isinstance(collector, Pulled):
            return
        total = collector.rows()
        for columns in self._columns_of(chunk):
            total[columns] *= self._scale

    def of_rows(self, slot: int, step: int, rows: slice, out: Tensor | None = None) -> Tensor:
        """Give the gradient of some own rows of a layer, once all that read them are done."""
        collector = self.of(slot, step)
        if not isinstance(collector, Pulled):
            total = collector.rows()[rows]
            return total if out is None else out.copy_(total)
        if self._at_once or self._chunk is None:
            return collector.of_rows(rows, out=out)
        return collector.of_rows(rows, self._scale, self._columns_of(self._chunk))

    def _columns_of(self, chunk: int) -> list[slice]:
        """Of a chunk, give the own rows and those of each owner in the halo."""
        graph = self._graphs[0]
        if self._at_once:
            return [slice(0, graph.adjacency.columns)]
        halo = [(self._rows + low, self._rows + high) for low, high in (owner[chunk] for owner in graph.receive)]
        return [graph.rows_of(chunk), *(slice(low, high) for low, high in halo if high > low)]

    def _turned(self, step: int, rows: slice) -> Adjacency:
        """Give what reads some own rows, without entries of chunks that backward has not come to."""
        turned = self._turned_rows.get(rows.start) if not self._at_once else None
        if turned is None:
            # the rows of a symmetric matrix are its own columns
            adjacency = self._graphs[step].adjacency
            matrix = adjacency if self.pulls else adjacency.transpose()
            all_rows = (rows.start, rows.stop) == (0, self._rows)
            turned = matrix if all_rows and self.pulls else matrix.rows_between(rows.start, rows.stop)
            if not self._at_once and self._chunk is not None:
                done = ~self._waiting
                for columns in self._columns_of(self._chunk):
                    done[columns] = True
                turned = entries_in(turned, done)
                self._turned_rows[rows.start] = turned
        return turned

    def _awaited(self, block: Adjacency) -> tuple[Tensor | None, Adjacency]:
        """Give `Adjacency.read_columns` without those of chunks that are done."""
        wanted = self._wanted.get(id(block))
        if wanted is None:
            targets, turned = block.read_columns()
            keep = self._waiting if targets is None else self._waiting[targets]
            if not bool(keep.all()):
                targets = torch.nonzero(keep)[:, 0] if targets is None else targets[keep]
                turned = turned.rows_at(keep)
            wanted = self._wanted[id(block)] = (targets, turned)
        return wanted
