"""Rows handed over in memory that two processes of one host share.

A sender has *slots* for each peer: anonymous files (`memfd_create`), mapped by both, which vanish with the last process
that has them open; nothing is ever left behind. It writes a message straight into a free slot and sends a *token* of a
few integers through the ring to its receiver (`local.ring`), which names the slot. The receiver reads the rows
where they lie; when its last tensor on them is gone it says so in the slot's first page, and the slot may be written
again. Nobody waits for a slot: where none is free there is a new one, and where there is no room for it the message
takes the network. A message whose like does not come again soon has a slot for itself, which nobody maps: it is written
and read as a file, and then empty.

Waiting is for tokens alone. A peer that is gone or silent is therefore noticed in one place (`local.peer`).
"""

from __future__ import annotations

import mmap
import os
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from torch import Tensor

from trisect.comm.local.board import Board
from trisect.comm.local.hub import Hub
from trisect.comm.local.ring import Token
from trisect.comm.local.shared import open_descriptor
from trisect.comm.local.words import words
from trisect.ops import memory
from trisect.ops.memory import empty, free_bytes

SMALLEST = 1 << 16  # below this a message lies in the ring itself
_HEADER = mmap.PAGESIZE
_WORD = 4  # bytes at the start of a slot: the number of the last message that was read
_STEP = 1 << 20
_FRACTION = 0.25  # of the memory that is free at the start, for all processes of a host


@dataclass(eq=False)
class Slot:
    """Shared memory for one message at a time, as its sender sees it."""

    number: int
    descriptor: int
    size: int
    pages: np.ndarray | None
    message: int = 0

    @classmethod
    def create(cls, number: int, size: int, *, mapped: bool = True) -> Slot:
        """Make a slot with room for `size` bytes; raise an OSError where there is none."""
        descriptor = os.memfd_create(f"trisect-{number}", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, _HEADER + size)
            return cls(number, descriptor, size, _mapped(descriptor) if mapped else None)
        except OSError:
            os.close(descriptor)
            raise

    @property
    def free(self) -> bool:
        """Say whether the receiver is done with the last message."""
        if self.pages is None:
            return int.from_bytes(os.pread(self.descriptor, _WORD, 0), sys.byteorder) == self.message
        return int.from_bytes(self.pages[:_WORD].data, sys.byteorder) == self.message

    def rows(self, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Give the memory for a message of this shape."""
        if self.pages is None:
            raise RuntimeError(f"slot {self.number} is not mapped")
        size = shape[0] * shape[1] * dtype.itemsize
        return torch.from_numpy(self.pages[_HEADER : _HEADER + size]).view(dtype).view(shape)

    def close(self) -> None:
        """Close our descriptor; the receiver keeps its own mapping."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()


class Outbox:
    """The slots of this process for one peer.

    Args:
        room: what all outboxes of the process may take together.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._slots: list[Slot] = []
        self._single: list[Slot] = []
        self._numbers = count()
        self._gone: list[int] = []

    @property
    def unread(self) -> int:
        """Give how many messages the receiver has not done with."""
        return sum(not slot.free for slot in (*self._slots, *self._single))

    def write(self, shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Token] | None:
        """Give the memory to write a message to, and the token to send afterwards; None where there is no room.

        The token is the number of the slot, its descriptor and bytes, the number of the message, and a slot that is not
        kept any longer (-1: none).
        """
        if self._single:
            self.tidy()
        size = shape[0] * shape[1] * dtype.itemsize
        fitting = old = None
        for slot in self._slots:
            if slot.free:
                if slot.size >= size:
                    fitting = slot if fitting is None or slot.size < fitting.size else fitting
                elif old is None or slot.size > old.size:
                    old = slot
        if fitting is None:
            # one that has become too small makes way, so that there are never more than were once on their way
            if old is not None:
                self._drop(old, self._slots)
                self._gone.append(old.number)
            fitting = self._new(-(-size // _STEP) * _STEP)
            if fitting is None:
                return None
            self._slots.append(fitting)
        elif fitting.message:
            fitting.close()
        fitting.message += 1
        gone = self._gone.pop() if self._gone else -1
        return fitting.rows(shape, dtype), (fitting.number, fitting.descriptor, fitting.size, fitting.message, gone)

    def write_once(self, rows: Tensor) -> Token | None:
        """Put a message into a slot of its own, which is not kept: the token to send; None where there is no room."""
        self.tidy()
        slot = self._new(rows.nbytes, mapped=False)
        if slot is None:
            return None
        self._single.append(slot)
        slot.message = 1
        _through(os.pwrite, slot.descriptor, rows.contiguous())
        return slot.number, slot.descriptor, slot.size, slot.message, slot.number

    def tidy(self) -> None:
        """Let go of slots for a single message that was read."""
        for slot in [slot for slot in self._single if slot.free]:
            self._drop(slot, self._single)

    def close(self) -> None:
        """Let go of all slots."""
        for slots in (self._slots, self._single):
            for slot in list(slots):
                self._drop(slot, slots)

    def _new(self, size: int, *, mapped: bool = True) -> Slot | None:
        if not self._room.take(size):
            return None
        try:
            slot = Slot.create(next(self._numbers), size, mapped=mapped)
        except OSError:
            self._room.give(size)
            self._room.tell()
            return None
        return slot

    def _drop(self, slot: Slot, slots: list[Slot]) -> None:
        slot.close()
        slots.remove(slot)
        self._room.give(slot.size)


class _Lease(np.ndarray):
    """What a tensor's storage holds on to; when it dies the sender may write again."""

    publish: Callable[[int, int], None]
    word: int
    message: int

    def __del__(self) -> None:
        publish = getattr(self, "publish", None)
        if publish is not None:
            if memory.POISONED:  # while the slot is ours: afterwards the sender may write
                self.fill(0xFF)
            publish(self.word, self.message)


class Inbox:
    """The slots of one peer, as this process sees them.

    Args:
        process: the peer's id.
    """

    def __init__(self, process: int) -> None:
        self._process = process
        self._publish = words().publish
        self._pages: dict[int, np.ndarray] = {}

    def read(self, token: Token, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Give the rows of the message that a token names, in shared memory; the slot is free when they are gone."""
        number, descriptor, size, message, gone = token
        wanted = shape[0] * shape[1] * dtype.itemsize
        if wanted > size:
            raise RuntimeError(f"a message of {size} bytes was announced where {wanted} are due")
        if gone == number:  # a slot for this message alone
            return self._read_once(descriptor, message, shape, dtype)
        self._pages.pop(gone, None)
        pages = self._pages.get(number)
        if pages is None:
            own = open_descriptor(self._process, descriptor)
            try:
                pages = self._pages[number] = _mapped(own)
            finally:
                os.close(own)
        lease = pages[_HEADER : _HEADER + wanted].view(_Lease)
        lease.publish, lease.word, lease.message = self._publish, pages.ctypes.data, message
        storage = torch.from_numpy(lease).untyped_storage()
        return torch.empty(0, dtype=dtype).set_(storage, 0, shape, (shape[1], 1))

    def _read_once(self, descriptor: int, message: int, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        own = open_descriptor(self._process, descriptor)
        try:
            rows = empty(shape, dtype)
            _through(_read_into, own, rows)
            os.pwrite(own, message.to_bytes(_WORD, sys.byteorder), 0)
            os.ftruncate(own, _HEADER)
            return rows
        finally:
            os.close(own)


@dataclass(eq=False)
class Room:
    """Bytes that the slots of a process may take."""

    limit: int
    used: int = 0
    _told: bool = False

    @classmethod
    def of_host(cls, processes: int) -> Room:
        """Divide the room of a host fairly among so many processes."""
        return cls(int(free_bytes(torch.device("cpu")) * _FRACTION) // max(1, processes))

    def take(self, size: int) -> bool:
        """Count so many more bytes as used, or give False where there is no room."""
        if self.used + size > self.limit:
            self.tell()
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        """Count so many bytes as free again."""
        self.used -= size

    def tell(self) -> None:
        """Say once that there is too little."""
        if not self._told:
            self._told = True
            warnings.warn(
                f"There is no room for more than {self.used >> 20} MiB of shared memory; other rows for ranks of this"
                " host go through the network, which is slower.",
                stacklevel=2,
            )


class Mailboxes:
    """All mailboxes of a process.

    Args:
        processes: the process of each rank that shares this host's memory with us, without our own.
        room: for slots.
        hub: the rings and boards that all of them have open.
    """

    def __init__(self, processes: Mapping[int, int], room: Room, hub: Hub) -> None:
        self.processes, self.room, self.hub = processes, room, hub
        self._out: dict[int, Outbox] = {}
        self._in: dict[int, Inbox] = {}
        self._boards: dict[int, Board] = {}
        self._payloads = count()

    def all_here(self, ranks: Collection[int]) -> bool:
        """Say whether all of these ranks share this host's memory."""
        return all(rank in self.processes or rank == self.hub.rank for rank in ranks)

    def outbox(self, peer: int) -> Outbox:
        """Give the slots for large messages to a rank."""
        if peer not in self._out:
            self._out[peer] = Outbox(self.room)
        return self._out[peer]

    def inbox(self, peer: int) -> Inbox:
        """Give the slots for large messages from a rank."""
        box = self._in.get(peer)
        if box is None:
            box = self._in[peer] = Inbox(self.processes[peer])
        return box

    def board(self, number: int, members: Sequence[int]) -> Board:
        """Give the board for sums over some ranks, always the same under a number."""
        board = self._boards.get(number)
        if board is None:
            board = self._boards[number] = Board(self.hub, number, members)
        return board

    def next_payload(self) -> int:
        """Give a number for a message that takes the network for want of room."""
        return next(self._payloads) % (1 << 20)

    def tidy(self) -> None:
        """Let go of what is not kept and was read."""
        for box in self._out.values():
            box.tidy()


def _through(move: Callable[[int, memoryview, int], int], descriptor: int, rows: Tensor) -> None:
    """Move the bytes of contiguous rows to or from a slot, however many go at once."""
    left, at = rows.view(torch.uint8).numpy().data.cast("B"), _HEADER
    while left:
        moved = move(descriptor, left, at)
        if not moved:
            raise RuntimeError(f"Connection closed: {len(left)} bytes of a message are missing")
        left, at = left[moved:], at + moved


def _read_into(descriptor: int, buffer: memoryview, at: int) -> int:
    return os.preadv(descriptor, [buffer], at)


def _mapped(descriptor: int) -> np.ndarray:
    # all pages at once: a fault for each of them would cost more than the first message
    pages: np.ndarray = np.frombuffer(mmap.mmap(descriptor, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE), dtype=np.uint8)
    return pages
