"""The blocks of one part of a timeline: its rows of each snapshot, each from the block before by what changes.

A window slides over the part's events, as it does over those of a timeline (`graph.sliding`). Its matrix has a column
for every vertex; a block numbers the columns that its step reads anew. Weighted events do not slide: their blocks are
assembled from all events of the window.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.comm.ledger import Ledger
from trisect.graph.adjacency import Adjacency
from trisect.graph.assemble import Edges, assemble
from trisect.graph.build import MatrixForm, normalise_block
from trisect.graph.edge_features import with_entry_features
from trisect.graph.timeline.difference import full_bytes
from trisect.graph.timeline.events import RawEvents
from trisect.graph.timeline.sliding import SlidingWindow, slides
from trisect.ops.memory import empty
from trisect.shards.device_stream import Brought, DeviceStream, Mover, Source, most_bytes
from trisect.shards.part_events import PartEvents

_HOST = torch.device("cpu")


def block_stream(
    events: PartEvents,
    steps: int,
    form: MatrixForm,
    sums: Tensor | None,
    dtype: torch.dtype,
    ledger: Ledger,
    *,
    keep_bytes: int = 0,
    device: torch.device = _HOST,
    prefetch: bool | None = None,
) -> DeviceStream:
    """Give the blocks of a part, step by step.

    Args:
        steps: how many there are.
        form: how snapshots are prepared.
        sums: float [steps, vertices], the row sums that symmetric normalisation divides by; None for other kinds.
        dtype: float64 for values in float64; all others have values in float32.
        ledger: told the bytes of each block that is brought.
        keep_bytes: memory for kept blocks (with their transposes) and, where not all fit, for sorted raw events.
        device: where blocks are read.
        prefetch: whether to make the next step in the background; None: where cores allow.
    """
    values = torch.float64 if dtype == torch.float64 else torch.float32
    raw_steps = range(events.first, events.first + steps)
    lists = 0
    if slides(events) and most_bytes(events.offsets, events.smoothing, raw_steps, events.rows, values) > keep_bytes:
        lists = min(keep_bytes // 4, 2 * 8 * events.src.numel())
    source = PartBlocks(events, form, sums, values, device, lists)
    return DeviceStream(source, steps, ledger, keep_bytes=keep_bytes - lists, prefetch=prefetch)


class PartBlocks(Source):
    """Makes one block of a part after the other, on a device."""

    def __init__(
        self,
        events: PartEvents,
        form: MatrixForm,
        sums: Tensor | None,
        dtype: torch.dtype,
        device: torch.device = _HOST,
        keep_bytes: int = 0,
    ) -> None:
        super().__init__()
        self.events, self.form, self.sums, self.dtype, self.device = events, form, sums, dtype, device
        self._move = Mover(device)
        self._window: SlidingWindow | None = None
        if slides(events):
            raw = RawEvents(
                *(events.src, events.dst, events.offsets, events.rows, events.columns),
                bring=None if device == events.src.device else self._move,
            )
            self._window = SlidingWindow(
                raw,
                events.smoothing,
                form.normalisation,
                form.self_loops,
                dtype,
                keep_bytes,
                column_sums=None if sums is None else self._column_sums,
                read_columns=self._read_columns,
                device=device,
                brought=self._note,
                allocate=empty,
            )

    def bring(self, step: int) -> Brought:
        """Send what the block needs and is not there yet, and make it."""
        if self._window is None:
            made = self._with_features(self.assemble(step), step)
            matrix = made.to(self.device)
            if matrix is not made:
                # a device gets the block as the host made it
                return Brought(matrix, full_bytes(matrix), matrix.memory_bytes)
            stretch = self.events.window(step)
            self.count_sent((stretch.stop - stretch.start) * (8 if self.events.weight is None else 12))
        else:
            matrix = self._with_features(self._window.at(self.events.first + step), step)
        if self.sums is not None:
            self.count_sent(matrix.columns * self.sums.element_size())
        return Brought(matrix, full_bytes(matrix), self.take_sent())

    def assemble(self, step: int) -> Adjacency:
        """Build the block of a step anew, on the host, from all events of its window."""
        events = self.events
        now, stretch = events.first + step, events.window(step)
        read, number = self._numbers(step)
        coefficients = events.smoothing.coefficients(now)
        segments = None
        if coefficients is not None:
            segments = events.offsets[events.smoothing.first_step(now) : now + 2] - stretch.start
        edges = Edges(
            number[events.src[stretch].long()],
            events.dst[stretch],
            None if events.weight is None else events.weight[stretch],
            segments=segments,
            coefficients=coefficients,
        )
        matrix = Adjacency.from_csr(*assemble(edges, events.rows, read.numel(), self.dtype), read.numel()).vouched()
        if matrix.values is None and self.dtype != torch.float32:
            matrix = matrix.with_values(torch.ones(matrix.entries, dtype=self.dtype))
        return normalise_block(matrix, self.form.normalisation, self.form.self_loops, self._sums(step))

    def _numbers(self, step: int) -> tuple[Tensor, Tensor]:
        """Give the columns that a step reads, and what each of all columns is numbered in its block."""
        read = self.events.read_columns(step)
        number = torch.empty(self.events.columns, dtype=torch.int32)
        number[read] = torch.arange(read.numel(), dtype=torch.int32)
        return read, number

    def _with_features(self, matrix: Adjacency, step: int) -> Adjacency:
        """Put the features of its edges beside the values of a step's block, on the device where the block is."""
        events = self.events
        if events.edge_x is None:
            return matrix
        stretch = events.window(step)
        edge_x, target = events.edge_x[stretch], events.dst[stretch]
        source = self._numbers(step)[1][events.src[stretch].long()]
        self.count_sent(edge_x.numel() * edge_x.element_size())
        if matrix.device != edge_x.device:
            edge_x, source, target = self._move(edge_x), self._move(source), self._move(target)
        return with_entry_features(matrix, edge_x, source, target, events.merge)

    def _sums(self, step: int) -> Tensor | None:
        """Give the row sums of the columns of a step's block."""
        if self.sums is None:
            return None
        sums = self.sums[step]
        return torch.cat([sums[self.events.own], sums.index_select(0, self.events.halo_positions(step))])

    def _column_sums(self, raw_step: int) -> Tensor:
        """Give the row sums of all columns of the window, those that the step does not read as 0."""
        sums = self._sums(raw_step - self.events.first)
        out = torch.zeros(self.events.columns, dtype=torch.float64, device=self.device)
        if sums is not None:
            out[self._read_columns(raw_step)] = self._there(sums).double()
        return out

    def _read_columns(self, raw_step: int) -> Tensor:
        return self._there(self.events.read_columns(raw_step - self.events.first))

    def _there(self, array: Tensor) -> Tensor:
        return array if array.device == self.device else self._move(array)

    def _note(self, raw_step: int) -> None:
        """Count the bytes of the events of a raw step."""
        offsets = self.events.offsets
        self.count_sent(8 * int(offsets[raw_step + 1] - offsets[raw_step]))
