"""`PassState`: all that one pass of a rank holds, made when the pass begins and dropped when it ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trisect.engine.boards import CellRows
from trisect.engine.cell import Cell
from trisect.engine.values import Value
from trisect.exchanges.facts import Facts
from trisect.noise import Noise
from trisect.plan.segments import overlaps
from trisect.schedule.action import Action, Pass

if TYPE_CHECKING:
    from trisect.engine.rank import RankEngine


@dataclass(eq=False)
class Block:
    """The block that the pass goes through.

    Attributes:
        steps: the own steps.
        again: whether it is gone through with all that backward needs, after it was gone through without.
        cells: by chunk.
    """

    number: int
    steps: range
    again: bool = False
    cells: dict[int, list[Cell]] = field(default_factory=dict)


class PassState:
    """One pass of one rank: its block, its cells, and what comes in from the stage before.

    Attributes:
        chunked: whether rows go through chunk by chunk.
        keep: the weight of earlier epochs where the pass becomes history; None: it does not.
        losses: of the cells that were done.
        outputs: what evaluation gave and nobody has taken yet: (first step, [steps, rows, channels]).
        inputs: by (block, chunk), what the stage before sent.
        turn: counts the blocks that were entered.
    """

    def __init__(
        self,
        rank: RankEngine,
        facts: Facts,
        noise: Noise | None,
        pass_: Pass,
        *,
        chunked: bool,
        keep: float | None,
    ) -> None:
        self.rank, self.facts, self.chunked, self.keep = rank, facts, chunked, keep
        self.evaluates = pass_ is not Pass.TRAIN
        self.noise = None if noise is None else replace(noise, vertices=rank.shard.vertices)
        self.units = rank.units(facts)
        self.temporal = rank.temporal_halves(facts)
        self.losses: list[Tensor] = []
        self.outputs: list[tuple[int, Tensor]] = []
        self.inputs: dict[tuple[int, int], list[Tensor]] = {}
        self.turn = 0
        self._stage = replace(rank.stage, facts=facts)
        self._in_sides = overlaps(facts, rank.mesh.stage_index)
        self._block: Block | None = None
        for recurrence in rank.recurrences.values():
            recurrence.clear(keeps=not self.evaluates)

    def end(self) -> Tensor:
        """End the pass: all messages have left. Give this rank's part of the loss."""
        rank = self.rank
        rank.transport.flush()
        if rank.boards is not None:
            rank.boards.end()
        if rank.stage.packed is not None:
            rank.stage.packed.drop()
        for recurrence in rank.recurrences.values():
            recurrence.clear(keeps=False)
        for temporal in self.temporal.values():
            temporal.clear(self.facts)
        self._block = None
        return torch.stack(self.losses).sum() if self.losses else torch.zeros((), dtype=rank.dtype, device=rank.device)

    def steps_of(self, action: Action) -> range:
        """Give the own steps of an action's block."""
        return self.facts.runs[action.block or 0][self.rank.mesh.run_index]

    def chunk_of(self, action: Action) -> int:
        """Give the chunk of an action's cells; the chunks of a temporal half are those of states, not of cells."""
        return 0 if self.facts.timeline else action.chunk

    def enter(self, action: Action) -> Block:
        """Give the block of an action; entering another one lets go of the one before."""
        number, block = action.block or 0, self._block
        # a rank without steps in the blocks between goes through one block forward and then, at once, again
        again = action.pass_ is Pass.AGAIN and number < self.facts.blocks - 1
        if block is not None and block.number == number and (block.again or not again):
            return block
        rank = self.rank
        block = self._block = Block(number, self.steps_of(action), again)
        self.turn += 1
        rank.transport.flush(self.turn - 3)
        if rank.boards is not None and block.steps:
            graphs = [rank.shard.part_graph(step) for step in block.steps]
            rank.boards.begin(graphs, block.steps, at_once=not self.chunked)
        for temporal in self.temporal.values():
            temporal.current = None
        return block

    def cells(self, action: Action) -> list[Cell]:
        """Give the cells of an action's block and chunk, made when they are first asked for."""
        block, chunk = self.enter(action), self.chunk_of(action)
        cells = block.cells.get(chunk)
        if cells is None:
            cut = self.rank.cutter.cut(block.steps, chunk if self.chunked else None, in_sides=self._in_sides)
            cells = block.cells[chunk] = [self._cell(block, rows, number) for number, rows in cut]
            if block.steps:
                self._give_inputs(cells, block, chunk)
            for temporal in self.temporal.values():
                temporal.current = cells[0]
        return cells

    def _cell(self, block: Block, cell_rows: CellRows, number: int) -> Cell:
        noise, rows = self.noise, cell_rows.rows
        if noise is not None and rows.stop - rows.start < self.rank.shard.rows:
            noise = noise.rows(rows.start, rows.stop)
        return Cell(self._stage, cell_rows, number, block.steps, block.number, noise, self.evaluates)

    def _give_inputs(self, cells: list[Cell], block: Block, chunk: int) -> None:
        """Give cells what the stage begins with: the data's features, or what the stage before sent."""
        if self.rank.mesh.stage_index == 0:
            x = self.rank.shard.features(block.steps)
            if x.dim() == 2 and not self.facts.timeline:
                x = x[None]
            for cell in cells:
                # features that are the same in all steps, [rows, features], stay so
                fixed = x.dim() == 2
                rows = (x if cell.count == x.shape[0] else x[cell.rows]) if fixed else rows_of_steps(x, cell.rows)
                cell.values["x", -1] = Value(rows)
            return
        for ref, rows in zip(self.units.enters, self.inputs.get((block.number, chunk), ()), strict=False):
            for cell, own in cut_rows(rows, cells, len(block.steps)):
                cell.values[ref] = Value(own, trained=not self.evaluates)


def cut_rows(rows: Tensor, cells: list[Cell], steps: int) -> list[tuple[Cell, Tensor]]:
    """Cut [steps · rows, channels] of consecutive cells into those of each."""
    frames = rows.view(steps, -1, rows.shape[1])
    first = cells[0].rows.start if cells else 0
    return [(cell, rows_of_steps(frames, slice(cell.rows.start - first, cell.rows.stop - first))) for cell in cells]


def rows_of_steps(frames: Tensor, rows: slice) -> Tensor:
    """Give some rows of [steps, rows, channels] as [steps · rows, channels]."""
    if (rows.start, rows.stop) == (0, frames.shape[1]):
        return frames.flatten(0, 1)
    return frames[0, rows] if frames.shape[0] == 1 else frames[:, rows].flatten(0, 1)
