"""`RankPort`: what exchanges see of a rank in a pass; it implements `trisect.exchanges.port.Port`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trisect.engine.boards import Boards
from trisect.engine.frames import FrameHalf
from trisect.engine.pass_state import PassState, cut_rows
from trisect.engine.values import Value, require, require_kind
from trisect.exchanges.catalogue import CATALOGUE, sets_apart
from trisect.exchanges.history import History
from trisect.schedule.action import Action


class RankPort:
    """One rank in one pass, as exchanges see it."""

    def __init__(self, state: PassState) -> None:
        rank = state.rank
        self._state = state
        self.facts, self.mesh, self.transport = state.facts, rank.mesh, rank.transport
        self.dtype, self.device, self.states = rank.dtype, rank.device, rank.recurrences
        # an exact epoch is rare where most of them go chunk by chunk
        self.rare = History.fits(rank.facts) and not state.chunked
        self.chunked, self.keep, self.parameters = state.chunked, state.keep, rank.parameters
        self.history = None if rank.boards is None or state.facts.timeline else rank.boards.history
        self.sent_to_neighbours = 0
        paired = (exchange.letter for exchange in CATALOGUE if exchange.paired)
        self._numbers = {letter: number for number, letter in enumerate(paired)}

    @property
    def turn(self) -> int:
        """Counts the blocks that were entered."""
        return self._state.turn

    @property
    def boards(self) -> Boards:
        """The boards of the stage; an error where no rows are read across cells."""
        return require(self._state.rank.boards, "the board of messages")

    def steps_of(self, action: Action) -> range:
        """Give the own steps of an action's block."""
        return self._state.steps_of(action)

    def window_of(self, action: Action) -> FrameHalf:
        """Give the temporal half that a transfer of frames belongs to."""
        temporal = require_kind(self._state.temporal[action.half], FrameHalf)
        if temporal.current is None or temporal.current.block != (action.block or 0):
            temporal.current = self._state.cells(action)[0]
        return temporal

    def key(self, action: Action) -> int:
        """Give where random rounding on the wire begins."""
        noise = self._state.noise
        if self.facts.layout.wire != "int8":
            return 0  # nothing is rounded at random
        return 0 if noise is None else noise.at(layer=action.chunk, step=action.block or 0).key(action.text)

    def tag(self, action: Action) -> int:
        """Give a number that only this message has between its two ranks; 0 is for exchanges along a whole axis."""
        number = self._numbers[action.exchange or ""] * 2 + int(action.back)
        for value, size in (
            (action.block or 0, self.facts.blocks),
            (action.first or 0, len(self.facts.halves)),
            (action.chunk, max(self.facts.layout.chunks, self.facts.carry_chunks, 1)),
        ):
            number = number * size + value
        return number + 1

    def readers(self, step: int) -> Sequence[Sequence[Tensor]]:
        """Give the rows of each part that each part's loss reads at a step."""
        readers = self._state.rank.readers
        if readers is None:
            raise RuntimeError("internal error: the loss fetches rows of other parts, but nobody says which")
        return readers(step, self._state.noise)

    # Between two cells of the stage

    def note_fetched(self, action: Action, lengths: Sequence[int]) -> None:
        """Note how many rows, own and fetched, the loss reads of each step."""
        self._state.cells(action)[0].fetched = lengths

    def crossed(self, action: Action) -> list[Tensor | None]:
        """Give the rows that cross before the action's half; back, the gradients of what its cell read."""
        crossed, cell = self._state.units.crossed[action.half], self._state.cells(action)[0]
        rows: list[Tensor | None] = []
        for ref in crossed.targets if action.back else crossed.sources:
            value = cell.values.get(ref)
            if value is None or (not action.back and cell._is_fixed(ref)):
                rows.append(None)
            else:
                rows.append(value.reading.gradient if action.back else value.rows)
        return rows

    def deliver(self, action: Action, rows: Sequence[Tensor]) -> None:
        """Hand the rows to the cell that reads them; back, add the gradients to those that made them."""
        crossed, cell = self._state.units.crossed[action.half], self._state.cells(action)[0]
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
            value.rows, value.trained = tensor, not self._state.evaluates
        for target in crossed.targets[len(rows) :]:
            # features that are the same in all steps are on every rank, which takes those of its rows
            cell.values[target] = Value(self._fixed_rows(action))
        for ref in crossed.frees:
            if ref in cell.values:
                cell.values[ref].rows = None

    def _fixed_rows(self, action: Action) -> Tensor:
        """Give the features of the steps and rows that this rank does of a half: [steps · rows, features]."""
        exchange, run = require(sets_apart(self.facts, action.half), "the exchange of a half"), self.mesh.run_index
        steps = exchange.half_steps(self.facts, action.block or 0, run)
        rows = self._state.rank.shard.features(steps)[exchange.half_rows(self.facts, self.mesh.part_index, run)]
        return rows.expand(len(steps), *rows.shape).flatten(0, 1)

    # Between two stages

    def leaving(self, action: Action) -> Tensor | None:
        """Give what goes to the next stage, or the gradients of what came from the one before, side by side."""
        state, stage = self._state, self.mesh.stage_index
        cells, steps = state.cells(action), len(state.steps_of(action))
        if not any(cell.count for cell in cells):
            return None
        refs = state.units.enters if action.back else state.units.leaves
        widths = self.facts.boundary_widths(stage if action.back else stage + 1)
        tensors = []
        for ref, width in zip(refs, widths, strict=True):
            parts = []
            for cell in cells:
                # gradients leave last of all: the cell has no more to do with what it began with
                value = cell.values.pop(ref) if action.back else cell.values[ref]
                rows = value.reading.gradient if action.back else value.rows
                if rows is None:
                    rows = torch.zeros(steps * cell.count, width, dtype=self.dtype, device=self.device)
                parts.append(rows)
                if not action.back and ref not in state.units.kept:
                    value.rows = None
            tensors.append(_joined(parts, steps))
        if action.back:
            state.inputs.pop((action.block or 0, state.chunk_of(action)), None)
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors, 1)

    def enter(self, action: Action, message: Tensor | None) -> None:
        """Take what the stage before sent, or the gradients of what went to the one after."""
        if message is None:
            return
        state, stage = self._state, self.mesh.stage_index
        tensors = torch.split(message, self.facts.boundary_widths(stage + 1 if action.back else stage), 1)
        if not action.back:
            if state.evaluates:
                state.inputs.clear()
            # a message of one tensor is used as it is; `contiguous` copies the columns of several
            state.inputs[action.block or 0, state.chunk_of(action)] = [rows.contiguous() for rows in tensors]
            return
        cells, steps = state.cells(action), len(state.steps_of(action))
        for ref, gradient in zip(state.units.leaves, tensors, strict=True):
            for cell, rows in cut_rows(gradient.contiguous(), cells, steps):
                cell.values[ref].reading.add(rows)


def _joined(parts: Sequence[Tensor], steps: int) -> Tensor:
    """Give the rows of consecutive cells, [steps · rows, channels] each, as one tensor."""
    if len(parts) == 1:
        return parts[0]
    if steps == 1:
        return torch.cat(list(parts))
    return torch.cat([rows.view(steps, -1, rows.shape[1]) for rows in parts], 1).flatten(0, 1)
