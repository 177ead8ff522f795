"""`Boundary`: what one stage gives the next crosses between two ranks, and its gradient back.

N·H of the boundary, forward and back, once for every step; as much again for each shared input that later stages read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from trisect.comm.rows import Shape
from trisect.schedule.action import Action
from trisect.views.door import Arriving, Door
from trisect.views.exchange import Exchange, Place

# So many messages may be on their way to a neighbour; their buffers are held.
AHEAD = 8
# So many may lie in mapped memory that the next stage has not done with.
UNREAD = 4


class Boundary(Exchange):
    """Between this stage and a neighbour.

    Args:
        peer: the neighbour's rank.
        widths: of the rows and of each shared input by name, side by side in a message.
        later: whether the neighbour is the later stage, so that rows leave and gradients come.
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

    def __init__(self, door: Door, peer: int, widths: Mapping[str, int], *, later: bool) -> None:
        self._door, self._peer, self._widths, self._later = door, peer, widths, later
        self._sent = 0

    def expect(self, cells: Iterable[tuple[int, int]]) -> None:
        """Make room for messages, (cell, rows) each in the order in which they come; some of them ahead."""
        door, width = self._door, sum(self._widths.values())
        self._arriving = Arriving(
            door.receive(self, None, Shape(rows, width, door.dtype), self._peer, back=self._later, block=cell)
            for cell, rows in cells
            if rows
        )

    def receive(self, shape: tuple[int, ...]) -> dict[str, Tensor]:
        """Wait for the next message; return its tensors, [*shape, width] each."""
        like: Any = {"dtype": self._door.dtype, "device": self._door.mesh.device}
        widths = list(self._widths.values())
        message = next(self._arriving) if math.prod(shape) else torch.zeros(0, sum(widths), **like)
        # a message of one tensor is used as it is; `contiguous` copies the columns of several
        parts = [part.contiguous().view(*shape, part.shape[1]) for part in torch.split(message, widths, 1)]
        return dict(zip(self._widths, parts, strict=True))

    def send(self, cell: int, tensors: Mapping[str, Tensor], rows: int) -> None:
        """Let the rows of a cell, or their gradients, go; an absent tensor counts as zeros."""
        if not rows:
            return
        door, back = self._door, not self._later
        like: Any = {"dtype": door.dtype, "device": door.mesh.device}
        parts = [
            tensors[name].detach().reshape(rows, width) if name in tensors else torch.zeros(rows, width, **like)
            for name, width in self._widths.items()
        ]
        message, kind = parts[0] if len(parts) == 1 else torch.cat(parts, 1), "gradients" if back else "activations"
        # where the peer falls behind, its pages are not what grows
        once = door.rare or door.transport.unread(self._peer) >= UNREAD
        door.send(self, None, message, self._peer, kind, back=back, block=cell, mark=self._sent, once=once)
        self._sent += 1
        door.transport.flush(self._sent - AHEAD)
