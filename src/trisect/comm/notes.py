"""Words that ranks leave for each other beside their exchanges, from any thread, without waiting."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from trisect.comm.world import Store
from trisect.settings.writing import to_json

_LONGEST_POLL = 20  # times the first
T = TypeVar("T")


class Notes(Protocol):
    """Named plain values that every rank may leave and look for."""

    def leave(self, name: str, value: Any) -> None:
        """Let the others find a value, as JSON has it, under a name that is used once."""

    def find(self, name: str) -> Any | None:
        """Give the value of a name, or None where nobody has left it yet."""


class OwnNotes:
    """The notes of a process that stands alone."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def leave(self, name: str, value: Any) -> None:
        """Keep a value."""
        self._values[name] = value

    def find(self, name: str) -> Any | None:
        """Give a value that was kept, or None."""
        return self._values.get(name)


class StoreNotes:
    """Notes in the store where the ranks met."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def leave(self, name: str, value: Any) -> None:
        """Write a value to the store."""
        with saying_lost():
            self._store.set(f"notes/{name}", to_json(value))

    def find(self, name: str) -> Any | None:
        """Read a value from the store, or give None at once."""
        # a read of what is not there would wait for it, and keep other threads from the store
        key = f"notes/{name}"
        with saying_lost():
            return json.loads(self._store.get(key)) if self._store.check([key]) else None


@contextmanager
def saying_lost() -> Iterator[None]:
    """Turn the errors of a store that is gone into one that says so in the words of a lost connection."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).splitlines()[0]
        raise RuntimeError(f"Connection closed: the store of the ranks is gone ({said})") from error


def wait_for(
    look: Callable[[], T | None], goes_on: Callable[[], bool], timeout: float, missing: str, poll: float
) -> T | None:
    """Look again and again until there is something; give None where `goes_on` says that it is not wanted any more.

    Args:
        timeout: seconds.
        missing: what is wrong when they are over, as the begin of a sentence.
        poll: seconds between the first two looks; later ones are rarer.

    Raises:
        RuntimeError: they are over, in the words of a lost rank.
    """
    deadline, longest = time.monotonic() + timeout, _LONGEST_POLL * poll
    while True:
        value = look()
        if value is not None:
            return value
        if not goes_on():
            return None
        if time.monotonic() > deadline:
            raise RuntimeError(f"Timed out: {missing} within {timeout:g} s")
        time.sleep(poll)
        poll = min(longest, 2 * poll)
