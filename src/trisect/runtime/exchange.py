"""Every transfer between ranks. Nothing else calls torch.distributed, and each byte that leaves is counted here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from trisect.layout import Wire
from trisect.ops import memory
from trisect.ops.quantise import quantise
from trisect.runtime import wire as wires
from trisect.runtime.ledger import Ledger
from trisect.runtime.mailbox import Inbox, no_room
from trisect.runtime.mesh import Mesh

_Message = tuple[Tensor, int]
_PAYLOAD = 1 << 30  # tag of a message whose token said that it takes the network, above its own


@dataclass(frozen=True)
class Rows:
    """Some rows of a tensor [·, width], to be sent: gathered straight to where the message is written.

    Attributes:
        of: the tensor.
        which: int64.
    """

    of: Tensor
    which: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Of the message."""
        return self.which.numel(), self.of.shape[1]

    def gathered(self, out: Tensor | None = None) -> Tensor:
        """The rows as a tensor, in reused memory or in `out`."""
        if out is None:
            out = memory.empty(self.shape, self.of.dtype, self.of.device)
        return torch.index_select(self.of, 0, self.which, out=out)


@dataclass(frozen=True)
class Shape:
    """Of rows that are expected and may be wherever they come to lie."""

    rows: int
    width: int
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """As a tensor's."""
        return self.rows, self.width


@dataclass
class Incoming:
    """A message on its way to this rank, or the token of one that lies in memory of its sender."""

    buffer: Tensor
    wire: Wire
    dtype: torch.dtype
    shape: tuple[int, int]
    peer: int
    tag: int
    inbox: Inbox | None
    work: dist.Work | None = None

    def wait(self) -> Tensor:
        """The rows, once they are here."""
        if self.work is not None:
            self.work.wait()
        message = self.buffer
        if self.inbox is not None:
            shape, kind = wires.form(self.shape[0], self.shape[1], self.wire, self.dtype)
            if int(message[0]) >= 0:
                message = self.inbox.read(message, shape, kind)
            else:
                message = memory.empty(shape, kind)
                dist.recv(message, self.peer, tag=self.tag + _PAYLOAD)
        return wires.decode(message, self.wire, self.dtype)


@dataclass
class Swap:
    """Rows on their way to and from the other ranks of an axis. `wait` gives those of each, in the places named."""

    works: list[dist.Work]
    messages: list[Tensor]
    receiving: dict[int, Incoming]
    places: list[Tensor]
    ledger: Ledger
    axis: str
    kind: str
    stay: bool = False

    def wait(self) -> Sequence[Tensor]:
        """The rows, once all are here (and all that this rank sends has left)."""
        start = time.perf_counter()
        # receives were begun first; a message that takes the network after all leaves when its receiver asks for it
        for work in self.works[: len(self.receiving)]:
            work.wait()
        for peer, incoming in self.receiving.items():
            rows = incoming.wait()
            if self.stay or self.places[peer].shape[0] == 0:
                self.places[peer] = rows
            elif rows is not self.places[peer]:
                self.places[peer].copy_(rows)
        for work in self.works[len(self.receiving) :]:
            work.wait()
        self.works, self.messages, self.receiving = [], [], {}
        self.ledger.add(self.axis, self.kind, 0, time.perf_counter() - start)
        return self.places


class Exchange:
    """The transfers of one rank."""

    def __init__(self, mesh: Mesh, ledger: Ledger, wire: Wire = "float32") -> None:
        self.mesh, self.ledger, self.wire = mesh, ledger, wire
        self._sending: list[tuple[dist.Work, Tensor, int]] = []

    def send(
        self,
        x: Tensor,
        peer: int,
        tag: int,
        axis: str,
        kind: str,
        key: int = 0,
        *,
        wire: Wire | None = None,
        mark: int = 0,
        once: bool = False,
    ) -> None:
        """Begin to send rows; the buffer is kept until `flush`.

        Args:
            wire: another form than the run's (`float32`: as the rows are).
            mark: when the buffer may be waited for (see `flush`).
            once: the like of it is not sent again soon: no memory is kept for it.
        """
        start = time.perf_counter()
        messages, size = self._outgoing(x.detach(), peer, tag, self.wire if wire is None else wire, key, once=once)
        for message, own in messages:
            work = dist.isend(message, peer, tag=own)
            if work is not None:
                self._sending.append((work, message, mark))
        self.ledger.add(axis, kind, size, time.perf_counter() - start)

    def receive(
        self, rows: int, width: int, dtype: torch.dtype, peer: int, tag: int, *, wire: Wire | None = None
    ) -> Incoming:
        """Begin to receive rows of a known shape."""
        incoming = self._incoming(Shape(rows, width, dtype), peer, tag, self.wire if wire is None else wire)
        incoming.work = dist.irecv(incoming.buffer, peer, tag=tag)
        if incoming.work is None:
            raise RuntimeError(f"rank {self.mesh.rank} is not in the group of rank {peer}")
        return incoming

    def _outgoing(
        self, x: Tensor | Rows, peer: int, tag: int, wire: Wire, key: int, *, once: bool
    ) -> tuple[list[_Message], int]:
        """What is to be sent for some rows, each with its tag; and the bytes of the rows."""
        of = x.of if isinstance(x, Rows) else x
        shape, dtype = wires.form(x.shape[0], x.shape[1], wire, of.dtype)
        size = shape[0] * shape[1] * dtype.itemsize
        boxes = self.mesh.mailboxes
        if boxes is None or not boxes.takes(peer, size):
            return [(wires.encode(_plain(x), wire, key), tag)], size
        if once:
            message = wires.encode(_plain(x), wire, key)
            word = boxes.outbox(peer).write_once(message)
            return [(no_room(), tag), (message, tag + _PAYLOAD)] if word is None else [(word, tag)], size
        found = boxes.outbox(peer).write(shape, dtype)
        if found is None:
            return [(no_room(), tag), (wires.encode(_plain(x), wire, key), tag + _PAYLOAD)], size
        place, token = found
        if wire == "int8":
            quantise(of, key, which=x.which if isinstance(x, Rows) else None, out=place)
        elif isinstance(x, Rows) and place.dtype == of.dtype:
            x.gathered(place)
        else:
            place.copy_(_plain(x))
        return [(token, tag)], size

    def _incoming(self, place: Tensor | Shape, peer: int, tag: int, wire: Wire) -> Incoming:
        """What is to be received for some rows."""
        shape, dtype = wires.form(place.shape[0], place.shape[1], wire, place.dtype)
        boxes = self.mesh.mailboxes
        inbox = None
        if boxes is not None and boxes.takes(peer, shape[0] * shape[1] * dtype.itemsize):
            inbox, buffer = boxes.inbox(peer), no_room()
        elif isinstance(place, Tensor) and wire == "float32":
            buffer = place
        else:
            buffer = memory.empty(shape, dtype, self.mesh.device)
        return Incoming(buffer, wire, place.dtype, (place.shape[0], place.shape[1]), peer, tag, inbox)

    def unread(self, peer: int) -> int:
        """How many messages in shared memory a rank has not done with."""
        boxes = self.mesh.mailboxes
        return 0 if boxes is None or peer not in boxes.processes else boxes.outbox(peer).unread

    def flush(self, mark: int | None = None) -> None:
        """Wait until all that was sent has left; or all whose mark is not above this one."""
        held = []
        for work, message, own in self._sending:
            if mark is not None and own > mark:
                held.append((work, message, own))
            else:
                work.wait()
        self._sending = held
        if self.mesh.mailboxes is not None:
            self.mesh.mailboxes.tidy()

    def swap(
        self,
        outgoing: Sequence[Tensor],
        incoming: Sequence[int],
        width: int,
        dtype: torch.dtype,
        kind: str,
        key: int,
        *,
        axis: Literal["vertex", "time"] = "vertex",
        wire: Wire | None = None,
    ) -> list[Tensor]:
        """Rows to and from every way of this stage (or every moment, along `time`), at once.

        Args:
            outgoing: what each way gets (empty for this one).
            incoming: how many rows come from each way.
        """
        places = [Shape(rows, width, dtype) for rows in incoming]
        return list(self.begin_swap(outgoing, places, kind, key, axis=axis, wire=wire).wait())

    def begin_swap(
        self,
        outgoing: Sequence[Tensor | Rows],
        places: Sequence[Tensor | Shape],
        kind: str,
        key: int,
        *,
        axis: Literal["vertex", "time"] = "vertex",
        wire: Wire | None = None,
        once: bool = False,
        stay: bool = False,
    ) -> Swap:
        """As `swap`, but go on at once: neither is to be touched before `Swap.wait`.

        Args:
            outgoing: rows for each way (none for this one).
            places: [rows, width], where those of each way are to be, contiguous; or a shape alone.
            once: as for `send`.
            stay: `Swap.wait` gives rows where they came to lie, which may be elsewhere than in their place.
        """
        start = time.perf_counter()
        form = self.wire if wire is None else wire
        along_time = axis == "time"
        count = self.mesh.layout.time if along_time else self.mesh.layout.vertex
        here = self.mesh.moment if along_time else self.mesh.way
        ranks = [
            self.mesh.rank_at(moment=place) if along_time else self.mesh.rank_at(way=place) for place in range(count)
        ]
        # receives first, peers shifted so that nobody is everybody's first
        receiving = {
            peer: self._incoming(places[peer], ranks[peer], 0, form)
            for peer in ((here - shift) % count for shift in range(1, count))
            if places[peer].shape[0]
        }
        operations = [dist.P2POp(dist.irecv, one.buffer, one.peer) for one in receiving.values()]
        total = 0
        for peer in ((here + shift) % count for shift in range(1, count)):
            rows = outgoing[peer]
            if rows.shape[0]:
                rows = rows.detach() if isinstance(rows, Tensor) else rows
                messages, size = self._outgoing(rows, ranks[peer], 0, form, key, once=once)
                operations += [dist.P2POp(dist.isend, message, ranks[peer], tag=tag) for message, tag in messages]
                total += size
        works = dist.batch_isend_irecv(operations) if operations else []
        self.ledger.add(axis, kind, total, time.perf_counter() - start)
        device = self.mesh.device
        into = [p if isinstance(p, Tensor) else torch.empty(0, p.width, dtype=p.dtype, device=device) for p in places]
        return Swap(works, [one.tensor for one in operations], receiving, into, self.ledger, axis, kind, stay)

    def reduce_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Sum weight gradients over the ranks that hold the same layers, in one bucket, in place."""
        group = self.mesh.replicas
        if group is None or not gradients:
            return
        start = time.perf_counter()
        bucket = torch.cat([g.reshape(-1) for g in gradients])
        dist.all_reduce(bucket, group=group)
        offset = 0
        for gradient in gradients:
            gradient.copy_(bucket[offset : offset + gradient.numel()].view_as(gradient))
            offset += gradient.numel()
        # what a ring moves: each rank sends its bucket twice, less its own share
        ranks = dist.get_world_size(group)
        self.ledger.add("weights", "reduce", 2 * bucket.nbytes * (ranks - 1) // ranks, time.perf_counter() - start)

    def sum_everywhere(self, values: Tensor) -> Tensor:
        """The sum over all ranks of a small tensor (losses, counts)."""
        if self.mesh.layout.world > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def gather(self, value: Any) -> list[Any]:
        """What each rank gives, in the order of ranks, on all of them. For evaluation: small, and not counted."""
        world = self.mesh.layout.world
        if world == 1:
            return [value]
        found: list[Any] = [None] * world
        dist.all_gather_object(found, value)
        return found

    def wait_for_all(self) -> None:
        """Go on when every rank is here."""
        if self.mesh.layout.world > 1:
            dist.barrier()


def _plain(x: Tensor | Rows) -> Tensor:
    return x.gathered() if isinstance(x, Rows) else x
