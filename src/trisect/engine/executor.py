"""`Executor`: the one loop that does a rank's actions, whatever the layout."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from trisect.engine.cell import Cell
from trisect.engine.pass_state import PassState
from trisect.engine.port import RankPort
from trisect.exchanges.catalogue import CATALOGUE, exchange_of
from trisect.schedule.action import Action, Pass, Side, Verb


class Observer(Protocol):
    """Whoever wants to know what ran when."""

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        """Take note of an action: `name` is its text, `start` seconds since the epoch of the system's clock."""


class Executor:
    """Does the actions of one pass, one after the other.

    Attributes:
        state: what the pass holds.
        on_step: is called where the optimiser steps.
    """

    def __init__(self, state: PassState) -> None:
        self.state = state
        self.on_step: Callable[[], None] = lambda: None
        self._port = RankPort(state)
        # what `post` or `expect` of an exchange gave, until it is waited for
        self._pending: dict[object, object] = {}
        self._halves = state.facts.stage_halves(state.rank.mesh.stage_index)
        self._turned = False
        for exchange in CATALOGUE:
            exchange.begin(self._port)

    def run(self, actions: Sequence[Action], observer: Observer | None = None, **fields: Any) -> None:
        """Do the actions in order. `fields` are added to each event (the epoch, say)."""
        for _ in self.stream(actions, observer, **fields):
            pass

    def stream(
        self, actions: Sequence[Action], observer: Observer | None = None, **fields: Any
    ) -> Iterator[tuple[int, Tensor]]:
        """Do the actions in order, and give the outputs as they are made."""
        outputs, clock = self.state.outputs, time.perf_counter
        # one clock for all: reading two for each of many small actions takes longer than some of them
        origin = time.time() - clock()
        for action in actions:
            begin = clock()
            self.do(action)
            if observer is not None:
                observer.event(action.text, origin + begin, clock() - begin, **fields)
            while outputs:
                yield outputs.pop(0)

    def finish(self) -> Tensor:
        """End the pass: all messages have left. Give this rank's part of the loss."""
        loss = self.state.end()
        for exchange in CATALOGUE:
            exchange.end(self._port)
        return loss

    def do(self, action: Action) -> None:
        """Do one action: run a cell, move what an exchange moves, or let the optimiser step."""
        verb = action.verb
        if verb is Verb.FORWARD or verb is Verb.AGAIN:
            self._forward(action)
        elif verb is Verb.BACKWARD:
            self._backward(action)
        elif verb is Verb.POST:
            self._post(action)
        elif verb is Verb.EXPECT:
            self._pending[action.message, action.peer] = exchange_of(action).expect(action, self._port)
        elif verb is Verb.WAIT:
            self.state.enter(action)
            posted = self._pending.pop((action.message, action.peer))
            exchange_of(action).wait(action, self._port, posted)
        elif verb is Verb.REDUCE:
            exchange_of(action).post(action, self._port)
        else:
            self.on_step()

    def _post(self, action: Action) -> None:
        exchange = exchange_of(action)
        if exchange.is_here(action):
            self.state.enter(action)
        posted = exchange.post(action, self._port)
        if action.peer is None:
            self._pending[action.message, None] = posted

    # Computing

    def _range(self, action: Action) -> tuple[int, int]:
        """Give the first and the last half that an action computes."""
        first = self._halves.start if action.first is None else action.first
        last = self._halves.stop - 1 if action.last is None else action.last
        return first, last

    def _cells(self, action: Action) -> list[Cell]:
        """Give the cells that an action computes: those of its chunk, or of one side of it."""
        cells = self.state.cells(action)
        if action.side is None:
            return cells
        number = 0 if action.side is Side.BOUNDARY else 1
        return [cell for cell in cells if cell.chunk == number]

    def _is_trained(self, action: Action, group: int) -> bool:
        """Say whether backward will follow from what an action computes."""
        state = self.state
        if state.evaluates:
            return False
        if action.verb is Verb.AGAIN:
            return True
        last_block = (action.block or 0) == state.facts.blocks - 1
        return action.pass_ is Pass.TRAIN and last_block and group == state.units.segments[-1].group

    def _forward(self, action: Action) -> None:
        state, (first, last) = self.state, self._range(action)
        span = state.units.span(first, last)
        segment = span.segment
        trained = self._is_trained(action, segment.group)
        cells = self._cells(action)
        if segment.temporal is not None:
            temporal, again = state.temporal[first], action.pass_ is Pass.AGAIN
            with torch.set_grad_enabled(trained):
                for cell in cells:
                    temporal.current = cell
                    temporal.forward(cell, action.chunk, again=again)
            return
        ends = last == self._halves.stop - 1
        for cell in cells:
            cell.forward(span.units, trained=trained)
            if ends and cell.losses:
                state.losses += cell.losses if trained else []
                cell.losses = []
        boards = state.rank.boards
        if boards is not None and action.side is not Side.INTERIOR:
            for layer in span.board_reads:
                if layer is not None:
                    boards.read_last(layer)
        if ends and state.evaluates and state.rank.is_last and action.side is not Side.BOUNDARY:
            self._take_output(action)

    def _take_output(self, action: Action) -> None:
        """Put the outputs of all cells of a block where `stream` finds them."""
        steps, frames = self.state.steps_of(action), []
        for cell in self.state.cells(action):
            if cell.output is not None:
                frames.append(cell.output)
                cell.output = None
        if frames and steps:
            self.state.outputs.append((steps.start, frames[0] if len(frames) == 1 else torch.cat(frames, 1)))

    def _backward(self, action: Action) -> None:
        state, (first, last) = self.state, self._range(action)
        if not self._turned:
            self._turned = True
            for exchange in CATALOGUE:
                exchange.turn(self._port)
        span = state.units.span(first, last)
        cells = self._cells(action)
        if span.segment.temporal is not None:
            for cell in cells:
                state.temporal[first].backward(cell, action.chunk)
            return
        if span.after is not None and span.after.temporal is not None:
            for cell in cells:
                state.temporal[span.after.first].finish_inputs(cell)
        boards = state.rank.boards
        if boards is not None:
            boards.gradients.turn_to(action.chunk)
        for unit, reads, writes in zip(
            reversed(span.units), reversed(span.board_reads), reversed(span.board_writes), strict=True
        ):
            if boards is not None and reads is not None and action.side is not Side.INTERIOR:
                boards.gradients.scale_fresh(action.chunk, boards.slots[reads])
            for cell in cells:
                cell.backward(unit)
            if boards is not None and writes is not None and action.side is not Side.BOUNDARY:
                boards.gradients.forget(boards.slots[writes])
