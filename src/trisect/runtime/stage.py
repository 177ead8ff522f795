"""One rank's work on a static graph: a stage of layers over a part of the vertices, chunk by chunk.

Between two spatial layers lies a *segment*: what follows reading neighbours in one, up to what the neighbours of the
next one read. Gradients stop at segment ends and are handed on by hand, since what a row sends to its readers is used
by several chunks: its gradient is complete only when the last of them is done. (Backward runs in exactly the reverse
order, so it is complete when it is needed.)

Rows of chunks that are not done yet in this epoch hold *history*, values of an earlier epoch, which are constants.

A chunk is worked on in up to two pieces: its boundary rows, which take part in the exchange with other ways, and its
interior rows. Nothing is copied for a piece: it reads the buffer of all columns through a view of the adjacency's rows,
and adds the gradients of what it read to one tensor of all columns. Layers that do more with their message than sum it
up (`Layer.collects` is false) get the rows that a chunk reads as a tensor of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from trisect.nn.base import Context, Layer
from trisect.noise import Noise
from trisect.ops.collect import collect
from trisect.ops.sums import extend
from trisect.partition.halo import Share
from trisect.partition.reach import reach_of
from trisect.runtime.gradients import MessageGradients
from trisect.runtime.messages import Messages
from trisect.runtime.pulled import Pulled
from trisect.runtime.staleness import DriftMeter
from trisect.runtime.visit import (
    Piece,
    Reading,
    Visit,
    joined_gradients,
    place_in_graph,
    read_rows,
    same_rows,
    segments_of,
)
from trisect.runtime.waiting import Waiting
from trisect.schedule.action import Side

Loss = Callable[[Tensor, slice], Tensor]


class Stage:
    """The forward and backward of one stage over one part, by chunk, side and segment.

    Args:
        layers: the stage's layers, `first` the number of its first layer in the model.
        share: the part (one part: the whole graph), its columns own rows and then halo.
        vertices: the user's ids of the columns (of the own rows alone where no layer draws numbers for pairs).
        scale: by how much the gradient of rows read fresh by other chunks is multiplied (technique 3; 1: not at all).
        stale: whether epochs over chunks, which read history, come at all (on a part of several chunks).
        apart: whether history is more than what the last epoch left: fixed for some (technique 2), or a mean.
        dtype: of the rows.
        aggregated: [rows, in_channels], Â·x of the first layer where it is known.
        drift: told what an epoch over chunks read as history, and what came in its place.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        first: int,
        share: Share,
        vertices: Tensor,
        *,
        scale: float = 1.0,
        stale: bool = True,
        apart: bool = False,
        dtype: torch.dtype = torch.float32,
        aggregated: Tensor | None = None,
        drift: DriftMeter | None = None,
    ) -> None:
        self.layers, self.first, self.share, self.vertices = list(layers), first, share, vertices
        self.dtype, self.aggregated, self._drift = dtype, aggregated, drift
        self.segments = segments_of(self.layers, known=aggregated is not None)
        self.rows, self.columns = share.adjacency.rows, share.adjacency.columns
        # history is read where a part has several chunks
        self._chunked = len(share.chunk_rows) > 2
        self.stale = stale and self._chunked
        widths = [self._width(segment) for segment in range(len(self.segments) - 1)]
        device = share.adjacency.device
        self.messages = Messages(widths, self.columns, dtype, device, stale=self.stale, apart=apart)
        self._saved = Waiting(self.messages)
        self.visits: dict[int, dict[Side, Visit]] = {}
        self.noise: Noise | None = None
        self.whole = True
        self._beyond: dict[int, Tensor] = {}
        self.collects = all(layer.collects for layer in self.layers if layer.spatial)
        self.gradients = MessageGradients(share, self.messages, widths, dtype, collects=self.collects, scale=scale)
        self._token = torch.zeros((), requires_grad=True)
        self._pieces: dict[tuple[int, Side], Piece] = {}
        self._interior = share.interior() if self.collects else share.chunk_rows[1:]

    def begin(self, noise: Noise | None, *, whole: bool, aside: bool = False, keep: float | None = 0.0) -> None:
        """Begin a pass over all rows at once (`whole`, exact) or chunk by chunk.

        Args:
            aside: leave the history as it is (evaluation).
            keep: the pass becomes history, in which what it was before has this weight; None: it does not.
        """
        self.noise, self.whole = noise, whole
        self.visits.clear()
        self._saved.drop()
        self.gradients.begin(whole=whole)
        if self._drift is not None and not whole and not aside:
            self._drift.before(self.messages.history(), self.rows)
        self.messages.begin(whole=whole, aside=aside, keep=keep)

    def end(self) -> None:
        """The pass is over: nothing is held but history, and the visits of chunks whose output is still asked for."""
        self._saved.drop()
        self.gradients.end()
        self.messages.end()

    def rows_of(self, chunk: int) -> slice:
        """The own rows of a chunk; all rows where the epoch is whole."""
        return self.share.rows_of(None if self.whole else chunk)

    def enter(self, chunk: int, x: Tensor, shared: dict[str, Tensor], *, trained: bool) -> None:
        """A chunk arrives with its input rows and the shared inputs that later layers read."""
        low = self.rows_of(chunk).start
        visits = self.visits[chunk] = {}
        for side, piece in self._pieces_of(chunk):
            part = slice(piece.rows.start - low, piece.rows.stop - low)
            rows, reading = x[part].detach(), Reading()
            values = {name: value[part].detach() for name, value in shared.items()}
            gradients = {name: Reading() for name in shared}
            if trained:
                rows = read_rows(self._token, rows, reading)
                values = {name: read_rows(self._token, value, gradients[name]) for name, value in values.items()}
            visits[side] = Visit(piece, rows, values, reading, tuple(shared), gradients)

    def forward(self, chunk: int, segment: int, side: Side | None = None) -> None:
        """Run a segment of a chunk, or of one side of it. Its message rows are then in the buffer of the segment."""
        packs = self.stale and torch.is_grad_enabled()
        for visit in self._visits(chunk, side):
            with self._saved.hooks(visit.rows.stop - visit.rows.start) if packs else nullcontext():
                self._forward(visit, segment)
        if side is not Side.INTERIOR:
            self._beyond.pop(segment - 1, None)
        self._saved.forget()

    def _forward(self, visit: Visit, segment: int) -> None:
        part = self.segments[segment]
        block = visit.piece.block
        x, visit.x = visit.x, None
        if x is None:
            raise RuntimeError(f"segment {segment} has no input")
        if part.combine is not None:
            message, own = self._read(visit, segment - 1)
            x = self.layers[part.combine].combine(message, x, block, self._context(part.combine, visit, own=own))
            del message, own
            x = self._write(part.combine, x, visit)
        for number in part.local:
            layer, context = self.layers[number], self._context(number, visit)
            if number == 0 and self.aggregated is not None:
                x = layer.combine_aggregated(self.aggregated[visit.rows], x, context)
            else:
                x = layer(x, block, context)
            x = self._write(number, x, visit)
        trained = torch.is_grad_enabled()
        if trained:
            visit.roots[segment] = place_in_graph(x)
        if part.prepare is None:
            visit.output = x
        else:
            self._prepare(visit, segment, part.prepare, x)

    def _prepare(self, visit: Visit, segment: int, number: int, x: Tensor) -> None:
        """What a segment ends with: its message rows come to where their readers find them."""
        trained = torch.is_grad_enabled()
        leaf = x.detach()
        if trained and x.requires_grad:
            visit.leaves[segment] = Reading()
            leaf = read_rows(self._token, leaf, visit.leaves[segment])
        buffer = self.message_rows(segment)
        low, high = visit.rows.start, visit.rows.stop
        target = None if self.messages.blends else same_rows(buffer, low, high)
        message = self.layers[number].prepare(leaf, self._context(number, visit, into=target))
        if target is None or message.data_ptr() != target.data_ptr():
            self.messages.write(segment, low, high, message.detach())
        visit.x = leaf
        if trained and message is not leaf and message.requires_grad:
            # the place in the graph alone: the rows are in the buffer, which is soon free
            visit.messages[segment] = get_gradient_edge(message)

    def backward(
        self,
        chunk: int,
        segment: int,
        side: Side | None = None,
        *,
        gradient: Tensor | None = None,
        loss: Loss | None = None,
    ) -> list[Tensor]:
        """Back through a segment of a chunk, or of one side of it.

        For the last segment alone, `gradient` is that of the chunk's rows of the stage's output; or `loss` is to be
        taken of its rows, and the values are returned.
        """
        part = self.segments[segment]
        if self.gradients.turn_to(chunk) and not self.whole:
            if self._drift is not None:
                self._drift.after(self.messages.seen())
            self.messages.turn()
        if part.combine is not None and side is not Side.INTERIOR:
            self.gradients.scale_fresh(chunk, segment - 1)
        if part.prepare is None:
            self.messages.release()
        losses = []
        for visit in self._visits(chunk, side):
            root, above = visit.roots.pop(segment), None
            if part.prepare is not None:
                above = self._message_gradient(segment, visit)
            elif loss is not None and visit.output is not None:
                value = loss(visit.output, visit.rows)
                losses.append(value.detach())
                root, above = place_in_graph(value), torch.ones_like(value)
            elif gradient is not None:
                low = self.rows_of(chunk).start
                above = gradient[visit.rows.start - low : visit.rows.stop - low]
            if part.prepare is None:
                visit.output = None
            self._backward(visit, segment, root, above)
        self._saved.forget()
        if part.prepare is not None and side is not Side.BOUNDARY:
            self.gradients.forget(segment)
        return losses

    def _backward(self, visit: Visit, segment: int, root: GradientEdge | None, above: Tensor | None) -> None:
        part = self.segments[segment]
        roots = [] if root is None or above is None else [(root, above)]
        for number in ((part.combine,) if part.combine is not None else ()) + part.local:
            if number in visit.written:
                output, reading = visit.written.pop(number)
                if reading.gradient is not None and output is not None:
                    roots.append((output, reading.gradient))
        if roots:
            torch.autograd.backward([r for r, _ in roots], [g for _, g in roots])
        if part.combine is not None:
            self.gradients.collect(segment - 1, visit.piece, visit.readings.pop(segment - 1))

    def leave(self, chunk: int) -> tuple[Tensor | None, dict[str, Tensor | None]]:
        """The gradients of what the chunk entered with; the chunk is forgotten."""
        visits = list(self.visits.pop(chunk).values())
        counts = [visit.rows.stop - visit.rows.start for visit in visits]
        names = visits[0].shared_inputs if visits else ()
        of_shared = {
            name: joined_gradients(
                [(rows, visit.shared_gradients[name].gradient) for rows, visit in zip(counts, visits, strict=True)]
            )
            for name in names
        }
        inputs = [(rows, visit.inputs.gradient) for rows, visit in zip(counts, visits, strict=True)]
        return joined_gradients(inputs), of_shared

    def output(self, chunk: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The rows of the stage's output, and all shared inputs known by then."""
        visits = list(self.visits[chunk].values())
        outputs = [visit.output for visit in visits if visit.output is not None]
        if len(visits) == 1:
            return outputs[0], visits[0].shared
        if not visits:
            return torch.zeros(0, self.layers[-1].out_channels, dtype=self.dtype), {}
        shared = {name: torch.cat([visit.shared[name] for visit in visits]) for name in visits[0].shared}
        return torch.cat(outputs), shared

    def release(self, chunk: int) -> None:
        """The rows of the stage's output are needed no more; backward finds their place in the graph."""
        for visit in self.visits[chunk].values():
            visit.output = None
        self.release_shared(chunk)

    def release_shared(self, chunk: int, side: Side | None = None) -> None:
        """A chunk, or one side of it, has gone forward: the shared inputs' rows are needed no more."""
        for visit in self._visits(chunk, side):
            visit.shared.clear()

    def add_shared_gradient(self, chunk: int, name: str, gradient: Tensor) -> None:
        """The gradient of a shared input's rows that a later stage has found."""
        low = self.rows_of(chunk).start
        for visit in self._visits(chunk, None):
            visit.shared_gradients[name].add(gradient[visit.rows.start - low : visit.rows.stop - low])

    def message_rows(self, segment: int) -> Tensor:
        """The buffer of a segment, [columns, channels]: what its next spatial layer reads."""
        return self.messages.rows(segment)

    def gradient_rows(self, segment: int) -> Tensor:
        """The gradients of the buffer's rows as far as they are known, [columns, channels]."""
        return self.gradients.of(segment).rows()

    def extend(self, segment: int, rows: Tensor, *, backward: bool) -> None:
        """The halo's rows of a segment, or their gradients, are here, and may lie elsewhere than in their place."""
        collector = self.gradients.of(segment) if backward else None
        place = self.message_rows(segment) if collector is None else collector.rows()
        if rows.data_ptr() == place[self.rows :].data_ptr():
            return
        if collector is None:
            self._beyond[segment] = rows
        elif isinstance(collector, Pulled):
            collector.beyond = rows

    def _width(self, segment: int) -> int:
        number = self.segments[segment].prepare
        if number is None:
            raise RuntimeError(f"segment {segment} sends no message")
        return self.layers[number].message_channels

    def _visits(self, chunk: int, side: Side | None) -> list[Visit]:
        visits = self.visits[chunk]
        return [visit for at, visit in visits.items() if side is None or at is side]

    def _pieces_of(self, chunk: int) -> Iterator[tuple[Side, Piece]]:
        """The sides of a chunk that have rows, boundary first."""
        rows = self.rows_of(chunk)
        # without chunks a whole pass is that of chunk 0; with them it has no interior, which would be many intervals
        split = rows.stop if self.whole and self._chunked else self._interior[chunk]
        for side, low, high in ((Side.BOUNDARY, rows.start, split), (Side.INTERIOR, split, rows.stop)):
            if high > low:
                yield side, self._piece(-1 if self.whole else chunk, side, low, high)

    def _piece(self, chunk: int, side: Side, low: int, high: int) -> Piece:
        piece = self._pieces.get((chunk, side))
        if piece is None:
            whole = self.share.adjacency
            if (low, high) == (0, self.rows):
                piece = Piece(slice(low, high), whole)
            elif self.collects:
                piece = Piece(slice(low, high), whole.rows_between(low, high))
            else:
                reach = reach_of(whole, low, high)
                reads = torch.cat([torch.arange(low, high, device=reach.others.device), reach.others])
                piece = Piece(slice(low, high), reach.adjacency, reads)
            self._pieces[chunk, side] = piece
        return piece

    def _context(
        self, number: int, visit: Visit, *, own: Callable[[], Tensor] | None = None, into: Tensor | None = None
    ) -> Context:
        if self.noise is None:
            return Context(None, visit.shared, None, own, into)
        at = self.noise.at(layer=self.first + number)
        noise = Noise(at.seed, at.epoch, at.layer, at.step, self.vertices[visit.rows])
        columns = None
        if self.vertices.numel() == self.columns:
            reads = visit.piece.reads
            columns = Noise(
                at.seed, at.epoch, at.layer, at.step, self.vertices if reads is None else self.vertices[reads]
            )
        return Context(noise, visit.shared, columns, own, into)

    def _write(self, number: int, x: Tensor, visit: Visit) -> Tensor:
        name = self.layers[number].writes
        if name is not None:
            visit.shared[name] = x.detach()
            if torch.is_grad_enabled():
                reading = visit.shared_gradients[name] = Reading()
                visit.shared[name] = read_rows(self._token, x.detach(), reading)
                visit.written[number] = (place_in_graph(x), reading)
        return x

    def _read(self, visit: Visit, segment: int) -> tuple[Tensor, Callable[[], Tensor] | None]:
        """The message rows that a piece reads: fresh where done in this epoch, history elsewhere. And its own rows,
        where the gradient of the others goes to a collector.
        """
        buffer, piece = self.message_rows(segment), visit.piece
        rows = buffer if piece.reads is None else buffer.index_select(0, piece.reads)
        beyond = self._beyond.get(segment)
        if not torch.is_grad_enabled():
            return rows if beyond is None else extend(rows.detach(), beyond), None
        reading = visit.readings[segment] = Reading()
        message = read_rows(self._token, rows, reading)
        if beyond is not None:
            extend(message, beyond)
        if not self.gradients.adds(piece):
            return message, None

        def own() -> Tensor:
            if reading.own is None:
                reading.own = same_rows(buffer, piece.rows.start, piece.rows.stop).requires_grad_()
            return reading.own

        return collect(message, self.gradients.of(segment)), own

    def _message_gradient(self, segment: int, visit: Visit) -> Tensor | None:
        """Through `prepare`: from the gradient of the message rows and of the rows' own use to that of the output."""
        leaf, edge = visit.leaves.pop(segment, None), visit.messages.pop(segment, None)
        total = self.gradients.of_rows(segment, visit.rows)
        if edge is not None:
            torch.autograd.backward(edge, total)
        elif leaf is not None:
            leaf.add(total)
        return None if leaf is None else leaf.gradient
