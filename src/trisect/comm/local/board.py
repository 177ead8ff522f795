"""`Board`: sums over ranks of one host, each of which writes its vector where all others read it.

Everybody adds in the order of ranks, so that all have the same bits, which are those of any other sum in that order.
There are two buffers, used in turn. A rank publishes a round when it has read all of the round before; so when all have
published a round, nobody reads the buffer of the round before it, which may be written or replaced.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from trisect.comm.local.hub import BUFFER, Hub, buffer_offset
from trisect.comm.local.shared import SharedFile
from trisect.comm.local.words import WRAP, words

LARGEST = 1 << 26  # bytes; what is larger takes the network, where each rank adds a share
_STRIDE = 256  # bytes of a board in the first page of a rank's file: its word, and an entry for each buffer
_ENTRY = struct.Struct("3q")  # number of the buffer, its descriptor, bytes of the vector
_IN_HUB, _NO_ROOM = -1, -2  # in place of a descriptor

_Buffer = tuple[SharedFile, int]  # and where in the file


class Board:
    """The sums of some ranks of this host.

    Args:
        number: which of the boards that a hub has room for; ranks that add up together have the same.
        members: the ranks, this one among them.
    """

    def __init__(self, hub: Hub, number: int, members: Sequence[int]) -> None:
        self._hub, self._members = hub, sorted(members)
        self._number, self._at = number, number * _STRIDE
        self._round = 0
        self._own: list[SharedFile | None] = [None, None]
        self._numbers = [0, 0]
        self._others: dict[tuple[int, int], tuple[int, SharedFile]] = {}

    def total(self, parts: Sequence[Tensor]) -> Tensor | None:
        """Add up the vectors of all ranks; give None, on all of them, where one has no room for its own."""
        self._round += 1
        turn = self._round % 2
        dtype, elements = parts[0].dtype, sum(part.numel() for part in parts)
        size = elements * dtype.itemsize
        own = self._buffer(turn, size)
        descriptor = _NO_ROOM
        if own is not None:
            descriptor = _IN_HUB if own[0] is self._hub.own else own[0].descriptor
            torch.cat([part.reshape(-1) for part in parts], out=own[0].tensor(own[1], elements, dtype))
        _ENTRY.pack_into(self._hub.own.view, self._entry(turn), self._numbers[turn], descriptor, size)
        words().publish(self._hub.own.address + self._at, self._round % WRAP)
        # all are waited for before anything is given up: that is what makes the buffers safe
        buffers = [own if member == self._hub.rank else self._read(member, turn, size) for member in self._members]
        vectors = [buffer[0].tensor(buffer[1], elements, dtype) for buffer in buffers if buffer is not None]
        if len(vectors) < len(buffers):
            return None
        total = vectors[0] + vectors[1]
        for vector in vectors[2:]:
            total += vector
        return total

    def _read(self, member: int, turn: int, size: int) -> _Buffer | None:
        """Give the vector of another rank, once it has published this round; None where it had no room."""
        peer, hub = self._hub.peers[member], self._hub.files[member]
        word = hub.address + self._at
        value = words().load(word)
        # a rank may be ahead by a round, and then this round's buffer is still as it was
        while (self._round - value) % WRAP < WRAP // 2 and value != self._round % WRAP:
            value = peer.wait(word, value)
        number, descriptor, length = _ENTRY.unpack_from(hub.view, self._entry(turn))
        if length != size:
            raise RuntimeError(f"rank {member} adds a vector of {length} bytes, and this rank one of {size}")
        if descriptor == _NO_ROOM:
            return None
        if descriptor == _IN_HUB:
            return hub, buffer_offset(self._number, turn)
        have = self._others.get((member, turn))
        if have is None or have[0] != number:
            have = self._others[member, turn] = (number, SharedFile.of_process(peer.process, descriptor))
        return have[1], 0

    def _buffer(self, turn: int, size: int) -> _Buffer | None:
        """Give the memory for this rank's vector: in its hub if it is small, else in a file of its own."""
        if size <= BUFFER:
            return self._hub.own, buffer_offset(self._number, turn)
        file = self._own[turn]
        if file is None or len(file.view) < size:
            if file is not None:
                file.close()
            self._numbers[turn] += 1
            self._own[turn] = file = None
            try:
                file = SharedFile.create("trisect-board", 1 << (size - 1).bit_length())
            except OSError:
                return None
            self._own[turn] = file
        return file, 0

    def _entry(self, turn: int) -> int:
        return self._at + 64 * (1 + turn)
