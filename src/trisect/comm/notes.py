"""Words that ranks leave for each other beside their exchanges, from any thread, without waiting."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from trisect.comm.world import Store


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
        with _saying_lost():
            self._store.set(f"notes/{name}", json.dumps(value))

    def find(self, name: str) -> Any | None:
        """Read a value from the store, or give None at once."""
        # a read of what is not there would wait for it, and keep other threads from the store
        key = f"notes/{name}"
        with _saying_lost():
            return json.loads(self._store.get(key)) if self._store.check([key]) else None


@contextmanager
def _saying_lost() -> Iterator[None]:
    """Turn the errors of a store that is gone into one that says so in the words of a lost connection."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).splitlines()[0]
        raise RuntimeError(f"Connection closed: the store of the ranks is gone ({said})") from error
