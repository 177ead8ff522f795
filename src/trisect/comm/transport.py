"""Every transfer between ranks. Nothing outside this package calls torch.distributed, and each byte is counted here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from trisect.comm import staging
from trisect.comm import wire as wires
from trisect.comm.calls import ENDED, nothing_pending
from trisect.comm.gathering import gather_values
from trisect.comm.incoming import PAYLOAD, Incoming, Swap
from trisect.comm.ledger import Ledger
from trisect.comm.local import board, mailbox
from trisect.comm.local.ring import as_bytes
from trisect.comm.mesh import Mesh
from trisect.comm.rows import Rows, Shape, gathered
from trisect.comm.sums import sum_in_order
from trisect.comm.values import pack, unpack
from trisect.layout import Wire
from trisect.ops.quantise import quantise

__all__ = ["Incoming", "Rows", "Shape", "Swap", "Transport"]

_Message = tuple[Tensor, int]
_Line = tuple[list[int], list[int], list[int]]
_GATHER, _BARRIER = -1, -2  # tags within rings alone
_EVERYBODY, _REPLICAS = range(2)  # numbers of boards
_HOST = torch.device("cpu")
_TAGS = PAYLOAD - 35  # a prime: numbers that differ in a few bits have different tags


class Transport:
    """The transfers of one rank."""

    def __init__(self, mesh: Mesh, ledger: Ledger, wire: Wire = "float32") -> None:
        self.mesh, self.ledger, self.wire = mesh, ledger, wire
        self._sending: list[tuple[dist.Work, Tensor, int]] = []
        self._lines: dict[str, _Line] = {}
        # the same for tensors that are in host memory already
        host = replace(mesh, device=_HOST, staged=False)
        self._host = Transport(host, ledger) if mesh.staged else self

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
        wire = self.wire if wire is None else wire
        messages, size = self._outgoing(x.detach(), peer, tag, wire, key, 0, once=once)
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
        if incoming.reader is None:
            incoming.calls = self.mesh.calls
            incoming.work = dist.irecv(incoming.message(), peer, tag=tag)
            if incoming.work is None:
                raise RuntimeError(f"rank {self.mesh.rank} is not in the group of rank {peer}")
        return incoming

    def _outgoing(
        self, x: Tensor | Rows, peer: int, tag: int, wire: Wire, key: int, call: int, *, once: bool
    ) -> tuple[list[_Message], int]:
        """Write rows for a rank of this host; what is left for the network to send, and the bytes of the rows.

        Args:
            call: number of the exchange.
        """
        boxes = self.mesh.mailboxes
        shape, dtype = wires.form(x.shape[0], x.shape[1], wire, x.dtype)
        size = shape[0] * shape[1] * dtype.itemsize
        if boxes is None or peer not in boxes.processes:
            return [(self._encoded(x, wire, key), _network_tag(call) if call else tag)], size
        ring = boxes.hub.writer(peer)
        message = None
        plain = wire == "float32" and not self.mesh.staged
        if plain and size < mailbox.SMALLEST and isinstance(x, Rows) and x.is_gathered_by_ring:
            if ring.put_rows(tag, x.of, x.which, call):
                return [], size
        elif size < mailbox.SMALLEST:
            message = self._encoded(x, wire, key)
            if ring.put(tag, message.data_ptr(), size, call):
                return [], size
        outbox = boxes.outbox(peer)
        if once:
            message = self._encoded(x, wire, key) if message is None else message
            token = outbox.write_once(message)
        else:
            slot = outbox.write(shape, dtype)
            token = None if slot is None else slot[1]
            if slot is not None:
                self._fill(slot[0], x, wire, key)
        if token is not None:
            ring.put_token(tag, size, token, call)
            return [], size
        number = boxes.next_payload()
        ring.put_token(tag, size, (-1, number, 0, 0, 0), call)
        return [(self._encoded(x, wire, key) if message is None else message, PAYLOAD + number)], size

    def _encoded(self, x: Tensor | Rows, wire: Wire, key: int) -> Tensor:
        message = wires.encode(gathered(x), wire, key)
        return staging.to_host(message) if self.mesh.staged else message

    def _fill(self, target: Tensor, x: Tensor | Rows, wire: Wire, key: int) -> None:
        """Write the message of some rows into shared memory."""
        if self.mesh.staged:
            target.copy_(self._encoded(x, wire, key))
        elif wire == "int8":
            of, which = (x.of, x.which) if isinstance(x, Rows) else (x, None)
            quantise(of, key, which=which, out=target)
        elif isinstance(x, Rows) and target.dtype == x.dtype:
            x.gathered(target)
        else:
            target.copy_(gathered(x))

    def _incoming(self, target: Tensor | Shape, peer: int, tag: int, wire: Wire) -> Incoming:
        """Prepare to receive some rows."""
        incoming = Incoming(target, wire, peer, tag, self.mesh.device, self.mesh.staged)
        boxes = self.mesh.mailboxes
        if boxes is not None and peer in boxes.processes:
            reader = incoming.reader = boxes.hub.reader(peer)
            incoming.number, incoming.inbox = reader.expect(tag), boxes.inbox(peer)
        return incoming

    def unread(self, peer: int) -> int:
        """Give how many messages in shared memory a rank has not done with."""
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
            outgoing: what each part gets (empty for this one).
            incoming: how many rows come from each part.
        """
        targets = [Shape(rows, width, dtype) for rows in incoming]
        return list(self.begin_swap(outgoing, targets, kind, key, axis=axis, wire=wire).wait())

    def begin_swap(
        self,
        outgoing: Sequence[Tensor | Rows],
        targets: Sequence[Tensor | Shape],
        kind: str,
        key: int,
        *,
        axis: Literal["vertex", "time"] = "vertex",
        wire: Wire | None = None,
        once: bool = False,
        stay: bool = False,
        call: int = 0,
    ) -> Swap:
        """As `swap`, but go on at once: neither is to be touched before `Swap.wait`.

        Args:
            outgoing: rows for each part (none for this one).
            targets: [rows, width], where those of each part are to be, contiguous; or a shape alone.
            once: as for `send`.
            stay: `Swap.wait` gives rows where they came to lie, which may be elsewhere than in their target.
            call: number of the exchange (`trisect.views.verbs`), the same on all ranks of the axis.
        """
        start = time.perf_counter()
        line = self._lines.get(axis)
        if line is None:
            line = self._lines[axis] = self._line(axis)
        calls = self.mesh.calls
        if calls is not None:
            calls.note(axis, call)
        swap = Swap({}, targets, self.mesh.device, self.ledger, axis, kind, stay, call=call, calls=calls)
        size = self._begin(swap, line, outgoing, self.wire if wire is None else wire, key, once=once)
        self.ledger.add(axis, kind, size, time.perf_counter() - start)
        return swap

    def _line(self, axis: str) -> _Line:
        """Give the ranks along an axis, and the order in which to receive from others and to send to them."""
        mesh = self.mesh
        along_time = axis == "time"
        count = mesh.layout.time if along_time else mesh.layout.vertex
        here = mesh.run_index if along_time else mesh.part_index
        ranks = [mesh.rank_at(run_index=at) if along_time else mesh.rank_at(part_index=at) for at in range(count)]
        return _shifted(ranks, here)

    def _begin(
        self, swap: Swap, line: _Line, outgoing: Sequence[Tensor | Rows], wire: Wire, key: int, *, once: bool
    ) -> int:
        """Send and receive for a swap; the bytes that leave."""
        ranks, sources, receivers = line
        call = swap.call
        operations: list[dist.P2POp] = []
        # on the network, receives first
        for peer in sources:
            if swap.targets[peer].shape[0]:
                incoming = swap.receiving[peer] = self._incoming(swap.targets[peer], ranks[peer], 0, wire)
                incoming.call = call
                if incoming.reader is None:
                    tag = _network_tag(call)
                    operations.append(dist.P2POp(dist.irecv, incoming.message(), ranks[peer], tag=tag))
        total = 0
        for peer in receivers:
            rows = outgoing[peer]
            if rows.shape[0]:
                rows = rows.detach() if isinstance(rows, Tensor) else rows
                messages, size = self._outgoing(rows, ranks[peer], 0, wire, key, call, once=once)
                total += size
                for message, own in messages:
                    operations.append(dist.P2POp(dist.isend, message, ranks[peer], tag=own))
        if operations:
            swap.operations = operations
            swap.works = dist.batch_isend_irecv(operations)
            # gloo has a work for each operation, NCCL one for all of them
            each = len(swap.works) == len(operations)
            swap.arriving = sum(one.op is dist.irecv for one in operations) if each else len(swap.works)
        return total

    def reduce_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Sum weight gradients over the ranks that hold the same layers, in one bucket, in place."""
        members = self.mesh.replica_ranks
        if len(members) == 1 or not gradients:
            return
        start = time.perf_counter()
        bucket = self._total([gradient.reshape(-1) for gradient in gradients], members, _REPLICAS)
        offset = 0
        for gradient in gradients:
            gradient.copy_(bucket[offset : offset + gradient.numel()].view_as(gradient))
            offset += gradient.numel()
        # what a ring moves: each rank sends its bucket twice, less its own share
        ranks = len(members)
        self.ledger.add("weights", "reduce", 2 * bucket.nbytes * (ranks - 1) // ranks, time.perf_counter() - start)

    def sum_everywhere(self, values: Tensor) -> Tensor:
        """Give the sum over all ranks of a small tensor (losses, counts)."""
        world = self.mesh.layout.world
        if world == 1:
            return values
        return self._total([values.detach().reshape(-1)], range(world), _EVERYBODY).view_as(values)

    def _total(self, parts: Sequence[Tensor], members: Sequence[int], number: int) -> Tensor:
        """Give the sum over some ranks of vectors strung together, where the first of them is."""
        mesh, device = self.mesh, parts[0].device
        if mesh.calls is not None:
            mesh.calls.note_all(ENDED)
        group = mesh.replicas if number == _REPLICAS else None
        if mesh.device.type != "cpu" and not mesh.staged:
            bucket = torch.cat(list(parts)).to(mesh.device)
            with self._waits():
                dist.all_reduce(bucket, group=group)
            return bucket.to(device)
        if device.type != "cpu" or any(part.dtype != parts[0].dtype for part in parts):
            bucket = torch.cat(list(parts))
            parts = [staging.to_host(bucket) if device.type != "cpu" else bucket]
        boxes, total = mesh.mailboxes, None
        if boxes is not None and sum(part.nbytes for part in parts) <= board.LARGEST and boxes.all_here(members):
            total = boxes.board(number, members).total(parts)
        if total is None:
            with self._waits():
                total = sum_in_order(torch.cat(list(parts)), len(members), group)
        return total if device.type == "cpu" else staging.to_device(total, device)

    def gather(self, value: Any) -> list[Any]:
        """Give what each rank hands in, in the order of ranks, on all of them. For evaluation: small, and not counted.

        Args:
            value: plain; see `trisect.comm.values`.
        """
        mesh = self.mesh
        world, boxes = mesh.layout.world, mesh.mailboxes
        if world == 1:
            return [value]
        if mesh.calls is not None:
            mesh.calls.note_all(ENDED)
        if boxes is None or not boxes.all_here(range(world)):
            with self._waits():
                return gather_values(value, _HOST if mesh.staged else mesh.device)
        data = as_bytes(pack(value)).view(-1, 1)
        peers = [rank for rank in range(world) if rank != mesh.rank]
        works = []
        for peer in peers:
            boxes.hub.writer(peer).put_token(_GATHER, 0, (data.shape[0], 0, 0, 0, 0))
            messages, _ = self._host._outgoing(data, peer, _GATHER, "float32", 0, 0, once=True)
            works += [(dist.isend(message, peer, tag=tag), message) for message, tag in messages]
        values = []
        for rank in range(world):
            if rank == mesh.rank:
                values.append(value)
                continue
            size = boxes.hub.reader(rank).token(_GATHER)[0]
            incoming = self._host._incoming(Shape(size, 1, torch.uint8), rank, _GATHER, "float32")
            values.append(unpack(incoming.wait().numpy().tobytes()))
        for work, _ in works:
            if work is not None:
                work.wait()
        self.wait_for_all()  # a rank that ends takes along what others have not read yet
        boxes.tidy()
        return values

    def wait_for_all(self) -> None:
        """Go on when every rank is here."""
        world, boxes = self.mesh.layout.world, self.mesh.mailboxes
        if world == 1:
            return
        if boxes is None or not boxes.all_here(range(world)):
            with self._waits():
                dist.barrier()
            return
        for peer in boxes.processes:
            boxes.hub.writer(peer).put_token(_BARRIER, 0, (0, 0, 0, 0, 0))
        for peer in boxes.processes:
            boxes.hub.reader(peer).token(_BARRIER)

    def _waits(self) -> AbstractContextManager[None]:
        """Return a context in which this rank waits in an operation of a group."""
        return nullcontext() if self.mesh.calls is None else self.mesh.calls.waits(nothing_pending)


def _network_tag(call: int) -> int:
    """Return the tag of the messages of an exchange, so that none is taken for another; 0 where it has no number."""
    return 1 + call % _TAGS if call else 0


def _shifted(ranks: list[int], here: int) -> _Line:
    """Some ranks, and the order in which the one at `here` receives and sends: nobody is everybody's first."""
    count = len(ranks)
    sources = [(here - shift) % count for shift in range(1, count)]
    return ranks, sources, [(here + shift) % count for shift in range(1, count)]
