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
from trisect.runtime import wire as wires
from trisect.runtime.ledger import Ledger
from trisect.runtime.mesh import Mesh


@dataclass
class Incoming:
    """A message on its way to this rank."""

    work: dist.Work
    buffer: Tensor
    wire: Wire
    dtype: torch.dtype

    def wait(self) -> Tensor:
        """The rows, once they are here."""
        self.work.wait()
        return wires.decode(self.buffer, self.wire, self.dtype)


@dataclass
class Swap:
    """Rows on their way to and from the other ranks of an axis. `wait` gives those of each, in the places named."""

    works: list[dist.Work]
    messages: list[Tensor]
    received: dict[int, tuple[Tensor, Tensor]]
    places: Sequence[Tensor]
    wire: Wire
    ledger: Ledger
    axis: str
    kind: str

    def wait(self) -> Sequence[Tensor]:
        """The rows, once all are here (and all that this rank sends has left)."""
        start = time.perf_counter()
        for work in self.works:
            work.wait()
        for message, place in self.received.values():
            if message is not place:
                place.copy_(wires.decode(message, self.wire, place.dtype))
        self.works, self.messages, self.received = [], [], {}
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
    ) -> None:
        """Begin to send rows; the buffer is kept until `flush`.

        Args:
            wire: another form than the run's (`float32`: as the rows are).
            mark: when the buffer may be waited for (see `flush`).
        """
        message = wires.encode(x.detach(), self.wire if wire is None else wire, key)
        start = time.perf_counter()
        work = dist.isend(message, peer, tag=tag)
        if work is not None:
            self._sending.append((work, message, mark))
        self.ledger.add(axis, kind, message.nbytes, time.perf_counter() - start)

    def receive(
        self, rows: int, width: int, dtype: torch.dtype, peer: int, tag: int, *, wire: Wire | None = None
    ) -> Incoming:
        """Begin to receive rows of a known shape."""
        wire = self.wire if wire is None else wire
        buffer = wires.empty(rows, width, wire, dtype, self.mesh.device)
        work = dist.irecv(buffer, peer, tag=tag)
        if work is None:
            raise RuntimeError(f"rank {self.mesh.rank} is not in the group of rank {peer}")
        return Incoming(work, buffer, wire, dtype)

    def flush(self, mark: int | None = None) -> None:
        """Wait until all that was sent has left; or all whose mark is not above this one."""
        held = []
        for work, message, own in self._sending:
            if mark is not None and own > mark:
                held.append((work, message, own))
            else:
                work.wait()
        self._sending = held

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
        places = [torch.empty(rows, width, dtype=dtype, device=self.mesh.device) for rows in incoming]
        return list(self.begin_swap(outgoing, places, kind, key, axis=axis, wire=wire).wait())

    def begin_swap(
        self,
        outgoing: Sequence[Tensor],
        places: Sequence[Tensor],
        kind: str,
        key: int,
        *,
        axis: Literal["vertex", "time"] = "vertex",
        wire: Wire | None = None,
    ) -> Swap:
        """As `swap`, but go on at once: neither is to be touched before `Swap.wait`.

        Args:
            outgoing: rows for each way (none for this one).
            places: [rows, width], where those of each way are to be; contiguous.
        """
        start = time.perf_counter()
        operations: list[dist.P2POp] = []
        messages: list[Tensor] = []
        received: dict[int, tuple[Tensor, Tensor]] = {}
        form = self.wire if wire is None else wire
        along_time = axis == "time"
        count = self.mesh.layout.time if along_time else self.mesh.layout.vertex
        here = self.mesh.moment if along_time else self.mesh.way

        def rank_of(place: int) -> int:
            return self.mesh.rank_at(moment=place) if along_time else self.mesh.rank_at(way=place)

        # receives first, peers shifted so that nobody is everybody's first
        for shift in range(1, count):
            peer = (here - shift) % count
            place = places[peer]
            if place.shape[0]:
                message = place
                if form != "float32":
                    message = wires.empty(place.shape[0], place.shape[1], form, place.dtype, self.mesh.device)
                received[peer] = (message, place)
                operations.append(dist.P2POp(dist.irecv, message, rank_of(peer)))
        sent = 0
        for shift in range(1, count):
            peer = (here + shift) % count
            if outgoing[peer].shape[0]:
                message = wires.encode(outgoing[peer].detach(), form, key)
                sent += message.nbytes
                messages.append(message)
                operations.append(dist.P2POp(dist.isend, message, rank_of(peer)))
        works = dist.batch_isend_irecv(operations) if operations else []
        self.ledger.add(axis, kind, sent, time.perf_counter() - start)
        return Swap(works, messages, received, places, form, self.ledger, axis, kind)

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
