"""`fetch`: rows of other parts that a loss on pairs reads stand behind the own ones of each step.

Both sides know the lists. All steps go in one message for each pair of parts; in backward the gradients of fetched rows
go back to their owners, who add them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from trisect.comm.rows import Rows, Shape
from trisect.ops.memory import empty
from trisect.ops.spmm.collect import add_rows
from trisect.schedule.action import Action
from trisect.views.door import Door
from trisect.views.exchange import Exchange, Place
from trisect.views.verbs import Asked

# [step][reader][owner]: positions among the owner part's rows, int64, all different; none where the reader is the owner
Lists: TypeAlias = Sequence[Sequence[Sequence[Tensor]]]


class Fetch(Exchange):
    """Each part's loss reads its own rows and the rows of others at the far ends of its pairs.

    Args:
        lists: of each step.
    """

    name: ClassVar[str] = "fetch"
    letter: ClassVar[str] = "f"

    @classmethod
    def bytes_of(cls, at: Place, action: Action, fetched: Sequence[int]) -> tuple[str, float]:
        """What the loss samples decides how many rows cross at each step."""
        rows = sum(fetched[step] for step in at.steps) if fetched else 0
        return "fetch", at.plan.wire_bytes(rows, action.width)

    def __init__(self, door: Door, call: Asked, lists: Lists) -> None:
        self._door, self._call, self._lists = door, call, lists

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return of each step the own rows and behind them those that this part reads, by owner."""
        steps, own, channels = self._shape = x.shape
        lists, part, parts = self._lists, self._door.mesh.part_index, range(self._door.mesh.layout.vertex)
        # of each step and owner, how many rows come; of each reader, the own rows of all steps that go
        counts = self._counts = [[owned.numel() for owned in step[part]] for step in lists]
        none = torch.empty(0, dtype=torch.int64, device=x.device)
        self._sends = [torch.cat([none, *(step[q][part] + t * own for t, step in enumerate(lists))]) for q in parts]
        flat = x.reshape(steps * own, channels)
        outgoing = [Rows(flat, rows) for rows in self._sends]
        received = self._swapped(outgoing, [sum(step[q] for step in counts) for q in parts], back=False)
        pieces = [torch.split(rows, [step[q] for step in counts]) for q, rows in zip(parts, received, strict=True)]
        return [torch.cat([x[t], *(piece[t] for piece in pieces)]) for t in range(steps)]

    def backward(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the gradients of own rows, those that other parts found included."""
        first, (_, own, channels) = gradients[0], self._shape
        pieces = [torch.split(frame, [own, *counts]) for frame, counts in zip(gradients, self._counts, strict=True)]
        gx = torch.stack([piece[0] for piece in pieces], out=empty(self._shape, first.dtype, first.device))
        flat = gx.view(-1, channels)
        outgoing = [torch.cat([flat[:0], *(piece[1 + q] for piece in pieces)]) for q in range(len(self._sends))]
        received = self._swapped(outgoing, [rows.numel() for rows in self._sends], back=True)
        for rows, gradient in zip(self._sends, received, strict=True):
            add_rows(flat, rows, gradient)
        return gx

    def _swapped(self, outgoing: Sequence[Tensor | Rows], rows: Sequence[int], *, back: bool) -> Sequence[Tensor]:
        """Return what each part gives to this one, [rows, channels] each."""
        shapes = [Shape(count, outgoing[0].shape[1], outgoing[0].dtype) for count in rows]
        key = "fetch-gradients" if back else "fetch"
        received: Sequence[Tensor] = self._door.swap(
            self, self._call, outgoing, shapes, "fetch", back=back, key=key
        ).wait()
        return received
