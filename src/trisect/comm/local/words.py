"""Words in memory that processes of one host share: one process publishes a count, the others wait until it changes.

A word is an unsigned integer of four bytes, followed by four bytes that count who sleeps on it. All values count up and
wrap around at 2³². The native library has the operations; where it is missing, Python does the same, more slowly.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from typing import Protocol

from trisect.native.library import INT, INT64, POINTER, UINT32, Kernel, available

WRAP = 1 << 32

Matrix = tuple[int, int, int]

_LOAD = Kernel("trisect_load", POINTER, returns=UINT32)
_PUBLISH = Kernel("trisect_publish", POINTER, UINT32)
_AWAIT = Kernel("trisect_await", POINTER, UINT32, INT64, INT, INT64, returns=UINT32)
_PUT = Kernel("trisect_put", POINTER, POINTER, POINTER, INT64, POINTER, UINT32)
_PUT_ROWS = Kernel("trisect_put_rows", POINTER, POINTER, POINTER, INT64, POINTER, INT64, INT64, POINTER, UINT32)


class Words(Protocol):
    """The operations on words, which are named by their addresses."""

    def load(self, word: int) -> int:
        """Read a word; what its writer wrote before it is visible afterwards."""

    def publish(self, word: int, value: int) -> None:
        """Write a word after all that this thread wrote before, and wake whoever sleeps on it."""

    def wait(self, word: int, old: int, spin: int, seconds: float) -> int:
        """Wait until a word is not `old`: what it is then, or `old` if the seconds have passed.

        Args:
            spin: nanoseconds to look for without sleeping; 0 where there are more ranks than cores.
        """

    def put(self, record: int, header: bytes, source: int, size: int, word: int, value: int) -> None:
        """Write a record, a header of 64 bytes and `size` bytes from `source`, and publish it."""

    def put_rows(
        self, record: int, header: bytes, matrix: Matrix, which: int, rows: int, word: int, value: int
    ) -> None:
        """Write a record of some rows of a matrix, and publish it.

        Args:
            matrix: the address of its row 0, the bytes from one row to the next, and those of a row.
            which, rows: the address of the numbers of the rows, int64, and how many there are.
        """


class NativeWords:
    """By the native library, which releases the interpreter's lock meanwhile."""

    def load(self, word: int) -> int:
        """Do as `Words.load` says."""
        return int(_LOAD(word))

    def publish(self, word: int, value: int) -> None:
        """Do as `Words.publish` says."""
        _PUBLISH(word, value)

    def wait(self, word: int, old: int, spin: int, seconds: float) -> int:
        """Do as `Words.wait` says."""
        return int(_AWAIT(word, old, spin, 4, int(seconds * 1e9)))

    def put(self, record: int, header: bytes, source: int, size: int, word: int, value: int) -> None:
        """Do as `Words.put` says."""
        _PUT(record, header, source, size, word, value)

    def put_rows(
        self, record: int, header: bytes, matrix: Matrix, which: int, rows: int, word: int, value: int
    ) -> None:
        """Do as `Words.put_rows` says."""
        source, stride, size = matrix
        _PUT_ROWS(record, header, source, stride, which, rows, size, word, value)


class PlainWords:
    """By Python alone. Nobody is woken: who waits looks again after sleeps that double, up to two milliseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def load(self, word: int) -> int:
        """Do as `Words.load` says."""
        value = ctypes.c_uint32.from_address(word).value
        self._fence()
        return value

    def publish(self, word: int, value: int) -> None:
        """Do as `Words.publish` says."""
        self._fence()
        ctypes.c_uint32.from_address(word).value = value

    def wait(self, word: int, old: int, spin: int, seconds: float) -> int:
        """Do as `Words.wait` says."""
        end = time.monotonic() + seconds
        shared = ctypes.c_uint32.from_address(word)
        for _ in range(20 if spin else 4):
            if shared.value != old:
                break
            os.sched_yield()
        nap = 2e-5
        while shared.value == old and (left := end - time.monotonic()) > 0.0:
            time.sleep(min(nap, left))
            nap = min(2 * nap, 2e-3)
        return self.load(word)

    def put(self, record: int, header: bytes, source: int, size: int, word: int, value: int) -> None:
        """Do as `Words.put` says."""
        ctypes.memmove(record, header, len(header))
        if size:
            ctypes.memmove(record + len(header), source, size)
        self.publish(word, value)

    def put_rows(
        self, record: int, header: bytes, matrix: Matrix, which: int, rows: int, word: int, value: int
    ) -> None:
        """Do as `Words.put_rows` says."""
        source, stride, size = matrix
        ctypes.memmove(record, header, len(header))
        for turn, row in enumerate((ctypes.c_int64 * rows).from_address(which)):
            ctypes.memmove(record + len(header) + turn * size, source + row * stride, size)
        self.publish(word, value)

    def _fence(self) -> None:
        # to let a lock go and then take it orders all that was read and written before against all that comes after
        with self._lock:
            pass
        with self._lock:
            pass


@functools.cache
def words() -> Words:
    """Give the fastest operations that this process has."""
    return NativeWords() if available() and _PUT_ROWS.exists() else PlainWords()
