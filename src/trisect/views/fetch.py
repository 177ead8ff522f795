"""`fetch`: rows of other parts that a loss on pairs reads stand behind the own ones of each step.

Both sides know the lists. All steps go in one message for each pair of parts; in backward the gradients of fetched rows
go back to their owners, who add them up.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trisect.comm.rows import Rows, Shape
from trisect.comm.wire import encoded_bytes
from trisect.layout import Wire
from trisect.ops.memory import empty
from trisect.ops.spmm.collect import add_rows
from trisect.schedule.action import Action
from trisect.views.door import Door
from trisect.views.exchange import Exchange, Place

# [step][reader][owner]: positions among the owner part's rows, int64, all different; none where the reader is the owner
Lists: TypeAlias = Sequence[Sequence[Sequence[Tensor]]]


class Fetch(Exchange):
    """Each part's loss reads its own rows and the rows of others at the far ends of its pairs."""

    name: ClassVar[str] = "fetch"
    letter: ClassVar[str] = "f"

    @classmethod
    def bytes_of(cls, at: Place, action: Action, fetched: Sequence[int]) -> tuple[str, float]:
        """What the loss samples decides how many rows cross at each step."""
        rows = sum(fetched[step] for step in at.steps) if fetched else 0
        return "fetch", at.plan.wire_bytes(rows, action.width)


def fetch_rows(door: Door, call: Hashable, token: Tensor, x: Tensor, lists: Lists) -> tuple[list[Tensor], Tensor]:
    """Return of each step the own rows and behind them those that this part reads, by owner, and the next token.

    Args:
        x: [steps, rows, channels].
        lists: of each step.

    Returns: of each step [rows + fetched rows, channels].
    """
    *frames, token = _Fetch.apply(door, call, token, x, lists)  # type: ignore[no-untyped-call]
    return frames, token


def fetch_bytes(rows: int, channels: int, wire: Wire, dtype: torch.dtype) -> int:
    """Return the bytes that leave all parts, forward or backward.

    Args:
        rows: in the lists of all steps, readers and owners.
    """
    return encoded_bytes(rows, channels, wire, dtype)


class _Fetch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, door: Door, call: Hashable, token: Tensor, x: Tensor, lists: Lists) -> tuple[Tensor, ...]:
        steps, own, channels = x.shape
        part, parts = door.mesh.part_index, range(door.mesh.layout.vertex)
        # of each step and owner, how many rows come; of each reader, the own rows of all steps that go
        counts = [[owned.numel() for owned in step[part]] for step in lists]
        none = torch.empty(0, dtype=torch.int64, device=x.device)
        sends = [torch.cat([none, *(step[q][part] + t * own for t, step in enumerate(lists))]) for q in parts]
        ctx.door, ctx.call, ctx.counts, ctx.sends = door, call, counts, sends
        ctx.shape, ctx.dtype, ctx.device = x.shape, x.dtype, x.device
        flat = x.reshape(steps * own, channels)
        outgoing = [Rows(flat, rows) for rows in sends]
        received = _swapped(door, call, outgoing, [sum(step[q] for step in counts) for q in parts], back=False)
        pieces = [torch.split(rows, [step[q] for step in counts]) for q, rows in zip(parts, received, strict=True)]
        return (*(torch.cat([x[t], *(piece[t] for piece in pieces)]) for t in range(steps)), torch.zeros(()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *frames, token = gradients
        if not ctx.needs_input_grad[3]:
            return None, None, token, None, None
        steps, own, channels = ctx.shape
        gx = empty(ctx.shape, ctx.dtype, ctx.device)
        pieces = [torch.split(frame, [own, *counts]) for frame, counts in zip(frames, ctx.counts, strict=True)]
        none = gx[:0].reshape(0, channels)
        outgoing = [torch.cat([none, *(piece[1 + q] for piece in pieces)]) for q in range(len(ctx.sends))]
        received = _swapped(ctx.door, ctx.call, outgoing, [rows.numel() for rows in ctx.sends], back=True)
        for step, piece in zip(gx.unbind(), pieces, strict=True):
            step.copy_(piece[0])
        flat = gx.view(steps * own, channels)
        for rows, gradient in zip(ctx.sends, received, strict=True):
            add_rows(flat, rows, gradient)
        return None, None, token, gx, None


def _swapped(
    door: Door, call: Hashable, outgoing: Sequence[Tensor | Rows], rows: Sequence[int], *, back: bool
) -> Sequence[Tensor]:
    """Return what each part gives to this one, [rows, channels] each."""
    width, dtype = outgoing[0].shape[1], outgoing[0].dtype
    shapes = [Shape(count, width, dtype) for count in rows]
    key = "fetch-gradients" if back else "fetch"
    return door.swap(Fetch.name, call, outgoing, shapes, "fetch", back=back, key=key).wait()
