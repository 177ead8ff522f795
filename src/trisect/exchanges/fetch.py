"""Fetch: output rows of other parts that the loss reads cross before it, and their gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from trisect.comm.incoming import Swap
from trisect.comm.rows import Shape
from trisect.exchanges.base import Exchange, crossings, made
from trisect.exchanges.facts import Facts
from trisect.exchanges.port import Port
from trisect.nn.halves import HalfKind
from trisect.schedule.action import Action


class Fetch(Exchange["tuple[Swap, Tensor, _Lists]"]):
    """Tasks on pairs: each part's loss reads its own rows and the rows of others at the far ends of its pairs."""

    name: ClassVar[str] = "fetch"
    axis: ClassVar[str] = "vertex"
    letter: ClassVar[str] = "f"
    moves = "output"

    def stands_before(self, facts: Facts, half: int) -> bool:
        """It comes before the half that hands outputs to the loss."""
        return facts.halves[half].kind is HalfKind.OUTPUT and facts.fetches and facts.parts > 1

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """What the loss samples decides how many rows cross at each step."""
        total = 0
        for (_, block, _), count in crossings(posts).items():
            rows = sum(fetched[step] for step in facts.steps(block)) if fetched else 0
            total += count * facts.wire_bytes(rows, facts.out_channels)
        return {"fetch": total}

    def post(self, action: Action, port: Port) -> tuple[Swap, Tensor, _Lists]:
        """Let the rows that others want go, or the gradients of theirs."""
        (rows,) = port.crossed(action)
        lists = _Lists(port, action)
        if action.back:
            if rows is None:
                rows = torch.zeros(lists.total, port.facts.out_channels, dtype=port.dtype, device=port.device)
            parts = [torch.split(step, [lists.own, *counts]) for step, counts in lists.ragged(rows)]
            outgoing = [torch.cat([part[1 + k] for part in parts]) for k in range(port.facts.parts)]
            kept = torch.cat([part[0] for part in parts])
            counts = [positions.numel() for positions in lists.sends]
        else:
            kept, counts = made(rows, action), lists.received
            outgoing = [kept.index_select(0, positions) for positions in lists.sends]
        shapes = [Shape(count, port.facts.out_channels, port.dtype) for count in counts]
        swap = port.transport.begin_swap(outgoing, shapes, "fetch", port.key(action))
        return swap, kept, lists

    def wait(self, action: Action, port: Port, posted: tuple[Swap, Tensor, _Lists]) -> None:
        """Put the rows of others behind the own of each step; or add up the gradients of own rows."""
        swap, kept, lists = posted
        received = list(swap.wait())
        if action.back:
            total = kept.clone()
            for positions, gradient in zip(lists.sends, received, strict=True):
                if positions.numel():
                    total.index_add_(0, positions, gradient)
            port.deliver(action, [total])
            return
        tensors = [torch.split(rows, [counts[k] for counts in lists.counts]) for k, rows in enumerate(received)]
        frames = kept.view(len(lists.counts), lists.own, -1)
        steps = [torch.cat([frames[t], *(part[t] for part in tensors)]) for t in range(len(lists.counts))]
        port.note_fetched(action, [step.shape[0] for step in steps])
        port.deliver(action, [torch.cat(steps)])


class _Lists:
    """Which rows cross at each step of a block."""

    def __init__(self, port: Port, action: Action) -> None:
        steps, own, self.own = port.steps_of(action), port.mesh.part_index, port.facts.rows[port.mesh.part_index]
        wanted = [port.readers(step) for step in steps]
        self.counts = [[rows.numel() for rows in step[own]] for step in wanted]
        self.received = [sum(counts[k] for counts in self.counts) for k in range(port.facts.parts)]
        self.sends: list[Tensor] = [
            torch.cat([step[reader][own] + t * self.own for t, step in enumerate(wanted)])
            for reader in range(port.facts.parts)
        ]
        self.total = len(steps) * self.own + sum(self.received)

    def ragged(self, rows: Tensor) -> list[tuple[Tensor, list[int]]]:
        """Each step's rows, and how many of them are of each part."""
        lengths = [self.own + sum(counts) for counts in self.counts]
        return list(zip(torch.split(rows, lengths), self.counts, strict=True))
