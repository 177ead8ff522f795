"""Rows of several steps that cross between the ways of a moment, in one exchange, and their gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from trisect.layout import Wire
from trisect.runtime.exchange import Exchange
from trisect.runtime.timeline_part import StepHalo


class RowExchange:
    """The rows that the ways of a moment read of each other, over some steps.

    Args:
        halos: of each step.
        rows: own rows of a step.
        kind: under which the bytes are counted.
        wire: another form than the run's.
    """

    def __init__(
        self, exchange: Exchange, halos: Sequence[StepHalo], rows: int, kind: str, wire: Wire | None = None
    ) -> None:
        self.exchange, self.halos, self.rows, self.kind, self.wire = exchange, halos, rows, kind, wire
        self.ways = range(exchange.mesh.layout.vertex)

    def forward(self, frames: Tensor, key: int) -> list[Tensor]:
        """frames [steps, rows, width] → of each step [rows + received, width]: own rows, then those of each way."""
        same = frames.stride(0) == 0
        flat = frames[0] if same else frames.flatten(0, 1)
        outgoing = [flat.index_select(0, self._positions(way, same)) for way in self.ways]
        counts = [sum(halo.receive[way] for halo in self.halos) for way in self.ways]
        width = frames.shape[2]
        received = self.exchange.swap(outgoing, counts, width, frames.dtype, self.kind, key, wire=self.wire)
        pieces = [torch.split(received[way], [halo.receive[way] for halo in self.halos]) for way in self.ways]
        return [
            torch.cat([frames[t], *(pieces[way][t] for way in self.ways if pieces[way][t].shape[0])])
            for t in range(len(self.halos))
        ]

    def backward(self, gradients: Sequence[Tensor], key: int) -> Tensor:
        """Of each step the gradient of what `forward` gave → that of frames [steps, rows, width]."""
        width, dtype = gradients[0].shape[1], gradients[0].dtype
        parts = [torch.split(g, [self.rows, *halo.receive]) for g, halo in zip(gradients, self.halos, strict=True)]
        outgoing = [torch.cat([part[1 + way] for part in parts]) for way in self.ways]
        positions = [self._positions(way, False) for way in self.ways]
        counts = [p.numel() for p in positions]
        received = self.exchange.swap(outgoing, counts, width, dtype, self.kind, key, wire=self.wire)
        total = torch.cat([part[0] for part in parts])
        for where, gradient in zip(positions, received, strict=True):
            if where.numel():
                total.index_add_(0, where, gradient)
        return total.view(len(self.halos), self.rows, width)

    def _positions(self, way: int, same: bool) -> Tensor:
        """Which of all rows of all steps a way reads; with `same`, all steps are one."""
        return torch.cat([halo.send[way] + (0 if same else t * self.rows) for t, halo in enumerate(self.halos)])


class Redistribution:
    """P1's two exchanges: (own steps × all rows) to (all steps of a block × an own share of the rows), and back.

    Args:
        runs: of the block, one a moment.
        rows: of the part; a moment's share of them is an interval.
    """

    def __init__(self, exchange: Exchange, runs: Sequence[range], rows: int) -> None:
        self.exchange, self.runs = exchange, runs
        times = len(runs)
        self.bounds = [rows * moment // times for moment in range(times + 1)]
        self.own = exchange.mesh.moment

    @property
    def share(self) -> slice:
        """The rows whose temporal half this rank does."""
        return slice(self.bounds[self.own], self.bounds[self.own + 1])

    def by_rows(self, frames: Sequence[Tensor], key: int) -> Tensor:
        """Frames [own steps, rows, ·], side by side → [all steps, share, width]."""
        width, first = sum(frame.shape[2] for frame in frames), self.runs[0].start
        pieces = [
            torch.cat([frame[:, low:high] for frame in frames], 2).flatten(0, 1) for low, high in pairwise(self.bounds)
        ]
        share = self.share.stop - self.share.start
        whole = frames[0].new_empty(self.runs[-1].stop - first, share, width)
        places = [whole[run.start - first : run.stop - first].view(len(run) * share, width) for run in self.runs]
        swap = self.exchange.begin_swap(pieces, places, "redistribute", key, axis="time")
        places[self.own].copy_(pieces[self.own])
        swap.wait()
        return whole

    def by_steps(self, frames: Tensor, key: int) -> Tensor:
        """[all steps, share, width] → [own steps, rows, width]."""
        width, first = frames.shape[2], self.runs[0].start
        pieces = [frames[run.start - first : run.stop - first].flatten(0, 1) for run in self.runs]
        steps = len(self.runs[self.own])
        sizes = [high - low for low, high in pairwise(self.bounds)]
        counts = [steps * size for size in sizes]
        found = self.exchange.swap(pieces, counts, width, frames.dtype, "redistribute", key, axis="time")
        found[self.own] = pieces[self.own]
        return torch.cat([piece.view(steps, size, width) for piece, size in zip(found, sizes, strict=True)], 1)
