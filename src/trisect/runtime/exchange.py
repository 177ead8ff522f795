"""Every transfer between ranks. Nothing else calls torch.distributed, and each byte that leaves is counted here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


class Exchange:
    """The transfers of one rank."""

    def __init__(self, mesh: Mesh, ledger: Ledger, wire: Wire = "float32") -> None:
        self.mesh, self.ledger, self.wire = mesh, ledger, wire
        self._sending: list[tuple[dist.Work, Tensor]] = []

    def send(self, x: Tensor, peer: int, tag: int, axis: str, kind: str, key: int = 0) -> None:
        """Begin to send rows; the buffer is kept until `flush`."""
        message = wires.encode(x.detach(), self.wire, key)
        start = time.perf_counter()
        work = dist.isend(message, peer, tag=tag)
        if work is not None:
            self._sending.append((work, message))
        self.ledger.add(axis, kind, message.nbytes, time.perf_counter() - start)

    def receive(self, rows: int, width: int, dtype: torch.dtype, peer: int, tag: int) -> Incoming:
        """Begin to receive rows of a known shape."""
        buffer = wires.empty(rows, width, self.wire, dtype, self.mesh.device)
        work = dist.irecv(buffer, peer, tag=tag)
        if work is None:
            raise RuntimeError(f"rank {self.mesh.rank} is not in the group of rank {peer}")
        return Incoming(work, buffer, self.wire, dtype)

    def flush(self) -> None:
        """Wait until all that was sent has left."""
        for work, _ in self._sending:
            work.wait()
        self._sending.clear()

    def swap(
        self, outgoing: Sequence[Tensor], incoming: Sequence[int], width: int, dtype: torch.dtype, kind: str, key: int
    ) -> list[Tensor]:
        """Rows to and from every way of this stage, at once.

        Args:
            outgoing: what each way gets (empty for this one).
            incoming: how many rows come from each way.
        """
        start = time.perf_counter()
        operations, received = [], {}
        ways = self.mesh.layout.vertex
        # receives first, peers shifted so that no way is everybody's first
        for shift in range(1, ways):
            way = (self.mesh.way - shift) % ways
            if incoming[way]:
                received[way] = wires.empty(incoming[way], width, self.wire, dtype, self.mesh.device)
                operations.append(dist.P2POp(dist.irecv, received[way], self.mesh.rank_at(way=way)))
        sent = 0
        for shift in range(1, ways):
            way = (self.mesh.way + shift) % ways
            if outgoing[way].shape[0]:
                message = wires.encode(outgoing[way].detach(), self.wire, key)
                sent += message.nbytes
                operations.append(dist.P2POp(dist.isend, message, self.mesh.rank_at(way=way)))
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        self.ledger.add("vertex", kind, sent, time.perf_counter() - start)
        nothing = torch.empty(0, width, dtype=dtype, device=self.mesh.device)
        return [wires.decode(received[way], self.wire, dtype) if way in received else nothing for way in range(ways)]

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
