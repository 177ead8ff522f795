"""A timeline cut: consecutive runs of steps with equal work, and one set of vertex parts for all steps."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from trisect.errors import LayoutError
from trisect.graph.adjacency import Adjacency
from trisect.graph.assemble import Edges, assemble
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Partitioner
from trisect.partition import metis, stream
from trisect.partition.child import ChildError, run_child
from trisect.partition.cut import boundary_of
from trisect.partition.method import choose_method
from trisect.partition.partition import Partition

Runs = tuple[tuple[range, ...], ...]

MOST_EVENTS = 50_000_000


def step_work(timeline: Timeline, vertex: float = 1.0) -> list[int]:
    """The work of each step: events that reach into its smoothed snapshot (an undirected one twice), and vertices.

    Args:
        vertex: what a vertex costs, in events.
    """
    last = timeline.offsets[timeline.first + 1 : timeline.first + timeline.steps + 1]
    first = [timeline.smoothing.first_step(timeline.first + step) for step in range(timeline.steps)]
    events = (last - timeline.offsets[torch.tensor(first, dtype=torch.int64)]) * (2 if timeline.undirected else 1)
    return [int(count) + round(vertex * timeline.vertices) for count in events]


def balanced(work: Sequence[int], parts: int) -> list[range]:
    """Consecutive runs, the heaviest of them as light as it can be; none is empty where there are enough steps."""
    count = len(work)
    if count <= parts:
        return [range(min(k, count), min(k + 1, count)) for k in range(parts)]
    low, high = max(*work, -(-sum(work) // parts)), sum(work)
    while low < high:
        middle = (low + high) // 2
        if _fill(work, parts, middle)[-1].stop == count:
            high = middle
        else:
            low = middle + 1
    return _fill(work, parts, low)


def _fill(work: Sequence[int], parts: int, limit: int) -> list[range]:
    """Runs as long as the limit allows, each but the last leaving at least a step to every run after it."""
    runs, start = [], 0
    for part in range(parts):
        most = len(work) - (parts - part - 1)
        stop, load = start, 0
        while stop < most and load + work[stop] <= limit:
            load += work[stop]
            stop += 1
        runs.append(range(start, stop))
        start = stop
    return runs


def deal(work: Sequence[int], blocks: int, run_count: int, first: int = 0) -> Runs:
    """runs[block][moment]: steps first, first + 1, … cut into blocks, the steps of each dealt to the ranks along time.

    Args:
        work: of each of these steps.
    """
    runs = []
    for block in balanced(work, blocks):
        inner = balanced(work[block.start : block.stop], run_count)
        shift = first + block.start
        runs.append(tuple(range(shift + run.start, shift + run.stop) for run in inner))
    return tuple(runs)


def cut_timeline(timeline: Timeline, parts: int, seed: int = 0, method: Partitioner = "metis") -> Partition:
    """One partition of the vertices for all steps.

    Args:
        method: `metis`: on the graph of all events, an edge as heavy as it occurs often. `hypergraph`: Mt-KaHyPar on
            nets of a vertex and its readers in a smoothed snapshot, whose cut is the number of halo rows itself.
            `stream`: as METIS, in memory that is linear in the vertices.
    """
    if timeline.vertices < parts:
        raise LayoutError(
            f"layout.vertex is {parts}, more than the timeline's {timeline.vertices} vertices; use fewer parts."
        )
    if parts == 1:
        return Partition(torch.arange(timeline.vertices), (0, timeline.vertices))
    union = union_graph(timeline)
    method = choose_method(union.rows, union.entries, method)
    if method == "hypergraph":
        assignment = _cut_hypergraph(timeline, parts, seed)
    elif method == "stream":
        assignment = stream.cut(union.as_symmetric(), parts, seed, _vertex_weights(timeline, union), counted=True)
    else:
        weights = _vertex_weights(timeline, union)
        cut = None
        if timeline.vertices >= 2 * parts and metis.is_installed():
            cut = metis.cut_arrays(_without_loops(union, weights), parts, seed)
        assignment = metis.intervals(weights.double(), parts) if cut is None else cut
    # rows that take part in an exchange stand first, so that the others can be computed while it is on its way
    return Partition.from_assignment(assignment, parts, first=boundary_of(union, assignment))


def union_graph(timeline: Timeline) -> Adjacency:
    """All events in both directions (the latest, where there are very many); values say how often a pair occurs."""
    last = int(timeline.offsets[timeline.first + timeline.steps])
    first = max(int(timeline.offsets[timeline.first]), last - MOST_EVENTS)
    edges = Edges(timeline.src.cpu(), timeline.dst.cpu(), first=first, last=last, both=True)
    pointers, indices, values = assemble(edges, timeline.vertices, timeline.vertices)
    return Adjacency.from_csr(pointers, indices, values, timeline.vertices)


def halo_rows(timeline: Timeline, owner: Tensor, parts: int, steps: range | None = None) -> Tensor:
    """How many rows of other parts each part reads at each step, int64 [steps, parts].

    Args:
        owner: the part of each vertex, int64 [vertices].
    """
    chosen = range(timeline.steps) if steps is None else steps
    counts = torch.zeros(len(chosen), parts, dtype=torch.int64)
    for index, step in enumerate(chosen):
        source, target = window_edges(timeline, step)
        reader = owner[target]
        crossing = owner[source] != reader
        read = torch.zeros(parts, timeline.vertices, dtype=torch.bool)
        read[reader[crossing], source[crossing]] = True
        counts[index] = read.sum(1)
    return counts


def window_edges(timeline: Timeline, step: int) -> tuple[Tensor, Tensor]:
    """(source, target) of all events that reach into the snapshot of a step, both ways where undirected; int64."""
    now = timeline.first + step
    stretch = slice(int(timeline.offsets[timeline.smoothing.first_step(now)]), int(timeline.offsets[now + 1]))
    source, target = timeline.src[stretch].long(), timeline.dst[stretch].long()
    if timeline.undirected:
        source, target = torch.cat([source, target]), torch.cat([target, source])
    return source, target


def _vertex_weights(timeline: Timeline, union: Adjacency) -> Tensor:
    """The work of a vertex over all steps: each event counts as long as it lives, and the vertex itself once a step."""
    counts = torch.ones(union.entries) if union.values is None else union.values
    row, _ = union.coordinates()
    events = torch.bincount(row, counts.double(), union.rows)
    return (events * timeline.smoothing.window).long() + timeline.steps


def _without_loops(union: Adjacency, weights: Tensor) -> dict[str, np.ndarray]:
    row, column = union.coordinates()
    keep = row != column
    counts = torch.ones(union.entries) if union.values is None else union.values
    indptr = torch.zeros(union.rows + 1, dtype=torch.int64)
    indptr[1:] = torch.cumsum(torch.bincount(row[keep], minlength=union.rows), 0)
    return {
        "indptr": indptr.numpy(),
        "indices": column[keep].numpy(),
        "weights": weights.numpy(),
        "edge_weights": counts[keep].long().clamp_(1, 1 << 20).numpy(),
    }


def _cut_hypergraph(timeline: Timeline, parts: int, seed: int) -> Tensor:
    """Nets of a vertex and those that read it within one window of steps, windows side by side, so that the cut counts
    what the smoothed snapshots read without a net for each of them.
    """
    if find_spec("mtkahypar") is None:
        raise LayoutError(
            "layout.partition is hypergraph, which needs Mt-KaHyPar; install trisect[hypergraph], or use metis."
        )
    window, vertices = timeline.smoothing.window, timeline.vertices
    pins, sizes = [], []
    for last in range(window - 1, timeline.steps + window - 1, window):
        source, target = window_edges(timeline, min(last, timeline.steps - 1))
        own = torch.unique(source)
        codes = torch.unique(torch.cat([source * vertices + target, own * vertices + own]))
        size = torch.bincount(codes // vertices, minlength=vertices)
        pins.append(codes % vertices)
        sizes.append(size[size > 0])
    size = torch.cat(sizes)
    indptr = torch.zeros(size.numel() + 1, dtype=torch.int64)
    indptr[1:] = torch.cumsum(size, 0)
    arrays = {
        "indptr": indptr.numpy(),
        "pins": torch.cat(pins).numpy(),
        "weights": _vertex_weights(timeline, union_graph(timeline)).numpy(),
        "net_weights": np.full(size.numel(), window, dtype=np.int64),
    }
    try:
        return torch.from_numpy(run_child("hypergraph_child.py", arrays, parts, seed, vertices))
    except ChildError as error:
        raise LayoutError(
            f"layout.partition is hypergraph, and Mt-KaHyPar did not finish ({error}); use metis."
        ) from None
