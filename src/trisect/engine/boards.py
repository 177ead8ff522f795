"""Where layers put what other rows read of theirs, and where the gradients of it are found.

A layer whose rows are read across cells (by other parts, or by other chunks of its own) has a board: one tensor of the
own rows of all steps of the block, one step after the other, and behind them the halo rows of all steps. Cells write
their rows there and read those of all. A static graph has one step; its rows may be history, which outlives the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trisect.engine.gradients import MessageGradients
from trisect.engine.pulled import Pulled, joined, readable
from trisect.engine.values import Reading, read_rows, same_rows
from trisect.exchanges.facts import offsets
from trisect.exchanges.port import Crossing
from trisect.graph.adjacency import Adjacency
from trisect.ops.memory import empty
from trisect.ops.message import Message
from trisect.ops.spmm.collect import add_rows
from trisect.partition.halo import PartGraph
from trisect.views.history_rows import HistoryRows


@dataclass(frozen=True, eq=False)
class CellRows:
    """Rows of a part that one cell computes, in every step of a block.

    Attributes:
        rows: of the part.
        blocks: their adjacency at each step; its columns are those of the part, or, with `reads`, those alone.
        reads: at each step, int64, the columns of the part that become the block's; None: all.
    """

    rows: slice
    blocks: Sequence[Adjacency]
    reads: Sequence[Tensor | None]


class Boards:
    """The boards of one stage: for each layer whose rows are read across cells, its rows and their gradients.

    Args:
        widths: by layer, how wide a row is that others read.
        history: the rows of a static graph, which may be history.
        parts, part: how many parts there are, and which one is the own.
        timeline: whether blocks of several steps come; they have no history.

    Attributes:
        saves_rows: whether autograd saves rows of the board as they are, which must then stay as they are.
    """

    def __init__(
        self,
        widths: dict[int, int],
        history: HistoryRows,
        gradients: MessageGradients,
        *,
        parts: int,
        part: int,
        timeline: bool,
    ) -> None:
        self.slots = {layer: slot for slot, layer in enumerate(widths)}
        self._widths = list(widths.values())
        self.history, self.gradients = history, gradients
        self._parts, self._part, self._timeline = parts, part, timeline
        self._token = torch.zeros((), requires_grad=True)
        self.graphs: Sequence[PartGraph] = ()
        self.rows, self._halo_starts = 0, [0]
        self._slabs: dict[int, Tensor] = {}
        self._halos: dict[int, Tensor] = {}
        self._crossings: dict[object, Crossing] = {}
        self._slices: dict[object, list[slice]] = {}
        self._leaves: dict[int, Tensor] = {}
        self._block: object = None
        self.at_once = True
        self.saves_rows = False

    def begin(self, graphs: Sequence[PartGraph], block: object, *, at_once: bool) -> None:
        """Enter a block of some steps, to be gone through over all rows at once or chunk by chunk."""
        self.graphs, self._block, self.at_once = graphs, block, at_once
        self.rows = graphs[0].rows if graphs else 0
        self._halo_starts = offsets([graph.adjacency.columns - graph.rows for graph in graphs])
        self._slabs.clear()
        self._halos.clear()
        self._leaves.clear()
        self.gradients.begin(graphs, at_once=at_once)

    def end(self) -> None:
        """Let go of everything; what is history ends its pass by itself."""
        self._slabs.clear()
        self._halos.clear()
        self._leaves.clear()
        self.gradients.end()

    @property
    def steps(self) -> int:
        """How many steps the block has."""
        return len(self.graphs)

    @property
    def in_place(self) -> bool:
        """Whether halo rows may be read where they came to lie: one part gives all of them, and kernels of the CPU
        sum them up.
        """
        if self._parts != 2 or not self.at_once or self.history.stale or not self.gradients.collects:
            return False
        return bool(self.graphs) and self.graphs[0].adjacency.device.type == "cpu"

    def buffer(self, layer: int) -> Tensor:
        """Give the tensor that readers of a layer see: own rows of all steps, then the halo of all steps."""
        slot = self.slots[layer]
        if not self._timeline:
            return self.history.rows(slot)
        slab = self._slabs.get(slot)
        if slab is None:
            shape = (self.steps * self.rows + self._halo_starts[-1], self._widths[slot])
            device = self.graphs[0].adjacency.device
            slab = self._slabs[slot] = empty(shape, self.history.dtype, device)
        return slab

    # Forward

    def room(self, layer: int, rows: slice) -> Tensor | None:
        """Give the rows of a cell on the board, where they stand together and nothing that they replace counts."""
        if self.steps == 1:
            blends = not self._timeline and self.history.blends
            return None if blends else same_rows(self.buffer(layer), rows.start, rows.stop)
        if (rows.start, rows.stop) != (0, self.rows):
            return None
        return same_rows(self.buffer(layer), 0, self.steps * self.rows)

    def write(self, layer: int, rows: slice, message: Tensor) -> None:
        """Put the rows of a cell, [steps · rows, width], on the board."""
        if not self._timeline:
            self.history.write(self.slots[layer], rows.start, rows.stop, message)
            return
        own = self.buffer(layer)[: self.steps * self.rows].view(self.steps, self.rows, -1)
        own[:, rows] = message.view(self.steps, rows.stop - rows.start, -1)

    def read(self, layer: int, cell_rows: CellRows, *, trained: bool) -> tuple[list[Message], list[Reading]]:
        """Give what a cell reads at each step: fresh rows where this pass made them, history elsewhere. Its own
        rows come apart where the gradient of the others goes to a collector.
        """
        slot, messages, readings = self.slots[layer], [], []
        for step in range(self.steps):
            reads = cell_rows.reads[step]
            rows, halo = self._columns(layer, step)
            if reads is not None:
                rows = (rows if halo is None else joined(rows[: self.rows], halo)).index_select(0, reads)
                halo = None
            if not trained:
                messages.append(Message(rows.detach(), halo))
                continue
            reading = Reading()
            readings.append(reading)
            if not self.gradients.adds(cell_rows.rows, reads_all=reads is None):
                messages.append(Message(read_rows(self._token, [rows], [reading])[0], halo))
                continue
            leaf = read_rows(self._token, [rows], [reading])[0] if self.at_once else self._leaf(slot, rows)
            holds = self.history if self.saves_rows else None
            own = _OwnRows(self.buffer(layer), step * self.rows, cell_rows.rows, reading, holds)
            messages.append(Message(leaf, halo, self.gradients.of(slot, step), own))
        return messages, readings

    def _leaf(self, slot: int, rows: Tensor) -> Tensor:
        """Give all columns as a leaf for every chunk, which all give their gradient to the collector.

        The rows are history, which outlives the graphs that hold on to them.
        """
        leaf = self._leaves.get(slot)
        if leaf is None or leaf.data_ptr() != rows.data_ptr():
            leaf = self._leaves[slot] = same_rows(rows, 0, rows.shape[0]).requires_grad_()
        return leaf

    def _columns(self, layer: int, step: int) -> tuple[Tensor, Tensor | None]:
        """Give the columns of a step: [columns, width], and where the last of them are read instead."""
        buffer, slot = self.buffer(layer), self.slots[layer]
        halo = self._halos.get(slot)
        if self.steps == 1:
            return readable(buffer, self.rows, halo)
        if halo is None:
            halo = buffer[self.steps * self.rows :]
        halo = halo[self._halo_starts[step] : self._halo_starts[step + 1]]
        own = same_rows(buffer, step * self.rows, (step + 1) * self.rows)
        # Layers that do more than sum read `Message.rows` alone: their halo must follow the own rows.
        return readable(own, self.rows, halo) if self.gradients.collects else (joined(own, halo), None)

    def read_last(self, layer: int) -> None:
        """The last reader of a layer has gone forward: halo rows that lie elsewhere are let go, and the board where
        readers have copies.
        """
        slot = self.slots[layer]
        self._halos.pop(slot, None)
        if self.steps > 1 and not self.gradients.collects:
            self._slabs.pop(slot, None)

    # What crosses between parts

    @property
    def pulls(self) -> bool:
        """Whether gradients cross through the lists of the rows themselves, since every matrix is symmetric."""
        return self.gradients.pulls

    @property
    def blends(self) -> bool:
        """Whether rows are to be brought by `write_halo`, since what they replace still counts."""
        return self.history.blends

    def gradient_buffer(self, layer: int) -> Tensor:
        """Give the gradients of a layer's rows, in the order of `buffer`."""
        return self.gradients.slab(self.slots[layer])

    def write_halo(self, layer: int, rows: slice, received: Tensor) -> None:
        """Let received rows take the place of history."""
        if rows.stop > rows.start:
            self.history.write(self.slots[layer], rows.start, rows.stop, received)

    def crossing(self, chunk: int) -> Crossing:
        """Say which rows cross for a chunk; for all of them where the pass is whole."""
        key = (self._block, None if self.at_once else chunk)
        crossing = self._crossings.get(key)
        if crossing is None:
            sends, receives = [], []
            for other in range(self._parts):
                lists = [
                    rows + step * self.rows
                    for step, graph in enumerate(self.graphs)
                    for c, rows in enumerate(graph.send[other])
                    if self.at_once or c == chunk
                ]
                sends.append(torch.cat(lists))
                receives.append(
                    sum(
                        high - low
                        for graph in self.graphs
                        for c, (low, high) in enumerate(graph.receive[other])
                        if self.at_once or c == chunk
                    )
                )
            crossing = self._crossings[key] = Crossing(sends, receives)
        return crossing

    def halo_slices(self, chunk: int) -> list[slice] | None:
        """Give, for each part, where its rows stand on the board; None where they are not side by side."""
        own = self.steps * self.rows
        if self.steps > 1:
            if self._parts > 2:
                return None
            halo = slice(own, own + self._halo_starts[-1])
            return [slice(own, own) if other == self._part else halo for other in range(self._parts)]
        key = (self._block, None if self.at_once else chunk)
        slices = self._slices.get(key)
        if slices is None:
            graph = self.graphs[0]
            chunks = range(len(graph.chunk_rows) - 1) if self.at_once else range(chunk, chunk + 1)
            slices = self._slices[key] = [
                slice(own + owned[chunks[0]][0], own + owned[chunks[-1]][1]) for owned in graph.receive
            ]
        return slices

    def scatter(self, halo: Tensor, received: Sequence[Tensor]) -> None:
        """Put the halo rows of several steps that came from each part, step by step, where they belong."""
        taken = [0] * self._parts
        for step, graph in enumerate(self.graphs):
            for other in range(self._parts):
                low, high = graph.receive[other][0][0], graph.receive[other][-1][1]
                rows = received[other][taken[other] : taken[other] + high - low]
                taken[other] += high - low
                halo[self._halo_starts[step] + low : self._halo_starts[step] + high] = rows

    def extend(self, layer: int, halo: Tensor) -> None:
        """Halo rows of a layer are here, and lie elsewhere than on the board."""
        self._halos[self.slots[layer]] = halo

    def extend_gradients(self, layer: int, halo: Tensor) -> None:
        """The gradients that other parts' rows were given are here: [halo rows of all steps, width]."""
        slot = self.slots[layer]
        for step in range(self.steps):
            collector = self.gradients.of(slot, step)
            if isinstance(collector, Pulled):
                collector.halo = halo[self._halo_starts[step] : self._halo_starts[step + 1]]

    def halo_gradients(self, layer: int, chunk: int) -> list[Tensor]:
        """Give, for each part, the gradients of its rows that own rows read."""
        slot = self.slots[layer]
        gradients: list[list[Tensor]] = [[] for _ in range(self._parts)]
        for step, graph in enumerate(self.graphs):
            total = self.gradients.of(slot, step).rows()
            for other in range(self._parts):
                chunks = graph.receive[other]
                low, high = (chunks[0][0], chunks[-1][1]) if self.at_once else chunks[chunk]
                gradients[other].append(total[self.rows + low : self.rows + high])
        return [rows[0] if len(rows) == 1 else torch.cat(rows) for rows in gradients]

    def add_gradients(self, layer: int, chunk: int, received: Sequence[Tensor]) -> None:
        """Add the gradients of own rows that other parts found."""
        slot, taken = self.slots[layer], [0] * self._parts
        for step, graph in enumerate(self.graphs):
            total = self.gradients.of(slot, step).rows()
            for other in range(self._parts):
                lists = graph.send[other]
                rows = (torch.cat(lists) if len(lists) > 1 else lists[0]) if self.at_once else lists[chunk]
                gradient = received[other][taken[other] : taken[other] + rows.numel()]
                taken[other] += rows.numel()
                add_rows(total, rows, gradient)

    # Backward

    def collect(self, layer: int, cell_rows: CellRows, readings: Sequence[Reading]) -> None:
        """Add what autograd found of the gradients of the rows that a cell read."""
        leaf = self._leaves.get(self.slots[layer])
        if leaf is not None and leaf.grad is not None:
            # what the cell's layer did besides the sums whose gradient the collector has
            readings[0].add(leaf.grad)
            leaf.grad = None
        for step, reading in enumerate(readings):
            self.gradients.collect(self.slots[layer], step, cell_rows.rows, cell_rows.reads[step], reading)

    def gradient_of(self, layer: int, rows: slice) -> Tensor:
        """Give the gradient of the rows that a cell wrote, [steps · rows, width]."""
        slot = self.slots[layer]
        if self.steps == 1:
            return self.gradients.of_rows(slot, 0, rows)
        count = rows.stop - rows.start
        total = empty((self.steps, count, self._widths[slot]), self.history.dtype, self.graphs[0].adjacency.device)
        for step in range(self.steps):
            self.gradients.of_rows(slot, step, rows, total[step])
        return total.flatten(0, 1)


class _OwnRows:
    """Gives a cell's own rows of a message as a leaf of their own, when they are asked for."""

    def __init__(self, buffer: Tensor, first: int, rows: slice, reading: Reading, holds: HistoryRows | None) -> None:
        self._buffer, self._first, self.rows, self._reading, self._holds = buffer, first, rows, reading, holds

    def __call__(self) -> Tensor:
        if self._reading.own is None:
            if self._holds is not None:
                self._holds.hold(self._buffer)
            low, high = self._first + self.rows.start, self._first + self.rows.stop
            self._reading.own = same_rows(self._buffer, low, high).requires_grad_()
        return self._reading.own
