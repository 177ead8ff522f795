"""`Events`: what a rank did when, as actions: a cell's computing in pieces between what it posts and waits for."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Protocol

from trisect.exchanges.catalogue import LETTERS
from trisect.exchanges.facts import Facts
from trisect.nn.halves import HalfKind
from trisect.schedule.action import Action, Letter, Pass, Verb, declare
from trisect.views.door import Crossing

# What crosses, by the letter that stands for it.
NAMES = {letter: exchange.name for letter, exchange in LETTERS.items()} | {"s": "total"}
_LETTERS = {name: letter for letter, name in NAMES.items()}
# Exchanges before the half of a layer's recurrent part; others are before its combine.
_TEMPORAL = ("redistribute steps", "carry", "window", "summary")
declare("s", Letter("total", "vertex"))


class Observer(Protocol):
    """An object that is told what ran when."""

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        """Take note of an action: `start` is in seconds since the epoch of the system's clock."""


class Events:
    """Tells an observer of the actions of one pass.

    Args:
        fields: are added to each event (the epoch, say).
    """

    def __init__(self, observer: Observer, facts: Facts, stage: int, pass_: Pass, fields: dict[str, Any]) -> None:
        self._observer, self._facts, self._stage, self._pass, self._fields = observer, facts, stage, pass_, fields
        # one clock for all: reading two for each of many small actions takes longer than some of them
        self._origin = time.time() - time.perf_counter()
        self._cell: Action | None = None
        self._mark = 0.0
        self._halves = {(half.kind, half.layer): number for number, half in enumerate(facts.halves)}
        # how often a cell has told of the same; messages that differ in their number alone follow each other
        self._told: Counter[Crossing] = Counter()

    def begin(self, verb: Verb, chunk: int, block: int | None) -> None:
        """Begin to compute a cell."""
        pass_ = Pass.AGAIN if verb is Verb.AGAIN else self._pass
        self._cell = Action(verb, self._stage, chunk, block=block, pass_=pass_)
        self._told.clear()
        self._mark = time.perf_counter()

    def end(self) -> None:
        """End the cell."""
        if self._cell is not None:
            self._tell(self._cell, self._mark, time.perf_counter() - self._mark)
        self._cell = None

    def reduced(self, start: float) -> None:
        """Tell that gradients were added up."""
        self._tell(Action(Verb.REDUCE, self._stage), start, time.perf_counter() - start)

    def told(self, crossing: Crossing, start: float, seconds: float) -> None:
        """Tell of a post or a wait, and before it of what the cell computed up to it."""
        if self._cell is not None:
            self._tell(self._cell, self._mark, start - self._mark)
            self._mark = start + seconds
        verb = Verb.POST if crossing.verb == "post" else Verb.WAIT
        incoming = crossing.peer is not None and verb is Verb.WAIT
        turn = self._told[crossing]
        self._told[crossing] += 1
        chunk, block, pass_ = self._place(crossing, turn)
        action = Action(
            verb,
            self._stage,
            chunk,
            self._half(crossing, turn),
            block=block,
            exchange=_LETTERS[crossing.exchange],
            back=crossing.back,
            peer=crossing.peer,
            incoming=incoming,
            pass_=pass_,
        )
        self._tell(action, start, seconds)

    def _place(self, crossing: Crossing, turn: int) -> tuple[int, int | None, Pass]:
        """Return the chunk, the block and the pass of the `turn`-th such crossing of a cell."""
        pass_ = self._pass_of(crossing)
        if not self._facts.timeline:
            return crossing.block, None, pass_
        if crossing.exchange != "carry" or not isinstance(crossing.call, tuple):
            return 0, crossing.block, pass_
        chunks = LETTERS["c"].half_chunks(self._facts, crossing.call[0])
        return chunks - 1 - turn if crossing.back else turn, crossing.block, pass_

    def _pass_of(self, crossing: Crossing) -> Pass:
        if crossing.back:
            return Pass.TRAIN
        if self._cell is None:
            return self._pass
        # nothing was kept of layers that go forward while their cell goes back
        return Pass.AGAIN if self._cell.verb is Verb.BACKWARD else self._cell.pass_

    def _half(self, crossing: Crossing, turn: int) -> int | None:
        """Return the number of the half that reads what crosses the `turn`-th time in a cell."""
        if not isinstance(crossing.call, tuple):
            return None
        layer, exchange = crossing.call[0], crossing.exchange
        if exchange == "fetch":
            return len(self._facts.halves) - 1
        kind = HalfKind.TEMPORAL if exchange in _TEMPORAL else HalfKind.COMBINE
        half = self._halves.get((kind, layer), self._halves.get((HalfKind.LOCAL, layer), 0))
        # rows are dealt out before a half and come back before the one behind it; gradients the other way
        second = turn % 2 != crossing.back
        if exchange == "redistribute rows":
            return half if second else self._halves.get((HalfKind.AGGREGATE, layer), half)
        return half + 1 if exchange == "redistribute steps" and second else half

    def _tell(self, action: Action, start: float, seconds: float) -> None:
        self._observer.event(action.text, self._origin + start, seconds, **self._fields)
