"""What of a timeline fits into memory: how many blocks it is cut into (`layout.blocks: auto`), and what is kept."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import torch

from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.base import Model
from trisect.partition.timeline import step_work
from trisect.plan.cluster import Device
from trisect.plan.memory import MemoryModel
from trisect.plan.parts import Parts, equal_rows
from trisect.plan.workload import Workload
from trisect.views.trace import trace_of

# of which nothing is asked but how buffers lie in memory
_HOST = Device(flops=1.0, gather={4: 1.0}, elementwise=1.0, memory=1 << 60)


def block_counts(training: int, times: int) -> list[int]:
    """Return numbers of blocks that so many steps allow, each about twice the one before; all runs have a step."""
    most = max(1, training // times)
    return sorted({1, most, *(1 << k for k in range(most.bit_length()) if 1 << k <= most)})


def with_blocks(
    layout: Layout, model: Model, timeline: Timeline, training: int, dtype: torch.dtype, free: int
) -> Layout:
    """Fill in the number of blocks that memory asks for, where the layout says `auto`.

    It is the fewest with which what a pass takes, as planning has it, is no more than half of a rank's memory; failing
    that, those that take least.

    Args:
        training: how many steps are trained on.
        free: bytes that all ranks of the layout may take together.
    """
    if layout.blocks != "auto":
        return layout
    entries = tuple(step_work(timeline, 1.0 if model.self_loops else 0.0))
    workload = Workload(
        layers=tuple(model.stack),
        head=model.head,
        vertices=timeline.vertices,
        entries=entries,
        features=model.in_channels,
        events=timeline.total_events,
        # nothing is cut yet: parts are taken to be equal, and to read nothing of each other
        parts_of=lambda count: Parts(equal_rows(timeline.vertices, count), (0,) * timeline.steps, measured=False),
        training=training,
        work=entries,
        timeline=True,
        aggregated=keeps_aggregation(model.stack, timeline, dtype, free // 4),
        fixed=timeline.x is None or timeline.x.dim() == 2,
        dtype=dtype,
    )
    memory, budget = MemoryModel(workload), free // 2 // layout.world
    whole = workload.plan(replace(layout, blocks=1))

    @cache
    def needed(blocks: int) -> float:
        found = memory.of(replace(whole, runs=workload.runs(blocks, layout.time)), _HOST)
        return found.total - found.of_data

    counts = block_counts(training, layout.time)
    for before, count in pairwise([0, *counts]):
        if needed(count) <= budget:
            between = range(before + 1, count)
            fewest = before + 1 + bisect_left(between, True, key=lambda blocks: needed(blocks) <= budget)
            return replace(layout, blocks=fewest)
    return replace(layout, blocks=min(counts, key=needed))


def keeps_aggregation(layers: Sequence[Any], timeline: Timeline, dtype: torch.dtype, budget: int) -> bool:
    """Say whether Â·x of the first layer is kept: where it can use that, and all steps fit the budget."""
    width = 2 if timeline.x is None else timeline.x.shape[-1]
    size = timeline.steps * timeline.vertices * width * dtype.itemsize
    return trace_of(layers[0], timeline=True).preaggregates and size <= budget
