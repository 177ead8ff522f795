"""Files that one rank hands to another through the store where they met, for hosts that share no file system.

A file goes as numbered messages: its size, its pieces, its SHA-256. Whoever takes a message removes it, and only then a
later one is put there, so that the store never holds more than a few pieces of a file.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import IO

from trisect.comm.notes import saying_lost, wait_for
from trisect.comm.world import Store
from trisect.errors import FaultError

PIECE = 1 << 22  # bytes
_AHEAD = 2  # messages that may lie in the store
_POLL = 0.001  # seconds
_NOTHING = uuid.uuid4().hex  # what no message is


def _always() -> bool:
    return True


class Files:
    """Hands files from rank to rank; every thread may, each under names of its own.

    Args:
        timeout: seconds that one side waits for the other before each piece.
    """

    def __init__(self, store: Store, timeout: float) -> None:
        self._store, self._timeout = store, timeout

    def give(self, name: str, file: IO[bytes], goes_on: Callable[[], bool] = _always) -> bool:
        """Hand over what a file has from its position to its end; returns when all of it was taken.

        Args:
            name: used once; whoever takes the file says the same.
            goes_on: asked before each piece, and now and then while nobody takes one.

        Returns: False where `goes_on` said no; the other side has then not the whole file.
        """
        number, taken = 0, False
        try:
            for message in _messages(file):
                if not self._until_taken(name, number - _AHEAD, goes_on):
                    return False
                with saying_lost():
                    self._store.set(_key(name, number), message)  # type: ignore[arg-type]
                number += 1
            taken = self._until_taken(name, number - 1, goes_on)
            return taken
        finally:
            if not taken:
                with suppress(RuntimeError):
                    for left in range(max(0, number - _AHEAD), number):
                        self._store.delete_key(_key(name, left))

    def take(self, name: str, file: IO[bytes], goes_on: Callable[[], bool] = _always) -> tuple[int, str] | None:
        """Write a file that another rank gives under this name to `file`.

        Returns: its size and SHA-256, which are those that the other side read; None where `goes_on` said no.

        Raises:
            FaultError: what arrived is not what was given.
        """
        messages = self._taken(name, goes_on)
        head = next(messages, None)
        if head is None:
            return None
        if not head.isdigit():
            raise _damaged(name, "its size is missing")
        size = left = int(head)
        digest = hashlib.sha256()
        while left > 0:
            piece = next(messages, None)
            if piece is None:
                return None
            if not 0 < len(piece) <= left:
                raise _damaged(name, f"a piece has {len(piece)} bytes, and {left} were missing")
            digest.update(piece)
            file.write(piece)
            left -= len(piece)
        end = next(messages, None)
        if end is None:
            return None
        if end != digest.hexdigest().encode():
            raise _damaged(name, "its SHA-256 is another one")
        file.flush()
        return size, digest.hexdigest()

    def _taken(self, name: str, goes_on: Callable[[], bool]) -> Iterator[bytes]:
        """Take one message after the other out of the store, as long as `goes_on` says so."""
        for number in itertools.count():
            missing = f"nobody handed over {name} (piece {number})"
            look = partial(self._look, _key(name, number))
            message = wait_for(look, goes_on, self._timeout, missing, _POLL) if goes_on() else None
            if message is None:
                return
            with saying_lost():
                self._store.delete_key(_key(name, number))
            yield message

    def _until_taken(self, name: str, number: int, goes_on: Callable[[], bool]) -> bool:
        """Wait until a message, and with it those before, was taken; False where `goes_on` said no."""
        if number < 0 or not goes_on():
            return number < 0
        missing = f"nobody took {name} (piece {number})"
        return wait_for(partial(self._is_gone, _key(name, number)), goes_on, self._timeout, missing, _POLL) is not None

    def _look(self, key: str) -> bytes | None:
        # `get` would wait for a message that was removed a moment ago, and keep other threads from the store
        with saying_lost():
            value: bytes = self._store.compare_set(key, _NOTHING, _NOTHING)
        return None if value == _NOTHING.encode() else value

    def _is_gone(self, key: str) -> bool | None:
        with saying_lost():
            return None if self._store.check([key]) else True


def _key(name: str, number: int) -> str:
    return f"files/{name}/{number}"


def _messages(file: IO[bytes]) -> Iterator[bytes]:
    left = os.fstat(file.fileno()).st_size - file.tell()
    yield str(left).encode()
    digest = hashlib.sha256()
    while left > 0:
        piece = file.read(min(left, PIECE))
        if not piece:
            raise FaultError(f"{file.name} became shorter while it was handed over; go on with --resume.")
        digest.update(piece)
        left -= len(piece)
        yield piece
    yield digest.hexdigest().encode()


def _damaged(name: str, flaw: str) -> FaultError:
    return FaultError(f"The file {name} was damaged on its way between hosts ({flaw}); go on with --resume.")
