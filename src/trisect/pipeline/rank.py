"""`Rank`: what one rank keeps from pass to pass, and the loop of a pass over its cells."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from trisect.comm.transport import Transport
from trisect.layout.history import History
from trisect.layout.steps import Batch
from trisect.nn.base import State
from trisect.noise import Noise
from trisect.pipeline.cell import Cell
from trisect.pipeline.events import Events, Observer
from trisect.pipeline.packed import SMALLEST, PackedActivations
from trisect.pipeline.resumption import Resumption
from trisect.pipeline.sight import Chunk, Sight
from trisect.pipeline.stage import Stage, Values
from trisect.schedule.action import Pass, Verb
from trisect.shards.shard import Shard
from trisect.views.batches import Batches
from trisect.views.boundary import Boundary
from trisect.views.door import Door
from trisect.views.history import Boards
from trisect.views.history_rows import HistoryRows
from trisect.views.plan import Plan
from trisect.views.recur import Recurrences
from trisect.views.running import Running
from trisect.views.staleness import DriftMeter
from trisect.views.view import View

# loss(frames [steps, rows, channels] or a tensor a step, own rows, first step)
Loss = Callable[[Sequence[Tensor] | Tensor, slice | Tensor, int], Tensor]
# readers(step, noise)[reader][owner]: positions among the owner part's rows that the reader part's loss wants
Readers = Callable[[int, Noise | None], Sequence[Sequence[Tensor]]]


class Rank:
    """One rank: its layers, its views, what it keeps between passes.

    Args:
        plan: of training; a pass may bring its own (other blocks, no chunks).
        layers: of the rank's stage, by number; a head is the one after the model's last layer.
        loss: of own rows; asked in the last stage alone.
        readers: which rows of other parts the loss reads; None: none.
        extra: further parameters of the last stage (the task's decoder), reduced with the others.
        history: how chunks read history, where they do.
        drift: measures how far history was from the fresh rows.
        batches: of chunks, where each is a step; they read `history` or nothing of rows outside.
    """

    def __init__(
        self,
        plan: Plan,
        transport: Transport,
        shard: Shard,
        layers: Mapping[int, nn.Module],
        loss: Loss,
        *,
        readers: Readers | None = None,
        extra: Sequence[Parameter] = (),
        history: History | None = None,
        drift: DriftMeter | None = None,
        batches: Callable[[Door, Boards | None], Batches] | None = None,
    ) -> None:
        self.plan, self.transport, self.mesh, self.shard = plan, transport, transport.mesh, shard
        self.layers, self.loss, self.readers = layers, loss, readers
        index = self.mesh.stage_index
        self.is_first, self.is_last = index == 0, index == self.mesh.layout.layer - 1
        self.door = Door(transport, plan.dtype, layers)
        self.boards = self._make_boards(history, None if batches is not None else drift, steps=batches is not None)
        self.batches = None if batches is None else batches(self.door, self.boards)
        self.along: Recurrences | None = None
        if any(layer.state is not None for layer in plan.layers):
            self.along = Recurrences(self.door, self._choice)
        self.packed = self._make_packed()
        # one that several layers share is summed up once
        held = nn.ModuleList(layers.values()).parameters()
        self.parameters = [p for p in held if p.requires_grad] + (list(extra) if self.is_last else [])

    def _make_boards(self, history: History | None, drift: DriftMeter | None, *, steps: bool) -> Boards | None:
        plan = self.plan
        # a board for each sum over neighbours, in the order in which layers ask
        numbers = plan.numbers(self.mesh.stage_index)
        widths = [call.width for number in numbers for call in plan.reads(number)]
        totals = [call.width for number in numbers for call in plan.calls(number) if call.verb == "sum"]
        if plan.timeline or not plan.stale or not (widths or totals):
            return None
        graph, apart = self.shard.part_graph(0), history is not None and history.apart and not steps
        rows = HistoryRows(
            widths,
            graph.adjacency.columns,
            plan.dtype,
            self.mesh.device,
            apart=apart,
            drift=drift,
            own_rows=self.shard.rows,
        )
        chunks, device = len(graph.chunk_rows) - 1, self.mesh.device
        sums = HistoryRows(totals, chunks, torch.float64, device, apart=apart, name="sums")
        interior = self.shard.interior() if plan.parts > 1 else None
        return Boards(
            graph,
            rows,
            sums,
            self.door,
            interior=interior,
            column_ids=self.shard.column_ids(0),
            scale=1.0 if history is None else history.scale,
        )

    def _make_packed(self) -> PackedActivations | None:
        plan = self.plan
        pack = plan.layout.pack
        pipelined = plan.stale and not plan.timeline and self.batches is None
        if pack is not True and not (pack == "auto" and pipelined):
            return None
        widest = max(max(layer.in_channels, layer.out_channels, layer.message_channels) for layer in plan.layers)
        smallest = SMALLEST if pack == "auto" else 0
        return PackedActivations(widest * plan.dtype.itemsize, smallest=smallest)

    def _choice(self, call: Hashable) -> str:
        """Return how the state of a layer crosses runs."""
        if not isinstance(call, tuple):
            raise RuntimeError(f"internal error: {call!r} does not name a layer")
        return self.plan.layers[call[0]].along

    def stage_of(self, plan: Plan) -> Stage:
        """Return the layers that a pass goes through."""
        index, head = self.mesh.stage_index, len(plan.layers)
        leaves = () if self.is_last else plan.shared_across(plan.bounds[index + 1])
        draws_none = head if head in plan.numbers(index) else None
        return Stage(self.layers, plan.groups(index), leaves, plan.last_recurrent(index), draws_none)

    def resume(self, resumption: Resumption, plan: Plan) -> None:
        """Let the pass that was begun start with states, and keep those that are asked for."""
        if self.along is not None:
            self.along.resume(resumption.states, resumption.first, resumption.keep)

    def kept_states(self) -> dict[int, State]:
        """Return the states that the pass was asked to keep, by layer."""
        return {} if self.along is None else self.along.kept_states()

    def begin(
        self,
        noise: Noise | None,
        *,
        pass_: Pass = Pass.TRAIN,
        plan: Plan | None = None,
        chunked: bool = False,
        keep: float | None = None,
        order: Sequence[int] | None = None,
        batch: Batch | None = None,
    ) -> Run:
        """Begin a pass.

        Args:
            plan: of the pass, where they differ from those of training.
            chunked: whether rows go through chunk by chunk and read history; otherwise all at once, which is exact.
            keep: the pass becomes history, in which what it was before has this weight; None: it does not.
            order: of the chunks.
            batch: that the pass goes over, whose loss counts for all; its rows become history where `keep` is given.
        """
        return Run(self, self.plan if plan is None else plan, noise, pass_, chunked, keep, order, batch)


class Run:
    """One pass of one rank over its cells: `run` or `stream`, then `finish`."""

    def __init__(
        self,
        rank: Rank,
        plan: Plan,
        noise: Noise | None,
        pass_: Pass,
        chunked: bool,
        keep: float | None,
        order: Sequence[int] | None,
        batch: Batch | None,
    ) -> None:
        self.rank, self.plan, self.noise, self._pass = rank, plan, noise, pass_
        self._trains = pass_ is Pass.TRAIN
        self._losses: list[Tensor] = []
        self._events: Events | None = None
        self._chunked = chunked
        self._boarded = rank.boards is not None and batch is None and (chunked or keep is not None)
        self._weight = 1 if batch is None else batch.count
        # the rows of each cell, by its number
        self._chunks: dict[int, Chunk] = {0: None}
        if chunked:
            self._chunks = {chunk: chunk for chunk in (range(plan.layout.chunks) if order is None else order)}
        elif batch is not None and batch.chunks:
            # one cell is fewer and larger kernels; several keep the stages of a pipeline busy
            cells = [(chunk,) for chunk in batch.chunks] if plan.layout.layer > 1 else [batch.chunks]
            self._chunks = {chunks[0]: chunks for chunks in cells}
        self._stage = rank.stage_of(plan)
        if rank.batches is not None:
            rank.batches.begin(push=keep)
        self._sight = Sight(plan, rank.shard, rank.door, rank.boards, rank.along, rank.batches)
        self._running: Running | None = None
        self._batch = batch
        if self._trains and noise is not None:
            steps = plan.all_steps if batch is None or batch.block is None else plan.steps(batch.block)
            self._running = self._sight.running = Running(steps, chunked=chunked)
        door = rank.door
        door.noise, door.block = noise, 0
        door.rare = plan.stale and not plan.timeline and not chunked
        if rank.boards is not None and self._boarded:
            rank.boards.begin(chunked=chunked, keep=keep)
        if rank.along is not None:
            truncated = batch is not None and batch.block is not None
            rank.along.begin(plan.cut(rank.mesh.run_index), keeps=self._trains, truncated=truncated)
        self._boundaries()

    def _boundaries(self) -> None:
        rank, plan = self.rank, self.plan
        stage, parts = rank.mesh.stage_index, plan.parts
        self._before = self._after = self._back_before = self._back_after = None
        if not rank.is_first:
            widths, peer = plan.boundary_widths(stage), rank.mesh.rank - parts
            self._before = Boundary(rank.door, peer, widths, back=False)
            self._back_before = Boundary(rank.door, peer, widths, back=True)
        if not rank.is_last:
            widths, peer = plan.boundary_widths(stage + 1), rank.mesh.rank + parts
            self._after = Boundary(rank.door, peer, widths, back=False)
            self._back_after = Boundary(rank.door, peer, widths, back=True)
        self._names_in = ("x", *(plan.shared_across(plan.bounds[stage]) if stage else ()))
        self._names_out = ("x", *self._stage.leaves)

    # Cells

    def _numbers(self) -> list[int]:
        """Return the cells in the order in which they go forward: chunks, or blocks of steps."""
        if self._batch is not None and self._batch.block is not None:
            return [self._batch.block]
        if self.plan.timeline:
            return list(range(self.plan.blocks))
        return list(self._chunks)

    def _steps(self, number: int) -> range:
        return self.plan.runs[number][self.rank.mesh.run_index] if self.plan.timeline else range(1)

    def _cell(self, number: int) -> Cell:
        chunk, steps = self._chunk(number), self._steps(number)

        def ends(view: View, x: Tensor) -> Tensor:
            return self._loss(view, x, steps, chunk)

        return Cell(
            self._stage,
            self._sight,
            number,
            steps,
            chunk,
            self.noise,
            boarded=self._boarded,
            ends=ends if self._trains and self.rank.is_last else None,
            packed=self.rank.packed if self._trains else None,
            trains=True if self._pass is Pass.REFRESH else None,
        )

    def _chunk(self, number: int) -> Chunk:
        return None if self.plan.timeline else self._chunks[number]

    def _size(self, number: int) -> int:
        """Return how many rows, of all steps, a cell sends to the next stage."""
        return len(self._steps(number)) * self._sight.count(self._chunk(number))

    def _loss(self, view: View, x: Tensor, steps: range, chunk: Chunk) -> Tensor:
        rank = self.rank
        frames: Sequence[Tensor] | Tensor = view.frames(x)
        if not steps:
            return view.frames(x).sum()
        if self.plan.fetches and rank.readers is not None:
            frames = view.fetch(x, [rank.readers(step, self.noise) for step in steps])
        value = rank.loss(frames, self._sight.rows(chunk), steps.start)
        self._losses.append(value.detach())
        return value if self._weight == 1 else value * self._weight

    # A pass

    def go_on(self, batch: Batch) -> None:
        """Let the next `run` do another block, after the one before has stepped."""
        if self._running is not None:
            self._running.settle()
            self._running.steps = self.plan.steps(batch.block or 0)
        self._batch = batch

    def run(self, observer: Observer | None = None, **fields: Any) -> None:
        """Go forward and, in training, backward, and add gradients up over ranks."""
        for _ in self.stream(observer, **fields):
            pass

    def stream(self, observer: Observer | None = None, **fields: Any) -> Iterator[tuple[int, Tensor]]:
        """Do all cells of the pass; yield the outputs of evaluation as they are made."""
        if observer is not None:
            self._events = Events(observer, self.plan, self.rank.mesh.stage_index, self._pass, fields)
            self.rank.door.told = self._events.told
        numbers = self._numbers()
        sizes = [(number, self._size(number)) for number in numbers]
        if self._before is not None:
            self._before.expect(sizes)
        if self._trains:
            if self._back_after is not None:
                self._back_after.expect(reversed(sizes))
            self._train(numbers)
            return
        for number in numbers:
            cell = self._entered(number)
            left = self._do(Verb.FORWARD, cell, cell.plain)
            self._leave(number, left)
            if left is not None and self.rank.is_last and cell.steps:
                x = left["x"]
                yield cell.steps.start, x if x.dim() == 3 else x[None]

    def _train(self, numbers: Sequence[int]) -> None:
        rank, cells = self.rank, {}
        last = numbers[-1]
        for number in numbers:
            cell = cells[number] = self._entered(number)
            if self.plan.timeline and number != last:
                ends = rank.is_last

                def plain(cell: Cell = cell, ends: bool = ends) -> Values | None:
                    return cell.plain(ends_behind_states=ends)

                left = self._do(Verb.FORWARD, cell, plain)
            else:
                left = self._do(Verb.FORWARD, cell, cell.forward)
            self._leave(number, left)
            del left
        if rank.boards is not None and self._boarded:
            rank.boards.turn()
        for number in reversed(numbers):
            cell = cells.pop(number)
            if self.plan.timeline and number != last:
                self._do(Verb.AGAIN, cell, lambda cell=cell: cell.forward(again=True))  # type: ignore[misc]
            gradients: Values = {}
            if self._back_after is not None:
                rank.door.block = number
                gradients = self._unpacked(self._back_after.receive(number), self._names_out, cell)
            if rank.boards is not None and self._boarded:
                rank.boards.back_to(number if self._chunked else None)
            rank.door.block = number
            gradients = self._do(Verb.BACKWARD, cell, lambda cell=cell, g=gradients: cell.backward(g))  # type: ignore[misc]
            if self._back_before is not None:
                sent = [gradients.get(name) for name in self._names_in]
                self._back_before.send(number, sent, self._size(number))
        self._reduce()

    def _reduce(self) -> None:
        """Sum the gradients over the ranks that hold the same layers; one that nothing reached counts as zeros."""
        layout = self.plan.layout
        if layout.time * layout.vertex == 1:
            return
        for parameter in self.rank.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        start = time.perf_counter()
        gradients = [p.grad for p in self.rank.parameters if p.grad is not None]
        self.rank.transport.reduce_gradients([*gradients, *self._statistics()])
        if self._events is not None:
            self._events.reduced(start)

    def _statistics(self) -> Sequence[Tensor]:
        """Return what is to be summed over runs of steps, of which each has statistics of its own."""
        if self._running is None or self.plan.layout.time == 1:
            return ()
        return self._running.shares(self.plan.dtype, counts=self.rank.mesh.part_index == 0)

    def _entered(self, number: int) -> Cell:
        """Return a cell with what the stage before sent for it."""
        cell = self._cell(number)
        if self._before is not None:
            self.rank.door.block = number
            cell.enter(self._unpacked(self._before.receive(number), self._names_in, cell))
        return cell

    def _unpacked(self, tensors: Sequence[Tensor] | None, names: Sequence[str], cell: Cell) -> Values:
        if tensors is None:
            widths = self.plan.boundary_widths(self.rank.mesh.stage_index + (names is self._names_out))
            shape = (len(cell.steps) * cell.rows,)
            tensors = [
                torch.zeros(*shape, width, dtype=self.plan.dtype, device=self.rank.mesh.device) for width in widths
            ]
        if self.plan.timeline:
            tensors = [rows.view(len(cell.steps), cell.rows, rows.shape[1]) for rows in tensors]
        return dict(zip(names, tensors, strict=True))

    def _leave(self, number: int, left: Values | None) -> None:
        if self._after is not None and left is not None:
            self._after.send(number, [left[name].detach() for name in self._names_out], self._size(number))

    def finish(self) -> Tensor:
        """End the pass: all messages have left. Return this rank's part of the loss."""
        rank = self.rank
        rank.transport.flush()
        if rank.boards is not None and self._boarded:
            rank.boards.end()
        if rank.packed is not None:
            rank.packed.drop()
        if rank.along is not None:
            rank.along.end()
        rank.door.told = None
        if self._running is not None:
            self._running.settle()
        if not self._losses:
            return torch.zeros((), dtype=self.plan.dtype, device=rank.mesh.device)
        return torch.stack(self._losses).sum()

    def _span(self, verb: Verb, cell: Cell) -> tuple[int, int]:
        """Return the layers with which a cell begins and ends."""
        numbers = [number for group in self._stage.groups for number in group]
        first, last = (numbers[0], numbers[-1]) if numbers else (0, 0)
        if verb is Verb.BACKWARD:
            return last, first
        ends = verb is Verb.FORWARD and self._trains and self.rank.is_last and self._stage.last_recurrent is not None
        if ends and self.plan.timeline and cell.number != self._numbers()[-1]:
            return first, (self._stage.last_recurrent or (last, 0))[0]
        return first, last

    def _do(self, verb: Verb, cell: Cell, call: Callable[[], Any]) -> Any:
        """Compute a cell, and tell how long it took."""
        if self._events is None:
            return call()
        timeline = self.plan.timeline
        chunk, block = cell.number if self._chunked else 0, cell.number if timeline else None
        self._events.begin(verb, chunk, block, self._span(verb, cell))
        result = call()
        self._events.end()
        return result
