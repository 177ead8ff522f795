"""`Events`: what a rank did when, as actions: a cell's computing in pieces between what it posts and waits for."""

from __future__ import annotations

import time
from collections import Counter
from functools import lru_cache
from typing import Any, Protocol

from trisect.schedule.action import Action, Pass, Verb
from trisect.schedule.pieces import Pieces
from trisect.views.carry import Carry
from trisect.views.catalogue import CATALOGUE
from trisect.views.door import Crossing
from trisect.views.plan import Plan

# What crosses, by the letter that stands for it.
NAMES = {exchange.letter: exchange.name for exchange in CATALOGUE}


class Observer(Protocol):
    """An object that is told what ran when."""

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        """Take note of an action: `start` is in seconds since the epoch of the system's clock."""


class Events:
    """Tells an observer of the actions of one pass.

    Args:
        fields: are added to each event (the epoch, say).
    """

    def __init__(self, observer: Observer, plan: Plan, stage: int, pass_: Pass, fields: dict[str, Any]) -> None:
        self._observer, self._plan, self._stage, self._pass, self._fields = observer, plan, stage, pass_, fields
        # one clock for all: reading two for each of many small actions takes longer than some of them
        self._origin = time.time() - time.perf_counter()
        self._letters = {exchange.name: exchange.letter for exchange in CATALOGUE}
        # verb, chunk, block and pass of the cell that is computed
        self._cell: tuple[Verb, int, int | None, Pass] | None = None
        self._pieces = Pieces(0, 0)
        self._mark = 0.0
        # how often a cell has told of the same carry; messages that differ in their number alone follow each other
        self._told: Counter[Crossing] = Counter()

    def begin(self, verb: Verb, chunk: int, block: int | None, layers: tuple[int, int]) -> None:
        """Begin to compute a cell, with the first of its layers and up to the last, in the order of work."""
        pass_ = Pass.AGAIN if verb is Verb.AGAIN else self._pass
        self._cell, self._pieces = (verb, chunk, block, pass_), Pieces(*layers)
        self._told.clear()
        self._mark = time.perf_counter()

    def end(self) -> None:
        """End the cell."""
        if self._cell is not None:
            self._piece(self._pieces.rest(), time.perf_counter())
        self._cell = None

    def reduced(self, start: float) -> None:
        """Tell that gradients were added up."""
        self._tell(_text(Verb.REDUCE, self._stage), start, time.perf_counter() - start)

    def told(self, crossing: Crossing, start: float, seconds: float) -> None:
        """Tell of a post or a wait, and before it of what the cell computed up to it."""
        layer = crossing.call[0] if isinstance(crossing.call, tuple) else None
        if self._cell is not None:
            self._piece(self._pieces.until(layer), start)
            self._mark = start + seconds
        verb = Verb.POST if crossing.verb == "post" else Verb.WAIT
        letter, peer = self._letters[crossing.exchange], crossing.peer
        chunk, block, pass_ = self._place(crossing)
        text = _text(verb, self._stage, chunk, layer, None, block, letter, crossing.back, peer, pass_)
        self._tell(text, start, seconds)

    def _place(self, crossing: Crossing) -> tuple[int, int | None, Pass]:
        """Return the chunk, the block and the pass of a crossing."""
        pass_ = self._pass_of(crossing)
        if not self._plan.timeline:
            return crossing.block, None, pass_
        if crossing.exchange != Carry.name or not isinstance(crossing.call, tuple):
            return 0, crossing.block, pass_
        form, turn = self._plan.layers[crossing.call[0]].form, self._told[crossing]
        self._told[crossing] += 1
        chunks = 1 if form is None else Carry.chunks(self._plan, form)
        return chunks - 1 - turn if crossing.back else turn, crossing.block, pass_

    def _pass_of(self, crossing: Crossing) -> Pass:
        if crossing.back:
            return Pass.TRAIN
        if self._cell is None:
            return self._pass
        # nothing was kept of layers that go forward while their cell goes back
        verb, _, _, pass_ = self._cell
        return Pass.AGAIN if verb is Verb.BACKWARD else pass_

    def _piece(self, layers: tuple[int | None, int | None], end: float) -> None:
        """Tell what the cell computed since the mark."""
        if self._cell is not None:
            verb, chunk, block, pass_ = self._cell
            text = _text(verb, self._stage, chunk, *layers, block, pass_=pass_)
            self._tell(text, self._mark, end - self._mark)

    def _tell(self, text: str, start: float, seconds: float) -> None:
        self._observer.event(text, self._origin + start, seconds, **self._fields)


@lru_cache(maxsize=1 << 14)
def _text(
    verb: Verb,
    stage: int,
    chunk: int = 0,
    first: int | None = None,
    last: int | None = None,
    block: int | None = None,
    exchange: str | None = None,
    back: bool = False,
    peer: int | None = None,
    pass_: Pass = Pass.TRAIN,
) -> str:
    """Return the text of an action: epochs repeat them, and making one takes longer than computing a small one."""
    incoming = peer is not None and verb is Verb.WAIT
    return Action(verb, stage, chunk, first, last, block, exchange, back, peer, incoming, pass_).text
