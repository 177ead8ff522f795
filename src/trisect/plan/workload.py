"""`Workload`: a model and the sizes of its data, before anything is cut; and its plan under a layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import nn

from trisect.layout import Layout
from trisect.layout.steps import Steps
from trisect.nn.base import Layer
from trisect.partition.timeline import deal
from trisect.plan.parts import Parts, equal_rows
from trisect.plan.plan import make_plan
from trisect.plan.stages import layer_costs, stage_bounds
from trisect.views.plan import Plan, Runs
from trisect.views.timecut import equal_shares
from trisect.views.trace import LayerTrace, trace_of


@dataclass(frozen=True, eq=False)
class Workload:
    """All that a plan must know of a model and its data.

    Attributes:
        layers: of the model; they may lie on the meta device. `head` and `extra`: see `make_plan`.
        vertices, features: how many there are.
        entries: of the prepared matrix of each step, self-loops included.
        distinct: the share of these entries that a matrix has in memory, where edges come several times in its window.
        overlaid: entries of two steps that follow each other, laid over each other, for each entry of the two.
        training: how many steps are trained on; 1 for a graph.
        loss_from: the first step whose outputs have a loss.
        events: edges as they are stored, of all steps together.
        work: of each training step, by which steps are dealt to ranks.
        parts_of: cuts the vertices into so many parts, or says how they would fall.
        aggregated: whether the first layer's sum over neighbours is kept from before the first epoch.
        fixed: whether features are the same in all steps.
        symmetric: whether the prepared matrix is its own transpose.
        pairs: that the loss scores at a training step; `pair_channels` how wide what it keeps of a pair is.
        judged_pairs: of pairs that evaluation scores, how many it does at once, and how many it keeps for the run.
        remembered: says how many bytes a loss on pairs keeps of earlier steps, where these are dealt to so many ranks.
        judged: the largest share of a step's rows that evaluation measures at once, of a task on single vertices.
        copies: how many numbers the optimiser keeps for each that is trained.
        described: whether the data are described and not there.
        step: how often an epoch steps.
    """

    layers: tuple[nn.Module, ...]
    head: Layer | None
    vertices: int
    entries: tuple[int, ...]
    features: int
    events: int
    parts_of: Callable[[int], Parts]
    extra: int = 0
    distinct: float = 1.0
    overlaid: float = 1.0
    training: int = 1
    loss_from: int = 0
    work: tuple[int, ...] = (1,)
    timeline: bool = False
    aggregated: bool = False
    fixed: bool = False
    symmetric: bool = False
    fetches: bool = False
    pairs: float = 0.0
    pair_channels: int = 0
    judged_pairs: tuple[int, int] = (0, 0)
    remembered: Callable[[int], int] = lambda times: 0
    judged: float = 1.0
    copies: int = 2
    described: bool = False
    dtype: torch.dtype = torch.float32
    step: Steps = field(default_factory=Steps)
    _parts: dict[int, Parts] = field(default_factory=dict, repr=False)
    _runs: dict[tuple[int, int], Runs] = field(default_factory=dict, repr=False)

    @cached_property
    def outline(self) -> tuple[LayerTrace, ...]:
        """The plan of each layer."""
        return tuple(trace_of(layer, timeline=self.timeline) for layer in self.layers)

    @property
    def steps(self) -> int:
        """How many steps the data have."""
        return len(self.entries)

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        head = 0 if self.head is None else sum(p.numel() for p in self.head.parameters() if p.requires_grad)
        return sum(layer.parameters for layer in self.outline) + head + self.extra

    def parts(self, count: int) -> Parts:
        """Give the vertices cut into so many parts; each cut is made once."""
        if count not in self._parts:
            self._parts[count] = self.parts_of(count)
        return self._parts[count]

    def runs(self, blocks: int, times: int) -> Runs:
        """Give the steps of a timeline dealt to ranks along time; each way to deal them is made once."""
        if (blocks, times) not in self._runs:
            self._runs[blocks, times] = deal(self.work[: self.training], blocks, times)
        return self._runs[blocks, times]

    def plan(self, layout: Layout) -> Plan:
        """Give the plan of the model under a layout, as ranks would make them."""
        in_chunks = self.step.kind == "chunk" and not self.timeline
        layout = self.step.laid_out(layout) if in_chunks else layout
        parts = self.parts(1 if layout.spatial == "redistribute" else layout.vertex)
        rows = equal_rows(self.vertices, layout.vertex) if layout.spatial == "redistribute" else parts.rows
        plan = make_plan(
            self.layers,
            self.head,
            layout,
            bounds=stage_bounds(layer_costs(self.outline, aggregated=self.aggregated), layout.layer),
            runs=self.runs(layout.block_count, layout.time) if self.timeline else ((range(1),),),
            rows=rows,
            chunk_rows=None if self.timeline else [equal_shares(count, layout.chunks) for count in rows],
            remote=parts.remote,
            timeline=self.timeline,
            aggregated=self.aggregated,
            fixed=self.fixed,
            fetches=self.fetches and layout.vertex > 1,
            symmetric=self.symmetric,
            stale=layout.recipe is not None and not self.timeline,
            batches=self.step.batches if in_chunks else 1,
            extra=self.extra,
            dtype=self.dtype,
        )
        if layout.vertex > 1 and layout.spatial == "auto" and plan.across == "redistribute":
            return self.plan(replace(layout, spatial="redistribute"))
        return plan

    def fetched_rows(self, layout: Layout) -> list[int]:
        """Estimate the output rows that the loss reads of other parts, of each step: of half of the pairs, which are
        drawn, the destination lies anywhere.
        """
        if not self.fetches or layout.vertex == 1:
            return [0] * self.steps
        drawn = self.pairs / 2 / layout.vertex / self.vertices  # by a part, for each row of others
        return [round(self.vertices * (layout.vertex - 1) * (1.0 - math.exp(-drawn)))] * self.steps
