"""Cuts that no partitioner would choose: vertices in turn, parts of one vertex, empty chunks and empty runs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from exact_case import ExactCase
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.graph.timeline.timeline import Timeline
from trisect.partition.cut import boundary_of
from trisect.partition.partition import Partition
from trisect.partition.timeline import union_graph
from trisect.train import assemble, ranks

CUTS = ("turn", "stretch", "random", "single")
"""Vertices go to parts in turn, in equal stretches, by chance, or all but one of each part to the last."""


@contextmanager
def cut_by_hand(case: ExactCase) -> Iterator[None]:
    """Let the launcher's part of a run cut as the case says."""

    def cut_graph(adjacency: Adjacency, parts: int, chunks: int = 1, *values: Any, **named: Any) -> Partition:
        owner = assign(case.cut, adjacency.rows, parts, case.data["seed"])
        chunk = assign(case.cut, adjacency.rows, chunks, case.data["seed"] + 1)
        return Partition.from_assignment(owner * chunks + chunk, parts, chunks, first=boundary_of(adjacency, owner))

    def cut_timeline(timeline: Timeline, parts: int, *values: Any, **named: Any) -> Partition:
        owner = assign(case.cut, timeline.vertices, parts, case.data["seed"])
        return Partition.from_assignment(owner, parts, first=boundary_of(union_graph(timeline), owner))

    def deal(work: Sequence[float], blocks: int, times: int) -> tuple[tuple[range, ...], ...]:
        return uneven_runs(len(work), blocks, times, case.data["seed"])

    with ExitStack() as stack:
        if case.cut != "layout":
            files = sys.modules[ranks.Cut.__module__]  # which writes the shards of a graph
            stack.enter_context(patch.object(files, "cut_graph", cut_graph))
            stack.enter_context(patch.object(ranks, "cut_timeline", cut_timeline))
        if case.runs:
            for module in (assemble, ranks):
                stack.enter_context(patch.object(module, "deal", deal))
        yield


def assign(how: str, count: int, parts: int, seed: int) -> Tensor:
    """The part of each vertex, int64 [count]; where there are vertices enough, no part is empty."""
    vertex = torch.arange(count)
    if how == "turn":
        return vertex % parts
    if how == "stretch":
        return vertex * parts // count
    if how == "single":
        return torch.clamp(vertex, max=parts - 1)
    generator = torch.Generator().manual_seed(seed)
    part = torch.randint(parts, (count,), generator=generator)
    each = torch.randperm(count, generator=generator)[:parts]
    part[each] = torch.arange(parts)[: each.numel()]
    return part


def uneven_runs(steps: int, blocks: int, times: int, seed: int) -> tuple[tuple[range, ...], ...]:
    """Runs of each block, of any length, some of them empty; a block has a step at least, if there are enough."""
    generator = torch.Generator().manual_seed(seed)
    inner = (1 + torch.randperm(steps - 1, generator=generator)[: blocks - 1]).sort().values.tolist()
    ends = [0, *inner, steps]
    runs = []
    for start, stop in itertools.pairwise(ends):
        cuts = torch.randint(start, stop + 1, (times - 1,), generator=generator).sort().values.tolist()
        bounds = [start, *cuts, stop]
        runs.append(tuple(range(a, b) for a, b in itertools.pairwise(bounds)))
    return tuple(runs)
