"""Messages that this rank waits for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from trisect.comm import staging
from trisect.comm import wire as wires
from trisect.comm.calls import Axis, Calls, OtherCallError, Pending
from trisect.comm.ledger import Ledger
from trisect.comm.local.mailbox import Inbox
from trisect.comm.local.ring import RingReader
from trisect.comm.rows import Shape
from trisect.layout import Wire
from trisect.ops import memory

PAYLOAD = 1 << 30  # tags of messages between ranks of a host that take the network for want of room are above this


@dataclass(slots=True)
class Incoming:
    """A message on its way to this rank.

    Attributes:
        target: where its rows are to be, or their shape.
        wire: the form of its rows.
        device, staged: where rows are to be; whether they come by way of host memory.
        reader, number, inbox: of the ring through which it comes; None for the network.
        buffer, work: of the network.
        call: number of the exchange; None: of a message between two ranks, which its tag names.
        calls: of this rank.
    """

    target: Tensor | Shape
    wire: Wire
    peer: int
    tag: int
    device: torch.device
    staged: bool = False
    reader: RingReader | None = None
    number: int = 0
    inbox: Inbox | None = None
    buffer: Tensor | None = None
    work: dist.Work | None = None
    call: int | None = None
    calls: Calls | None = None

    def wait(self) -> Tensor:
        """Give the rows, once they are here."""
        if self.work is not None and self.calls is not None:
            with self.calls.waits(self._pending):
                self.work.wait()
        elif self.work is not None:
            self.work.wait()
        message = self.message() if self.reader is None else self._read(self.reader)
        if self.staged:
            message = staging.to_device(message, self.device)
        return wires.decode(message, self.wire, self.target.dtype)

    def message(self) -> Tensor:
        """Give the memory that receives the message: its target, or a buffer."""
        if self.buffer is None:
            shape, dtype = self._form()
            if self.staged:
                self.buffer = staging.host_buffer(shape, dtype, self.device)
            elif self.wire == "float32" and isinstance(self.target, Tensor) and self.target.is_contiguous():
                self.buffer = self.target
            else:
                self.buffer = memory.empty(shape, dtype, self.device)
        return self.buffer

    def _pending(self) -> list[Pending]:
        return [(self.peer, self.tag, self.message().nbytes, False)]

    def _read(self, reader: RingReader) -> Tensor:
        shape, dtype = self._form()
        taken = reader.take(self.tag, self.number, shape[0] * shape[1] * dtype.itemsize, self.message, self.call)
        if isinstance(taken, Tensor):
            return taken
        if taken[0] >= 0 and self.inbox is not None:
            return self.inbox.read(taken, shape, dtype)
        dist.recv(self.message(), self.peer, tag=PAYLOAD + taken[1])
        return self.message()

    def _form(self) -> tuple[tuple[int, int], torch.dtype]:
        shape = self.target.shape
        return wires.form(shape[0], shape[1], self.wire, self.target.dtype)


@dataclass(slots=True)
class Swap:
    """Rows on their way to and from the other ranks of an axis. `wait` gives those of each, in the targets.

    Attributes:
        receiving: what comes, by its number among the targets.
        stay: rows may stay where they came to lie.
        works, operations: what goes through the network; the first `arriving` works are of messages to this rank.
        call: number of the exchange; `calls`: of this rank.
    """

    receiving: dict[int, Incoming]
    targets: Sequence[Tensor | Shape]
    device: torch.device
    ledger: Ledger
    axis: Axis
    kind: str
    stay: bool = False
    works: list[dist.Work] = field(default_factory=list)
    operations: list[dist.P2POp] = field(default_factory=list)
    arriving: int = 0
    call: int = 0
    calls: Calls | None = None

    def wait(self) -> Sequence[Tensor]:
        """Give the rows, once all are here (and all that this rank sends has left)."""
        start = time.perf_counter()
        try:
            if self.works and self.calls is not None:
                with self.calls.waits(self._pending):
                    rows = self._wait()
            else:
                rows = self._wait()
        except OtherCallError as error:
            if self.calls is None:
                raise
            raise self.calls.differs(self.axis, self.call, error.rank, error.number) from None
        self.receiving, self.works, self.operations = {}, [], []
        self.ledger.add(self.axis, self.kind, 0, time.perf_counter() - start)
        return rows

    def _pending(self) -> list[Pending]:
        sends = [one.op is dist.isend for one in self.operations]
        return [(one.peer, one.tag, one.tensor.nbytes, send) for one, send in zip(self.operations, sends, strict=True)]

    def _wait(self) -> list[Tensor]:
        # a message that takes the network for want of room leaves when its receiver asks for it: wait for those last
        for work in self.works[: self.arriving]:
            work.wait()
        rows: list[Tensor] = []
        for number, target in enumerate(self.targets):
            incoming = self.receiving.get(number)
            if incoming is None:
                if isinstance(target, Shape):
                    target = torch.empty(0, target.width, dtype=target.dtype, device=self.device)
                rows.append(target)
                continue
            own = incoming.wait()
            if isinstance(target, Tensor) and own is not target and not self.stay:
                own = target.copy_(own)
            rows.append(own)
        for work in self.works[self.arriving :]:
            work.wait()
        return rows
