"""Messages from one rank of a host to another, in a ring of shared memory that one writes and the other reads.

A ring is made of *lines* of 64 bytes. A record is a line of header, then the bytes of a small message; or the header
alone, with a *token* of five integers that says where a large message lies. Two words count the lines ever written and
ever read. The writer never waits: where the ring is full it goes on in a larger one, and the last record of the old one
names the new.

A record may carry the number of an exchange (`trisect.comm.calls`), which the reader compares with its own.

A reader asks for messages by tag, and messages of one tag come in the order in which they were sent.
`RingReader.expect` is called in that order, `take` in any; what arrives before it is asked for is put aside.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import torch
from torch import Tensor

from trisect.comm.calls import OtherCallError
from trisect.comm.local.peer import Peer
from trisect.comm.local.shared import SharedFile
from trisect.comm.local.words import WRAP, words

FIRST = 8192  # bytes of the ring that every ordered pair of ranks has from the start
SEGMENT_HEADER = 128  # the word of the writer and that of the reader, in a cache line each
_READ = 64
_LINE = 64
_SECOND = 1 << 18
LARGEST = 1 << 20  # a ring with messages of its own does not grow further; one with tokens may
_HEADER = struct.Struct("8q")  # kind and, above its bits, the number of the exchange; tag, bytes, five integers
_INLINE, _TOKEN, _SKIP, _MOVED = range(1, 5)
_KIND = 3  # bits

Token = tuple[int, int, int, int, int]
_NO_TOKEN: Token = (0, 0, 0, 0, 0)


class RingWriter:
    """The end of a ring into which this process writes.

    Args:
        file, offset, size: where the first ring lies.
    """

    def __init__(self, file: SharedFile, offset: int, size: int = FIRST) -> None:
        self._words = words()
        self._moved: list[SharedFile] = []
        self._enter(file, offset, size)

    def _enter(self, file: SharedFile, offset: int, size: int) -> None:
        self._file, self._base = file, file.address + offset
        self._lines = (size - SEGMENT_HEADER) // _LINE
        self._at = self._written = 0
        self._free = self._lines  # at least so many lines are free

    def put(self, tag: int, source: int, size: int, call: int = 0) -> bool:
        """Send `size` bytes from an address; False where the ring would have to grow too large for that.

        Args:
            call: number of the exchange.
        """
        lines = 1 + -(-size // _LINE)
        if not self._make_room(lines):
            return False
        self._write(_HEADER.pack(_INLINE | call << _KIND, tag, size, *_NO_TOKEN), source, size, lines)
        return True

    def put_rows(self, tag: int, matrix: Tensor, which: Tensor, call: int = 0) -> bool:
        """Send some rows of a matrix whose rows are contiguous, gathered straight into the ring; else as `put`."""
        rows, width, item = which.numel(), matrix.shape[1], matrix.element_size()
        row = width * item
        lines = 1 + -(-rows * row // _LINE)
        if not self._make_room(lines):
            return False
        record = self._base + SEGMENT_HEADER + self._at * _LINE
        self._advance(lines)
        header = _HEADER.pack(_INLINE | call << _KIND, tag, rows * row, *_NO_TOKEN)
        source = (matrix.data_ptr(), matrix.stride(0) * item, row)
        self._words.put_rows(record, header, source, which.data_ptr(), rows, self._base, self._written)
        return True

    def put_token(self, tag: int, size: int, token: Token, call: int = 0) -> None:
        """Send word of a message of `size` bytes that lies elsewhere."""
        if not self._have(1):
            self._grow(1, None)
        self._write(_HEADER.pack(_TOKEN | call << _KIND, tag, size, *token), 0, 0, 1)

    def close(self) -> None:
        """Close the descriptors of rings that were added."""
        for file in self._moved:
            file.close()
        self._moved.clear()

    def _make_room(self, lines: int) -> bool:
        """See that the next record may have so many lines, all together; False where there is no room for that."""
        left = self._lines - self._at
        if not self._have(lines if lines <= left else left + lines):
            if not self._grow(lines, LARGEST):
                return False
            left = self._lines
        if lines > left:
            _HEADER.pack_into(self._file.view, self._offset(), _SKIP, 0, 0, *_NO_TOKEN)
            self._advance(left)
        return True

    def _have(self, lines: int) -> bool:
        # one line is always left for the word about the next ring
        if lines < self._free:
            return True
        read = self._words.load(self._base + _READ)
        self._free = self._lines - (self._written - read) % WRAP
        return lines < self._free

    def _grow(self, lines: int, limit: int | None) -> bool:
        size = max(_SECOND, 2 * self._lines * _LINE, 4 * lines * _LINE)
        if limit is not None and size > limit:
            return False
        try:
            file = SharedFile.create("trisect-ring", size)
        except OSError:
            if limit is None:
                raise
            return False
        count = (size - SEGMENT_HEADER) // _LINE
        self._write(_HEADER.pack(_MOVED, 0, size, file.descriptor, count, 0, 0, 0), 0, 0, 1)
        # a reader that has begun to read a ring has opened it
        for old in [old for old in self._moved if self._words.load(old.address + _READ)]:
            old.close()
            self._moved.remove(old)
        self._moved.append(file)
        self._enter(file, 0, size)
        return True

    def _write(self, header: bytes, source: int, size: int, lines: int) -> None:
        record = self._base + SEGMENT_HEADER + self._at * _LINE
        self._advance(lines)
        self._words.put(record, header, source, size, self._base, self._written)

    def _advance(self, lines: int) -> None:
        self._at += lines
        if self._at == self._lines:
            self._at = 0
        self._written = (self._written + lines) % WRAP
        self._free -= lines

    def _offset(self) -> int:
        return self._base - self._file.address + SEGMENT_HEADER + self._at * _LINE


class RingReader:
    """The end of a ring from which this process reads.

    Args:
        peer: who writes.
        file, offset, size: where the first ring lies.
    """

    def __init__(self, peer: Peer, file: SharedFile, offset: int, size: int = FIRST) -> None:
        self.peer = peer
        self._words = words()
        self._expected: dict[int, int] = {}
        self._arrived: dict[int, int] = {}
        self._early: dict[tuple[int, int], tuple[int, bytes | tuple[int, Token]]] = {}
        self._enter(file, offset, (size - SEGMENT_HEADER) // _LINE)

    def _enter(self, file: SharedFile, offset: int, lines: int) -> None:
        self._file, self._start, self._lines = file, offset + SEGMENT_HEADER, lines
        self._base = file.address + offset
        self._at = self._read = self._written = 0

    def expect(self, tag: int) -> int:
        """Give the number of the next message with this tag that nobody has asked for yet."""
        number = self._expected.get(tag, 0)
        self._expected[tag] = number + 1
        return number

    def take(
        self, tag: int, number: int, size: int, buffer: Callable[[], Tensor], call: int | None = None
    ) -> Tensor | Token:
        """Wait for a message: `buffer()` with its bytes, or the token of one that lies elsewhere.

        Args:
            call: number of the exchange that it must be of; None: any.

        Raises:
            RuntimeError: the peer is lost, or the message has another size than `size`.
            OtherCallError: the message is of another exchange.
        """
        kept = self._early.pop((tag, number), None) if self._early else None
        if kept is not None:
            sent, early = kept
            if call is not None and sent != call:
                raise OtherCallError(self.peer.rank, sent)
            if isinstance(early, tuple):
                _require(size, early[0])
                return early[1]
            _require(size, len(early))
            out = buffer()
            ctypes.memmove(out.data_ptr(), early, size)
            return out
        while True:
            if self._written == self._read:
                self._written = self.peer.wait(self._base, self._written)
            offset = self._start + self._at * _LINE
            sent, own, length, *rest = _HEADER.unpack_from(self._file.view, offset)
            kind, sent = sent & ((1 << _KIND) - 1), sent >> _KIND
            if kind == _SKIP:
                self._advance(self._lines - self._at)
                continue
            if kind == _MOVED:
                self._enter(SharedFile.of_process(self.peer.process, rest[0]), 0, rest[1])
                continue
            arrived = self._arrived.get(own, 0)
            self._arrived[own] = arrived + 1
            start, lines = offset + _LINE, 1 + (-(-length // _LINE) if kind == _INLINE else 0)
            token: Token = (rest[0], rest[1], rest[2], rest[3], rest[4])
            if own != tag or arrived != number:
                inline = kind == _INLINE
                early = bytes(self._file.view[start : start + length]) if inline else (length, token)
                self._early[own, arrived] = (sent, early)
                self._advance(lines)
            elif call is not None and sent != call:
                self._advance(lines)
                raise OtherCallError(self.peer.rank, sent)
            elif kind == _INLINE and length == size:
                out = buffer()
                ctypes.memmove(out.data_ptr(), self._file.address + start, length)
                self._advance(lines)
                return out
            else:
                self._advance(lines)
                _require(size, length)
                return token

    def token(self, tag: int) -> Token:
        """Wait for the next token with this tag, of no message."""
        token = self.take(tag, self.expect(tag), 0, _no_buffer)
        if isinstance(token, Tensor):
            raise RuntimeError(f"rank {self.peer.rank} sent a message with tag {tag} where a token is due")
        return token

    def _advance(self, lines: int) -> None:
        self._at += lines
        if self._at == self._lines:
            self._at = 0
        self._read = (self._read + lines) % WRAP
        self._words.publish(self._base + _READ, self._read)


def _require(size: int, length: int) -> None:
    if length != size:
        raise RuntimeError(f"a message of {length} bytes was announced where {size} are due")


def _no_buffer() -> Tensor:
    return torch.empty(0, dtype=torch.uint8)


def as_bytes(data: bytes) -> Tensor:
    """Give a vector of bytes, to be sent."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
