"""`Boundary`: what one stage gives the next crosses between two ranks, and its gradient back.

N·H of the boundary, forward and back, once for every step; as much again for each shared input that later stages read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from trisect.comm.incoming import Incoming
from trisect.schedule.action import Action
from trisect.views.door import Door
from trisect.views.exchange import Exchange, Place

# So many messages of a rank may be on their way in each direction; their buffers are held.
AHEAD = 8
# So many may lie in mapped memory that the next stage has not done with.
UNREAD = 4


class Boundary(Exchange):
    """One direction between this stage and a neighbour.

    Args:
        peer: the neighbour's rank.
        widths: of the rows and of each shared input, side by side in a message.
        back: whether gradients cross.
    """

    name: ClassVar[str] = "boundary"
    letter: ClassVar[str] = "b"
    axis: ClassVar[str] = "layer"
    paired: ClassVar[bool] = True

    @classmethod
    def bytes_of(cls, at: Place, action: Action, fetched: Sequence[int]) -> tuple[str, float]:
        """The rows of a chunk, or of the steps of a run, and the shared inputs that later stages read."""
        plan, rows = at.plan, at.plan.rows[at.part] * len(at.steps)
        if plan.chunks > 1:
            bounds = plan.chunk_rows[at.part]
            rows = bounds[action.chunk + 1] - bounds[action.chunk]
        width = sum(plan.boundary_widths(action.stage if action.back else action.stage + 1))
        return "gradients" if action.back else "activations", plan.wire_bytes(rows, width)

    def __init__(self, door: Door, peer: int, widths: Sequence[int], *, back: bool) -> None:
        self._door, self._peer, self._widths, self.back = door, peer, list(widths), back
        self._name = "boundary back" if back else "boundary"
        self._sent = 0
        self._coming: deque[tuple[int, int]] = deque()
        self._expected: dict[int, Incoming | None] = {}

    def expect(self, cells: Iterable[tuple[int, int]]) -> None:
        """Make room for messages, (cell, rows) each in the order in which they come; some of them ahead."""
        self._coming.extend(cells)
        while self._coming and len(self._expected) < AHEAD:
            cell, rows = self._coming.popleft()
            incoming = None
            if rows:
                door, width = self._door, sum(self._widths)
                tag = door.tag(self._name, "", block=cell)
                incoming = door.transport.receive(rows, width, door.dtype, self._peer, tag)
            self._expected[cell] = incoming

    def receive(self, cell: int) -> list[Tensor] | None:
        """Wait for the message of a cell; return its tensors [rows, width], or None for one without rows."""
        with self._door.event("wait", "boundary", None, back=self.back, peer=self._peer, block=cell):
            incoming = self._expected[cell]
            message = None if incoming is None else incoming.wait()
        del self._expected[cell]
        self.expect(())
        if message is None:
            return None
        # a message of one tensor is used as it is; `contiguous` copies the columns of several
        return [rows.contiguous() for rows in torch.split(message, self._widths, 1)]

    def send(self, cell: int, tensors: Sequence[Tensor | None], rows: int) -> None:
        """Let the rows of a cell, or their gradients, go; an absent tensor counts as zeros."""
        if not rows:
            return
        door, transport = self._door, self._door.transport
        device = door.mesh.device
        parts = [
            torch.zeros(rows, width, dtype=door.dtype, device=device) if tensor is None else tensor.reshape(rows, width)
            for tensor, width in zip(tensors, self._widths, strict=True)
        ]
        message = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        kind, tag = "gradients" if self.back else "activations", door.tag(self._name, "", block=cell)
        # where the peer falls behind, its pages are not what grows
        once = door.rare or transport.unread(self._peer) >= UNREAD
        with door.event("post", "boundary", None, back=self.back, peer=self._peer, block=cell):
            key = door.key(self._name, cell)
            transport.send(message, self._peer, tag, "layer", kind, key, mark=self._sent, once=once)
        self._sent += 1
        transport.flush(self._sent - AHEAD)
