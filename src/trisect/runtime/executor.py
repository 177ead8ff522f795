"""`Executor`: does a rank's list of actions, one after the other, and tells when each ran."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from trisect.errors import LayoutError
from trisect.schedule.action import Action, Kind

Handler = Callable[[Action], None]


class Observer(Protocol):
    """Whoever wants to know what ran when."""

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        """`name` is the action's text, `start` seconds since the epoch of the system's clock."""


class Executor:
    """Calls a handler for each action. The one engine of every layout.

    Args:
        handlers: what to do for an action of each kind. Handlers hold the tensors; the executor never sees one.
        observer: told of every action.
    """

    def __init__(self, handlers: Mapping[Kind, Handler], observer: Observer | None = None) -> None:
        self._handlers = dict(handlers)
        self._observer = observer

    def run(self, actions: Sequence[Action], **fields: Any) -> None:
        """Do the actions in order. `fields` are added to each event (the epoch, say)."""
        for action in actions:
            handler = self._handlers.get(action.kind)
            if handler is None:
                raise LayoutError(f"nothing here can do {action} (a {action.kind.name.lower()} action)")
            start, begin = time.time(), time.perf_counter()
            handler(action)
            if self._observer is not None:
                self._observer.event(str(action), start, time.perf_counter() - begin, **fields)
