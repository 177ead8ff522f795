"""The gradients of what a stage's layers send to their readers, while backward goes over the chunks.

What a row sends is used by several chunks, so its gradient is complete only when the last of them is done; backward
runs in exactly the reverse order of forward, so it is complete when it is needed. Each segment has one place for it, to
which the pieces that read the segment's rows add, or from which each row pulls (see `pulled`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.ops.collect import Collector, add_rows, read_columns
from trisect.partition.halo import Share
from trisect.runtime.messages import Messages
from trisect.runtime.pulled import Pulled, entries_in
from trisect.runtime.visit import Piece, Reading


class MessageGradients:
    """Those of one stage.

    Args:
        share: the part, its columns own rows and then halo.
        messages: the rows themselves, whose memory gradients may take once all chunks have gone forward.
        widths: of each segment's message.
        dtype: of the rows.
        collects: whether all layers that read neighbours do no more with their message than sum it up.
        scale: by how much the gradient of rows read fresh by other chunks is multiplied (technique 3; 1: not at all).
    """

    def __init__(
        self,
        share: Share,
        messages: Messages,
        widths: Sequence[int],
        dtype: torch.dtype,
        *,
        collects: bool,
        scale: float,
    ) -> None:
        self._share, self._messages, self._widths, self._dtype = share, messages, list(widths), dtype
        self._collects, self._scale = collects, scale
        self._rows, self._columns = share.adjacency.rows, share.adjacency.columns
        self._whole = True
        self._found: list[Collector | None] = [None] * len(widths)
        # the chunk at work, the columns whose chunks are still to come, and what its pieces add to
        self._chunk: int | None = None
        self._waiting = torch.ones(0, dtype=torch.bool)
        self._wanted: dict[int, tuple[Tensor | None, Adjacency]] = {}
        self._turned_rows: dict[int, Adjacency] = {}

    def begin(self, *, whole: bool) -> None:
        """Begin a pass over all rows at once, or chunk by chunk."""
        self.end()
        self._whole, self._chunk = whole, None
        self._waiting = torch.ones(self._columns, dtype=torch.bool, device=self._share.adjacency.device)

    def end(self) -> None:
        """Nothing is held."""
        self._found = [None] * len(self._widths)
        self._wanted.clear()
        self._turned_rows.clear()

    @property
    def pulls(self) -> bool:
        """Whether a row's gradient is read from the rows that read it, those of other parts included: then what the
        halo's places hold are the gradients that these rows were given.
        """
        return self._collects and self._share.symmetric and self._columns > self._rows

    def of(self, segment: int) -> Collector:
        """Where the gradient of a segment's rows is found."""
        collector = self._found[segment]
        if collector is None:
            adjacency, width = self._share.adjacency, self._widths[segment]
            memory = None if self._whole else partial(self._messages.place_for_gradients, segment)
            if self.pulls or (self._collects and not self._whole and self._columns == self._rows):
                collector = Pulled(adjacency, width, self._dtype, self._turned, memory)
            else:
                collector = Collector((self._columns, width), self._dtype, adjacency.device, self._awaited, memory)
            self._found[segment] = collector
        return collector

    def forget(self, segment: int) -> None:
        """That of a segment is needed no more, where the pass is whole."""
        if self._whole:
            self._found[segment] = None

    def turn_to(self, chunk: int) -> bool:
        """Backward comes to a chunk: the one before it is done, and rows of it that are read from here on were history,
        whose gradients nobody wants. Gives whether the chunk is the first.
        """
        done, self._chunk = self._chunk, chunk
        if done == chunk:
            return False
        self._wanted.clear()
        self._turned_rows.clear()
        if done is not None:
            for columns in self._columns_of(done):
                self._waiting[columns] = False
        return done is None

    def adds(self, piece: Piece) -> bool:
        """Whether a piece adds to what others give; one of all rows gives all there is."""
        return piece.reads is None and (self.pulls or piece.rows.stop - piece.rows.start < self._rows)

    def collect(self, segment: int, piece: Piece, reading: Reading) -> None:
        """Add what autograd found of the gradient of the rows that a piece read."""
        if piece.reads is None and not self.adds(piece):
            if reading.gradient is not None:
                self._found[segment] = Collector.of(reading.gradient)
            return
        collector = self.of(segment)
        own = None if reading.own is None else reading.own.grad
        if isinstance(collector, Pulled) and piece.reads is None:
            collector.close(piece.rows)
            if reading.gradient is not None and self._columns > self._rows:
                raise RuntimeError("a layer that collects has read its message in another way than by a sum")
            if reading.gradient is not None:
                collector.add_rest(reading.gradient)
            if own is not None:
                collector.add_own(piece.rows, own)
            return
        if reading.gradient is not None:
            total = collector.rows()
            if piece.reads is None:
                total += reading.gradient
            else:
                add_rows(total, piece.reads, reading.gradient)
        if own is not None:
            collector.rows()[piece.rows] += own

    def scale_fresh(self, chunk: int, segment: int) -> None:
        """Technique 3: what later chunks asked of these rows stands in for what earlier ones, with history, did not."""
        collector = self._found[segment]
        if self._whole or self._scale == 1.0 or collector is None or collector.blank or isinstance(collector, Pulled):
            return
        total = collector.rows()
        for columns in self._columns_of(chunk):
            total[columns] *= self._scale

    def of_rows(self, segment: int, rows: slice) -> Tensor:
        """The gradient of some own rows of a segment, once all that read them are done."""
        collector = self.of(segment)
        if not isinstance(collector, Pulled):
            return collector.rows()[rows]
        if self._whole or self._chunk is None:
            return collector.of_rows(rows)
        return collector.of_rows(rows, self._scale, self._columns_of(self._chunk))

    def _columns_of(self, chunk: int) -> list[slice]:
        """Of a chunk, the own rows and those of each owner in the halo."""
        if self._whole:
            return [slice(0, self._columns)]
        halo = [(self._rows + low, self._rows + high) for low, high in (owner[chunk] for owner in self._share.receive)]
        return [self._share.rows_of(chunk), *(slice(low, high) for low, high in halo if high > low)]

    def _turned(self, rows: slice) -> Adjacency:
        """What reads some own rows, without entries of chunks that backward has not come to."""
        found = self._turned_rows.get(rows.start)
        if found is None:
            # the rows of a symmetric matrix are their own columns
            matrix = self._share.adjacency if self.pulls else self._share.adjacency.transpose()
            found = matrix.rows_between(rows.start, rows.stop)
            if not self._whole and self._chunk is not None:
                done = ~self._waiting
                for columns in self._columns_of(self._chunk):
                    done[columns] = True
                found = entries_in(found, done)
            self._turned_rows[rows.start] = found
        return found

    def _awaited(self, block: Adjacency) -> tuple[Tensor | None, Adjacency]:
        """`read_columns` without those of chunks that are done."""
        found = self._wanted.get(id(block))
        if found is None:
            targets, turned = read_columns(block)
            keep = self._waiting if targets is None else self._waiting[targets]
            if not bool(keep.all()):
                targets = torch.nonzero(keep)[:, 0] if targets is None else targets[keep]
                turned = replace(turned, starts=turned.starts[keep], ends=turned.ends[keep], _cache={})
            found = self._wanted[id(block)] = (targets, turned)
        return found
