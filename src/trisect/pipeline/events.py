"""`Events`: what a rank did when, as actions: a cell's computing in pieces between what it posts and waits for."""

from __future__ import annotations

import time
from typing import Any, Protocol

from trisect.exchanges.facts import Facts
from trisect.nn.halves import HalfKind
from trisect.schedule.action import EXCHANGES, Action, Letter, Pass, Verb, declare
from trisect.views.door import Crossing

_LETTERS = {
    "boundary": "b",
    "halo": "h",
    "redistribute rows": "r",
    "redistribute steps": "t",
    "carry": "c",
    "window": "w",
    "summary": "m",
    "fetch": "f",
    "total": "s",
}
if "s" not in EXCHANGES:
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

    def begin(self, verb: Verb, chunk: int, block: int | None) -> None:
        """Begin to compute a cell."""
        pass_ = Pass.AGAIN if verb is Verb.AGAIN else self._pass
        self._cell = Action(verb, self._stage, chunk, block=block, pass_=pass_)
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
        chunk, block, pass_ = self._place(crossing)
        action = Action(
            verb,
            self._stage,
            chunk,
            self._half(crossing),
            block=block,
            exchange=_LETTERS[crossing.exchange],
            back=crossing.back,
            peer=crossing.peer,
            incoming=incoming,
            pass_=pass_,
        )
        self._tell(action, start, seconds)

    def _place(self, crossing: Crossing) -> tuple[int, int | None, Pass]:
        cell = self._cell
        pass_ = Pass.TRAIN if crossing.back else self._pass if cell is None else cell.pass_
        if self._facts.timeline:
            return 0, crossing.block, pass_
        return crossing.block, None, pass_

    def _half(self, crossing: Crossing) -> int | None:
        """Return the number of the half that reads what crosses."""
        if not isinstance(crossing.call, tuple):
            return None
        layer = crossing.call[0]
        if crossing.exchange == "fetch":
            return len(self._facts.halves) - 1
        temporal = crossing.exchange in ("redistribute steps", "carry", "window", "summary")
        kind = HalfKind.TEMPORAL if temporal else HalfKind.COMBINE
        return self._halves.get((kind, layer), self._halves.get((HalfKind.LOCAL, layer), 0))

    def _tell(self, action: Action, start: float, seconds: float) -> None:
        self._observer.event(action.text, self._origin + start, seconds, **self._fields)
