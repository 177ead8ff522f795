"""`RankEngine`: one rank's cells, and the one loop that does its actions, whatever the layout."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from trisect.comm.transport import Transport
from trisect.engine.boards import Boards, Piece
from trisect.engine.cell import Cell, Loss, Stage
from trisect.engine.gradients import MessageGradients
from trisect.engine.history import HistoryRows
from trisect.engine.packed import PackedActivations
from trisect.engine.recurrence import Recurrence
from trisect.engine.staleness import DriftMeter
from trisect.engine.temporal import TemporalHalf
from trisect.engine.units import StageUnits, units_of
from trisect.engine.values import Value, require
from trisect.exchanges.catalogue import CATALOGUE
from trisect.exchanges.facts import Facts, equal_shares
from trisect.nn.dynamic import DynamicLayer
from trisect.nn.halves import AnyLayer, HalfKind
from trisect.noise import Noise
from trisect.partition.halo import PartGraph
from trisect.partition.reach import reach_of
from trisect.plan.segments import overlaps
from trisect.schedule.action import Action, Pass, Side, Verb
from trisect.shards.shard import Shard

Readers = Callable[[int, Noise | None], Sequence[Sequence[Tensor]]]


class Observer(Protocol):
    """Whoever wants to know what ran when."""

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        """Take note of an action: `name` is its text, `start` seconds since the epoch of the system's clock."""


@dataclass(frozen=True)
class HistoryUse:
    """How chunks of a static graph read rows of chunks that are not done yet.

    Attributes:
        scale: by how much the gradient of rows read fresh by other chunks is multiplied (technique 3; 1: not at all).
        apart: whether history is more than what the last epoch left: fixed for some (technique 2), or a mean.
    """

    scale: float = 1.0
    apart: bool = False


class RankEngine:
    """Does the actions of one rank, pass after pass. What outlives a pass is here; the rest is in `PassState`.

    Args:
        facts: of training; a pass may bring its own (other blocks, no chunks).
        layers: by number, the layers of the rank's stage; the head is the one after the model's last.
        loss: see `Stage`.
        readers: readers(step, noise)[reader][owner] are the positions among the owner part's rows that the reader part
            wants of that step's output, int64, the same on all parts. Only asked where the loss fetches rows.
        extra: further parameters of the last stage (the task's decoder), reduced with the others.
        history: None: no chunk reads history.
    """

    def __init__(
        self,
        facts: Facts,
        transport: Transport,
        shard: Shard,
        layers: Mapping[int, AnyLayer],
        loss: Loss,
        *,
        readers: Readers | None = None,
        extra: Sequence[Parameter] = (),
        history: HistoryUse | None = None,
        drift: DriftMeter | None = None,
    ) -> None:
        self.facts, self.transport, self.mesh, self.shard = facts, transport, transport.mesh, shard
        self.dtype, self.device = facts.dtype, self.mesh.device
        stage = self.mesh.stage_index
        self.is_last = stage == self.mesh.layout.layer - 1
        self.readers, self._drift = readers, drift
        own = range(facts.bounds[stage], facts.bounds[stage + 1])
        crossing = [k for k in own if facts.layers[k].across == "halo"]
        self._stale = history is not None
        if self._stale:
            crossing = [k for k in own if facts.layers[k].spatial]
        ready = {half.layer for half in facts.halves if half.aggregated}
        widths = {k: facts.layers[k].message_channels for k in crossing if k not in ready}
        self.boards: Boards | None = None
        if widths:
            self.boards = self._make_boards(widths, history or HistoryUse())
        self.recurrences = {
            number: Recurrence(layer, facts.layers[number], self.dtype, self.device)
            for number, layer in layers.items()
            if isinstance(layer, DynamicLayer)
        }
        packs = self._stale if facts.layout.pack == "auto" else facts.layout.pack
        packed = PackedActivations(self.boards.history if self.boards is not None else None) if packs else None
        self.stage = Stage(
            facts,
            layers,
            shard,
            self.boards,
            self.recurrences,
            packed,
            loss if self.is_last else None,
            self.dtype,
            self.device,
        )
        trained = [p for layer in layers.values() for p in layer.parameters() if p.requires_grad]
        self.parameters = trained + (list(extra) if self.is_last else [])
        self._units: dict[Facts, StageUnits] = {}
        self.pieces: dict[object, Piece] = {}
        self.temporal: dict[int, TemporalHalf] = {}

    def _make_boards(self, widths: dict[int, int], history: HistoryUse) -> Boards:
        facts = self.facts
        layers = [facts.layers[k] for k in widths]
        collects = all(layer.collects for layer in layers)
        static = not facts.timeline
        columns = self.shard.part_graph(0).adjacency.columns if static else 0
        rows = HistoryRows(
            list(widths.values()), columns, self.dtype, self.device, stale=self._stale, apart=history.apart
        )
        gradients = MessageGradients(
            rows,
            list(widths.values()),
            self.dtype,
            collects=collects,
            symmetric=facts.symmetric,
            halo=facts.parts > 1,
            scale=history.scale,
        )
        return Boards(widths, rows, gradients, parts=facts.parts, part=self.mesh.part_index, timeline=facts.timeline)

    def units(self, facts: Facts) -> StageUnits:
        """Give the units of the rank's stage under the facts of a pass, made once."""
        units = self._units.get(facts)
        if units is None:
            boards = () if self.boards is None else tuple(self.boards.slots)
            units = self._units[facts] = units_of(facts, self.mesh.stage_index, boards)
        return units

    def begin(
        self,
        noise: Noise | None,
        *,
        pass_: Pass = Pass.TRAIN,
        facts: Facts | None = None,
        whole: bool = True,
        keep: float | None = None,
    ) -> PassState:
        """Begin a pass.

        Args:
            facts: of the pass, where they differ from those of training.
            whole: all rows at once (exact), or chunk by chunk.
            keep: the pass becomes history, in which what it was before has this weight; None: it does not.
        """
        return PassState(self, self.facts if facts is None else facts, noise, pass_, whole=whole, keep=keep)


@dataclass(eq=False)
class _Block:
    """The block that is gone through; `again`: with all that backward needs, after it was gone through without."""

    number: int
    steps: range
    again: bool = False
    cells: dict[int, list[Cell]] = field(default_factory=dict)


class PassState:
    """All that a pass holds; dropped when it ends. It is also what exchanges see of the rank (`Port`).

    Attributes:
        losses: of the cells that were done.
        outputs: what evaluation gave and nobody has taken yet: (first step, [steps, rows, channels]).
        pending: what is on its way, by message.
        turn: counts the blocks that were entered, so that buffers of long ago need not be held.
    """

    def __init__(
        self, rank: RankEngine, facts: Facts, noise: Noise | None, pass_: Pass, *, whole: bool, keep: float | None
    ) -> None:
        self.rank, self.facts, self.pass_, self.whole = rank, facts, pass_, whole
        self.mesh, self.transport, self.boards = rank.mesh, rank.transport, rank.boards
        self.dtype, self.device, self.recurrences = rank.dtype, rank.device, rank.recurrences
        self.noise = None if noise is None else replace(noise, vertices=rank.shard.vertices)
        self.evaluates = pass_ is not Pass.TRAIN
        self.losses: list[Tensor] = []
        self.outputs: list[tuple[int, Tensor]] = []
        self.pending: dict[object, Any] = {}
        self.turn = self.sent_to_neighbours = 0
        self.on_step: Callable[[], None] = lambda: None
        self._block: _Block | None = None
        self._inputs: dict[tuple[int, int], list[Tensor]] = {}
        self._units = rank.units(facts)
        self._stage = replace(rank.stage, facts=facts)
        self._sides = (Side.BOUNDARY, Side.INTERIOR) if overlaps(facts, self.mesh.stage_index) else (None,)
        self.rare = rank._stale and whole
        for recurrence in rank.recurrences.values():
            recurrence.clear(keeps=not self.evaluates)
        for half, step in self._units.apart.items():
            temporal = rank.temporal.get(half)
            if temporal is None:
                temporal = rank.temporal[half] = TemporalHalf(
                    step, facts, rank.recurrences[step.layer], self.mesh.part_index, self.mesh.run_index
                )
            temporal.clear(facts)
        if self.boards is not None and not facts.timeline:
            history = self.boards.history
            if rank._drift is not None and not whole and not self.evaluates:
                rank._drift.before(history.history(), rank.shard.rows)
            history.begin(whole=whole, aside=keep is None and self.evaluates, keep=keep)
            self.boards.begin([rank.shard.part_graph(0)], "graph", whole=whole)

    # The loop

    def run(self, actions: Sequence[Action], observer: Observer | None = None, **fields: Any) -> None:
        """Do the actions in order. `fields` are added to each event (the epoch, say)."""
        for _ in self.stream(actions, observer, **fields):
            pass

    def stream(
        self, actions: Sequence[Action], observer: Observer | None = None, **fields: Any
    ) -> Iterator[tuple[int, Tensor]]:
        """Do the actions in order, and give the outputs as they are made."""
        for action in actions:
            start, begin = time.time(), time.perf_counter()
            self.do(action)
            if observer is not None:
                observer.event(action.text, start, time.perf_counter() - begin, **fields)
            while self.outputs:
                yield self.outputs.pop(0)

    def do(self, action: Action) -> None:
        """Do one action."""
        verb = action.verb
        if verb is Verb.FORWARD or verb is Verb.AGAIN:
            self._forward(action)
        elif verb is Verb.BACKWARD:
            self._backward(action)
        elif verb is Verb.POST:
            if action.exchange != "c":
                self._enter(action)
            CATALOGUE[action.exchange or ""].post(action, self)
        elif verb is Verb.WAIT:
            self._enter(action)
            CATALOGUE[action.exchange or ""].wait(action, self)
        elif verb is Verb.EXPECT:
            CATALOGUE[action.exchange or ""].expect(action, self)
        elif verb is Verb.REDUCE:
            self._reduce()
        else:
            self.on_step()

    def finish(self) -> Tensor:
        """End the pass: all messages have left. Give this rank's part of the loss."""
        self.transport.flush()
        if self.boards is not None:
            self.boards.end()
        if self.rank.stage.packed is not None:
            self.rank.stage.packed.drop()
        for recurrence in self.recurrences.values():
            recurrence.clear(keeps=False)
        for temporal in self.rank.temporal.values():
            temporal.clear(self.facts)
        self._block = None
        return torch.stack(self.losses).sum() if self.losses else torch.zeros((), dtype=self.dtype, device=self.device)

    # Blocks and cells

    def _enter(self, action: Action) -> _Block:
        """The block of an action; entering another one lets go of the one before."""
        number = action.block or 0
        block = self._block
        # a rank without steps in the blocks between goes through one block forward and then, at once, again
        again = action.pass_ is Pass.AGAIN and number < self.facts.blocks - 1
        if block is None or block.number != number or (again and not block.again):
            steps = self.facts.runs[number][self.mesh.run_index]
            block = self._block = _Block(number, steps, again)
            self.turn += 1
            self.transport.flush(self.turn - 3)
            if self.boards is not None and self.facts.timeline and steps:
                part_graphs = [self.rank.shard.part_graph(step) for step in steps]
                self.boards.begin(part_graphs, steps, whole=True)
            for temporal in self.rank.temporal.values():
                temporal.current = None
        return block

    def steps_of(self, action: Action) -> range:
        """Give the own steps of an action's block."""
        return self.facts.runs[action.block or 0][self.mesh.run_index]

    def _cells(self, action: Action) -> list[Cell]:
        """The cells of an action's chunk, made when they are first asked for."""
        block = self._enter(action)
        # the chunks of a temporal half are those of states, not of cells
        chunk = 0 if self.facts.timeline else action.chunk
        cells = block.cells.get(chunk)
        if cells is None:
            cells = block.cells[chunk] = [self._cell(block, piece, key) for key, piece in self._pieces(block, chunk)]
            self._fill(cells, block, chunk)
            for temporal in self.rank.temporal.values():
                temporal.current = cells[0]
        return cells

    def _cell(self, block: _Block, piece: Piece, key: int) -> Cell:
        noise = self.noise
        rows = piece.rows
        if noise is not None and rows.stop - rows.start < self.rank.shard.rows:
            noise = noise.rows(rows.start, rows.stop)
        return Cell(self._stage, piece, key, block.steps, block.number, noise, self.evaluates)

    def _pieces(self, block: _Block, chunk: int) -> Iterator[tuple[int, Piece]]:
        """The sides of a chunk that have rows, boundary first, each with the number that its states are kept under."""
        shard = self.rank.shard
        if self.boards is None:
            blocks = shard.snapshots(block.steps)
            yield 0, Piece(slice(0, shard.rows), blocks, [None] * len(block.steps))
            return
        part_graphs = self.boards.part_graphs
        part_graph = part_graphs[0] if part_graphs else None
        rows = slice(0, shard.rows) if part_graph is None else part_graph.rows_of(None if self.whole else chunk)
        split = rows.stop
        if len(self._sides) > 1 and part_graph is not None and self.boards.gradients.collects:
            interior = self.rank.shard.interior()
            if not (self.whole and len(interior) > 1):
                split = interior[chunk]
        for key, (low, high) in enumerate(((rows.start, split), (split, rows.stop))):
            if high > low:
                yield key, self._piece(block, chunk, key, low, high)

    def _piece(self, block: _Block, chunk: int, side: int, low: int, high: int) -> Piece:
        boards = require(self.boards, "the board of messages")
        static = not self.facts.timeline
        name = (None if self.whole else chunk, side, low, high)
        piece = self.rank.pieces.get(name) if static else None
        if piece is None:
            blocks, reads = [], []
            for part_graph in boards.part_graphs:
                matrix, read = self._block_of(part_graph, low, high)
                blocks.append(matrix)
                reads.append(read)
            piece = Piece(slice(low, high), blocks, reads)
            if static:
                self.rank.pieces[name] = piece
        return piece

    def _block_of(self, part_graph: PartGraph, low: int, high: int) -> tuple[Any, Tensor | None]:
        whole, boards = part_graph.adjacency, require(self.boards, "the board of messages")
        if (low, high) == (0, part_graph.rows):
            return whole, None
        if boards.gradients.collects:
            return whole.rows_between(low, high), None
        reach = reach_of(whole, low, high)
        return reach.adjacency, torch.cat([torch.arange(low, high, device=reach.others.device), reach.others])

    def _fill(self, cells: Sequence[Cell], block: _Block, chunk: int) -> None:
        """Give cells what the stage begins with: the data's features, or what the stage before sent."""
        if not block.steps:
            return
        if self.mesh.stage_index == 0:
            x = self.rank.shard.features(block.steps)
            for cell in cells:
                if x.dim() == 2 and self.facts.timeline:
                    rows = x if cell.count == x.shape[0] else x[cell.rows]
                else:
                    frames = x if x.dim() == 3 else x[None]
                    rows = _piece_of(frames, cell.rows)
                cell.values["x", -1] = Value(rows)
            return
        tensors = self._inputs.get((block.number, chunk))
        if tensors is None:
            return
        first = cells[0].rows.start if cells else 0
        for ref, rows in zip(self._units.enters, tensors, strict=True):
            frames = rows.view(len(block.steps), -1, rows.shape[1])
            for cell in cells:
                part = slice(cell.rows.start - first, cell.rows.stop - first)
                cell.values[ref] = Value(_piece_of(frames, part), trained=not self.evaluates)

    # Computing

    def _chosen(self, action: Action) -> list[Cell]:
        cells = self._cells(action)
        if action.side is None:
            return cells
        key = 0 if action.side is Side.BOUNDARY else 1
        return [cell for cell in cells if cell.chunk == key]

    def _halves(self, action: Action) -> tuple[int, int]:
        mine = self.facts.stage_halves(self.mesh.stage_index)
        first = mine.start if action.first is None else action.first
        last = mine.stop - 1 if action.last is None else action.last
        return first, last

    def _keeps(self, action: Action, unit_group: int) -> bool:
        """Say whether backward will follow from what an action computes."""
        if self.evaluates:
            return False
        if action.verb is Verb.AGAIN:
            return True
        last_block = (action.block or 0) == self.facts.blocks - 1
        return action.pass_ is Pass.TRAIN and last_block and unit_group == self._units.segments[-1].group

    def _forward(self, action: Action) -> None:
        first, last = self._halves(action)
        segment = next(s for s in self._units.segments if s.first <= first <= s.last)
        trained = self._keeps(action, segment.group)
        cells = self._chosen(action)
        if segment.temporal is not None:
            again = action.pass_ is Pass.AGAIN
            with torch.set_grad_enabled(trained):
                for cell in cells:
                    self.rank.temporal[first].current = cell
                    self.rank.temporal[first].forward(cell, action.chunk, again=again)
            return
        units = self._units.truncated(first, last)
        ends = last == self.facts.stage_halves(self.mesh.stage_index).stop - 1
        for cell in cells:
            for unit in units:
                cell.forward(unit, trained=trained)
            if ends and cell.losses:
                self.losses += cell.losses if trained else []
                cell.losses = []
        if self.boards is not None and action.side is not Side.INTERIOR:
            for unit in units:
                for step in unit.steps:
                    if step.kind is HalfKind.COMBINE and step.board:
                        self.boards.read_last(step.layer)
        if ends and self.evaluates and self.rank.is_last and action.side is not Side.BOUNDARY:
            self._take_output(action)

    def _take_output(self, action: Action) -> None:
        block = self._enter(action)
        cells = [cell for cell in self._cells(action) if cell.output is not None]
        if cells and block.steps:
            frames = [cell.output for cell in cells if cell.output is not None]
            self.outputs.append((block.steps.start, frames[0] if len(frames) == 1 else torch.cat(frames, 1)))
        for cell in cells:
            cell.output = None

    def _backward(self, action: Action) -> None:
        first, last = self._halves(action)
        segments = self._units.segments
        index = next(k for k, s in enumerate(segments) if s.first <= first <= s.last)
        cells = self._chosen(action)
        if segments[index].temporal is not None:
            for cell in cells:
                self.rank.temporal[first].backward(cell, action.chunk)
            return
        after = segments[index + 1] if index + 1 < len(segments) else None
        if after is not None and after.temporal is not None and self.facts.layers[after.temporal].along == "window":
            for cell in cells:
                self.rank.temporal[after.first].give_frames(cell)
        units = self._units.truncated(first, last)
        boards = self.boards
        if boards is not None and not self.facts.timeline:
            if boards.gradients.turn_to(action.chunk) and not self.whole:
                if self.rank._drift is not None:
                    self.rank._drift.after(boards.history.seen())
                boards.history.turn()
            if last == self.facts.stage_halves(self.mesh.stage_index).stop - 1:
                boards.history.release()
        for unit in reversed(units):
            reads = [s.layer for s in unit.steps if s.kind is HalfKind.COMBINE and s.board]
            if boards is not None and reads and action.side is not Side.INTERIOR:
                boards.gradients.scale_fresh(action.chunk, boards.slots[reads[0]])
            for cell in cells:
                cell.backward(unit)
            step = unit.steps[-1]
            if boards is not None and step.kind is HalfKind.PREPARE and step.board and action.side is not Side.BOUNDARY:
                boards.gradients.forget(boards.slots[step.layer])

    def _reduce(self) -> None:
        for parameter in self.rank.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.transport.reduce_gradients([p.grad for p in self.rank.parameters if p.grad is not None])

    # What exchanges see

    def layer_of(self, action: Action) -> int:
        """Give the layer of the half that a transfer comes before."""
        return self.facts.halves[action.first or 0].layer

    def temporal_of(self, action: Action) -> TemporalHalf:
        """Give the temporal half that a transfer along time belongs to."""
        temporal = self.rank.temporal[action.first or 0]
        if temporal.current is None or temporal.current.block != (action.block or 0):
            temporal.current = self._cells(action)[0]
        return temporal

    def key(self, action: Action) -> int:
        """Give where random rounding on the wire begins."""
        if self.noise is None:
            return 0
        return self.noise.at(layer=action.chunk, step=action.block or 0).key(action.text)

    def tag(self, action: Action) -> int:
        """Give a number that only this message has between its two ranks; 0 is for exchanges along a whole axis."""
        number = "bcw".index(action.exchange or "b") * 2 + int(action.back)
        for value, size in (
            (action.block or 0, self.facts.blocks),
            (action.first or 0, len(self.facts.halves)),
            (action.chunk, max(self.facts.layout.chunks, self.facts.carry_chunks, 1)),
        ):
            number = number * size + value
        return number + 1

    def readers(self, step: int) -> Sequence[Sequence[Tensor]]:
        """Give the rows of each part that each part's loss wants at a step."""
        if self.rank.readers is None:
            raise RuntimeError("internal error: the loss fetches rows of other parts, but nobody says which")
        return self.rank.readers(step, self.noise)

    def note_fetched(self, action: Action, lengths: Sequence[int]) -> None:
        """Note how many rows, own and fetched, the loss reads of each step."""
        self._cells(action)[0].fetched = lengths

    def crossed(self, action: Action) -> tuple[list[Tensor | None], int]:
        """Forward: the rows that cross before the action's half; back: the gradients of what its cell read."""
        crossed, cell = self._units.crossed[action.first or 0], self._cells(action)[0]
        rows: list[Tensor | None] = []
        if action.back:
            for ref in crossed.targets:
                value = cell.values.get(ref)
                rows.append(None if value is None else value.reading.gradient)
            return rows, cell.count
        for ref in crossed.sources:
            value = cell.values.get(ref)
            fixed = cell._is_fixed(ref)
            rows.append(None if value is None or fixed else value.rows)
        return rows, cell.count

    def deliver(self, action: Action, rows: Sequence[Tensor]) -> None:
        """Forward: hand the rows to the cell that reads them; back: add the gradients to those that made them."""
        crossed, cell = self._units.crossed[action.first or 0], self._cells(action)[0]
        if action.back:
            for ref, gradient in zip(crossed.sources, rows, strict=False):
                value = cell.values.get(ref)
                if value is not None and value.trained:
                    value.reading.add(gradient)
            for ref in crossed.targets:
                cell.values.pop(ref, None)
            return
        for ref, tensor in zip(crossed.targets, rows, strict=False):
            value = cell.values.setdefault(ref, Value(None))
            value.rows, value.trained = tensor, not self.evaluates
        for target in crossed.targets[len(rows) :]:
            # features that are the same in all steps are known everywhere: each rank takes its share of the rows
            cell.values[target] = Value(self._fixed_share(cell))

    def _fixed_share(self, cell: Cell) -> Tensor:
        bounds = equal_shares(self.facts.rows[self.mesh.part_index], self.facts.layout.time)
        rows = self.rank.shard.features(self.facts.steps(cell.block))[
            bounds[self.mesh.run_index] : bounds[self.mesh.run_index + 1]
        ]
        steps = len(self.facts.steps(cell.block))
        return rows.expand(steps, *rows.shape).flatten(0, 1)

    def leaving(self, action: Action) -> Tensor | None:
        """Give what goes to the next stage, or the gradients of what came from the one before, side by side."""
        cells = self._cells(action)
        steps = len(self.steps_of(action))
        refs = self._units.enters if action.back else self._units.leaves
        if not any(cell.count for cell in cells):
            return None
        stage = self.mesh.stage_index
        widths = self.facts.boundary_widths(stage if action.back else stage + 1)
        tensors = []
        for ref, width in zip(refs, widths, strict=True):
            pieces = []
            for cell in cells:
                # gradients leave last of all: the cell has no more to do with what it began with
                value = cell.values.pop(ref) if action.back else cell.values[ref]
                rows = value.reading.gradient if action.back else value.rows
                if rows is None:
                    rows = torch.zeros(steps * cell.count, width, dtype=self.dtype, device=self.device)
                pieces.append(rows)
                if not action.back:
                    value.rows = None
            tensors.append(_joined(pieces, steps))
        if action.back:
            self._inputs.pop((action.block or 0, 0 if self.facts.timeline else action.chunk), None)
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors, 1)

    def enter(self, action: Action, message: Tensor | None) -> None:
        """Take what the stage before sent, or the gradients of what went to the one after."""
        if message is None:
            return
        stage = self.mesh.stage_index
        if not action.back:
            pieces = torch.split(message, self.facts.boundary_widths(stage), 1)
            tensors = [pieces[0]] if len(pieces) == 1 else [piece.contiguous() for piece in pieces]
            chunk = 0 if self.facts.timeline else action.chunk
            if self.evaluates:
                self._inputs.clear()
            self._inputs[action.block or 0, chunk] = tensors
            return
        steps = len(self.steps_of(action))
        cells = self._cells(action)
        pieces = torch.split(message, self.facts.boundary_widths(stage + 1), 1)
        for ref, gradient in zip(self._units.leaves, pieces, strict=True):
            frames = gradient.contiguous().view(steps, -1, gradient.shape[1])
            first = cells[0].rows.start
            for cell in cells:
                part = slice(cell.rows.start - first, cell.rows.stop - first)
                cell.values[ref].reading.add(_piece_of(frames, part))


def _piece_of(frames: Tensor, rows: slice) -> Tensor:
    """Some rows of [steps, rows, channels] as [steps · rows, channels]."""
    if (rows.start, rows.stop) == (0, frames.shape[1]):
        return frames.flatten(0, 1)
    return frames[0, rows] if frames.shape[0] == 1 else frames[:, rows].flatten(0, 1)


def _joined(pieces: Sequence[Tensor], steps: int) -> Tensor:
    """The rows of consecutive pieces, [steps · rows, channels] each, as one."""
    if len(pieces) == 1:
        return pieces[0]
    if steps == 1:
        return torch.cat(list(pieces))
    return torch.cat([piece.view(steps, -1, piece.shape[1]) for piece in pieces], 1).flatten(0, 1)
