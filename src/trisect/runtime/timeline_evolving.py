"""A layer whose state is its weight (EvolveGCN): the temporal half comes first, the spatial half uses what it gives."""

from __future__ import annotations

import torch
from torch import Tensor

from trisect.nn.evolving import Evolving
from trisect.runtime.timeline_layer import LayerWork
from trisect.runtime.timeline_part import StepHalo
from trisect.runtime.timeline_rows import RowExchange
from trisect.runtime.timeline_visit import go_back, known


class EvolvingWork(LayerWork):
    """Weights evolve; variant H reads a summary of each snapshot, to which all ways give candidates.

    Every way evolves the same weights and holds its own share of their gradient; the shares are summed with the
    parameters' gradients, and candidates' gradients by their owners.
    """

    layer: Evolving
    candidates_of: list[int]

    def drop(self) -> None:
        """Forget the block."""
        super().drop()
        self._candidates: Tensor | None = None
        self._d_candidates: Tensor | None = None
        self._gathered: list[Tensor] = []
        self._summaries: Tensor | None = None
        self._d_summaries: Tensor | None = None
        self._weights: Tensor | None = None
        self._merge: RowExchange | None = None

    def summary(self) -> None:
        """What the GRU reads of each own step, or this way's candidates for it."""
        if len(self.candidates_of) == 1:
            self._summaries = self.layer.summaries(self.input, len(self.at.run))
            return
        pick = known(self.layer.summary).candidates
        self._candidates = torch.stack([pick(frame) for frame in self.frames().unbind()])

    def share_candidates(self) -> None:
        """To all ways."""
        own = self.exchange.mesh.way
        everyone = torch.arange(self.candidates_of[own])
        none = everyone[:0]
        halo = StepHalo(
            tuple(none if way == own else everyone for way in range(len(self.candidates_of))),
            tuple(0 if way == own else count for way, count in enumerate(self.candidates_of)),
        )
        # exact on the wire, since all ways must evolve the same weights
        self._merge = RowExchange(
            self.exchange, [halo] * len(self.at.run), self.candidates_of[own], "summary", "float32"
        )
        found = self._merge.forward(known(self._candidates).detach(), 0)
        self._gathered = [rows.requires_grad_(self.at.grad) for rows in found]

    def temporal(self, chunk: int) -> None:
        """The weights of the own steps; where nothing crosses, those of all steps from the block's first on."""
        visit = self.at
        steps = self._evolved()
        if not steps:
            return
        if self.along == "none":
            frames = torch.empty(len(steps), self.layer.in_channels, 0, dtype=self.dtype, device=self.device)
        else:
            if self._gathered:
                order, merge = self._order(), known(self.layer.summary).merge
                self._summaries = torch.stack([merge(rows.index_select(0, order)) for rows in self._gathered])
            frames = known(self._summaries)
        weights = self.recurrence.forward(visit.block, 0, [frames], [self.along != "none"], self.part.rows, steps.start)
        first = visit.run.start - steps.start
        self._weights = weights[first : first + len(visit.run)].requires_grad_(visit.grad)

    def _evolved(self) -> range:
        """The steps that this rank evolves its weights over."""
        visit = self.at
        if self.along != "none":
            return visit.run
        whole = visit.plan.steps(visit.block)
        if visit.block < visit.plan.blocks - 1:
            return whole
        return range(whole.start, visit.run.stop) if visit.run else range(0)

    def _order(self) -> Tensor:
        """Candidates in the order of ways, so that all ways break ties alike (own ones stand first)."""
        own, counts = self.exchange.mesh.way, self.candidates_of
        before = sum(counts[:own])
        positions = torch.arange(sum(counts))
        return torch.cat(
            [positions[counts[own] : counts[own] + before], positions[: counts[own]], positions[counts[own] + before :]]
        )

    def prepare(self) -> None:
        """Of all own steps at once."""
        self.message = self.layer.prepare(self.frames(), known(self._weights))

    def spatial(self) -> None:
        """The convolution of each own step with its weight."""
        visit, weights = self.at, known(self._weights)
        if self.reads:
            contexts = visit.contexts(self.number, columns=True)
            pairs = zip(self.columns, contexts, weights.unbind(), strict=True)
            self.y = torch.stack(
                [
                    self.layer.combine(columns, visit.snapshots[t], context, weight)
                    for t, (columns, context, weight) in enumerate(pairs)
                ]
            )
        else:
            aggregated = self.aggregated()
            snapshots = visit.snapshots if aggregated is None else []
            noise = None if visit.noise is None else visit.noise.at(layer=self.number)
            self.y = self.layer.over_steps(self.input, snapshots, weights, noise, visit.run.start, aggregated)
        self.out = self.y.detach()

    def spatial_back(self) -> None:
        """From the gradient of the output to those of the input, the weights and what was read."""
        go_back(self.y, self.d_out)
        self.y = self.d_out = None

    def temporal_back(self, chunk: int) -> None:
        """Back through the evolution of the weights."""
        visit = self.at
        steps = self._evolved()
        if not steps:
            return
        found = None if self._weights is None else self._weights.grad
        if found is not None and len(steps) > len(visit.run):
            first = visit.run.start - steps.start
            whole = found.new_zeros(len(steps), *found.shape[1:])
            whole[first : first + len(visit.run)] = found
            found = whole
        (self._d_summaries,) = self.recurrence.backward(visit.block, 0, found)
        if self._gathered:
            go_back(self._summaries, self._d_summaries)
            self._summaries = self._d_summaries = None

    def return_candidates(self) -> None:
        """Their gradients, to their owners."""
        gradients = [torch.zeros_like(rows) if rows.grad is None else rows.grad for rows in self._gathered]
        self._gathered = []
        self._d_candidates = known(self._merge).backward(gradients, 0)

    def summary_back(self) -> None:
        """To the rows that were chosen."""
        go_back(self._summaries, self._d_summaries)
        go_back(self._candidates, self._d_candidates)
        self._summaries = self._candidates = self._d_summaries = self._d_candidates = None
