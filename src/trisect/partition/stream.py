"""Parts of a graph that is too large for METIS: memory is linear in the vertices, beside the graph itself.

Vertices are streamed past, several times, and each joins those of its neighbours that have room: first in many small
clusters of bounded weight (label propagation), whose graph is small and is cut as a graph of its own; then, cluster by
cluster and at last vertex by vertex, in the parts. A second turn clusters inside parts only, and so improves the cut of
the first. Everything is a function of the graph and the seed.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.native.library import available
from trisect.partition import metis
from trisect.partition.neighbours import Neighbours
from trisect.partition.stream_plain import plain_stream

# As METIS has it: its bisections are nearly even, its cuts into many parts at once may be 3 % heavier.
_EVEN, _UNEVEN, _BISECTED = 1.001, 1.03, 8

_ENTRIES_A_VERTEX = 8  # of the graph of clusters, at most, so that it is linear in the vertices
_FEW = 8_000  # clusters, from which on, or from so many a part, the graph is cut as a whole
_FEW_A_PART = 40
_GROWTH = 20  # a cluster may weigh so many times the mean vertex of its level
_PIECES = 60  # a part should hold at least so many clusters
_ROUNDS = 3  # of label propagation
_SWEEPS, _PASSES, _PATIENCE, _WIDEST = 4, 3, 500, 300
_TRIES = 4  # seeds for a few parts, whose cuts differ most
_STREAMS = 3  # passes of a first cut without METIS
_MOST_COARSE = 2_000_000  # entries of the smallest graph, up to which METIS cuts it
_BYTES, _BYTES_A_VERTEX = 256 << 20, 420  # of METIS on the smallest graph, and of all arrays, as measured
_MOST_PLAIN = 200_000  # vertices, without the native kernels


def cut(
    adjacency: Adjacency, parts: int, seed: int = 0, weights: Tensor | None = None, *, counted: bool = False
) -> Tensor:
    """The part of each vertex, int64 [vertices].

    Args:
        adjacency: square.
        weights: of vertices, int64 [vertices]; by default degree + 1, so that parts have about as many edges.
        counted: whether the values say what edges count; they are positive.
    """
    if parts == 1:
        return torch.zeros(adjacency.rows, dtype=torch.int64)
    if not available() and adjacency.rows > _MOST_PLAIN:
        warnings.warn(
            "The native kernels are not built, so vertices are cut by their order into intervals of equal work, and "
            "more rows may cross between parts than need to; install a C compiler and reinstall Trisect.",
            stacklevel=2,
        )
        return metis.cut_by_order(adjacency, parts)
    graph = Neighbours.of(adjacency.to("cpu").compact(), weights, counted=counted)
    limits = tuple(heaviest(graph.weights, parts, tolerance) for tolerance in (_UNEVEN, tolerance_of(parts)))
    if available():
        part = _cut_by_levels(graph, parts, seed, limits)
    else:
        part = plain_stream(graph, parts, limits[-1], _SWEEPS)
    if torch.bincount(part, minlength=parts).min() == 0:
        return metis.intervals(graph.weights.double(), parts)
    return part.long()


def tolerance_of(parts: int) -> float:
    """How heavy the heaviest part may be, over the mean part."""
    return _EVEN if parts <= _BISECTED else _UNEVEN


def heaviest(weights: Tensor, parts: int, tolerance: float) -> int:
    """What a part may weigh: a mean vertex more than the mean part, or what the tolerance allows."""
    total = int(weights.sum())
    return int(max(tolerance * total / parts, total / parts + total / weights.numel())) + 1


def stream_bytes(vertices: int) -> int:
    """The memory that the cut takes beside the graph and its transpose, at most."""
    return _BYTES + vertices * _BYTES_A_VERTEX


def _cut_by_levels(graph: Neighbours, parts: int, seed: int, limits: tuple[int, ...]) -> Tensor:
    """Cut the graph of clusters, and refine it level by level; twice, the last time as even as it shall be."""
    part: Tensor | None = None
    for turn, limit in enumerate(limits):
        levels, labels, inside = _levels(graph, parts, seed + 1000 * turn, part)
        part = _first_cut(levels[-1], parts, seed, limit) if inside is None else inside
        while True:
            _refine(levels[-1], part, parts, limit)
            levels.pop()
            if not labels:
                break
            part = part[labels.pop()]
    assert part is not None  # noqa: S101
    return part


def _levels(
    graph: Neighbours, parts: int, seed: int, part: Tensor | None
) -> tuple[list[Neighbours], list[Tensor], Tensor | None]:
    """The graph, that of its clusters and so on; the cluster of each vertex of all but the last; the last one's parts.

    Args:
        part: of each vertex, which clusters keep to; None: there are none yet.
    """
    levels, labels, total = [graph], list[Tensor](), int(graph.weights.sum())
    most, growth = max(_ENTRIES_A_VERTEX * graph.count, 1), _GROWTH
    while levels[-1].count > max(_FEW, _FEW_A_PART * parts):
        level = levels[-1]
        mean, bound = total / level.count, total / (parts * _PIECES)
        label = level.clusters(int(max(2 * mean, min(bound, growth * mean))), _ROUNDS, seed + len(levels), part)
        clusters = int(label.max()) + 1
        smaller = level.contracted(label, most) if clusters < 0.95 * level.count else None
        if smaller is None:
            if growth * mean >= bound:
                break
            growth *= 4
            continue
        if part is not None:
            part = torch.empty(clusters, dtype=torch.int32).index_copy_(0, label.long(), part)
        levels.append(smaller)
        labels.append(label)
    return levels, labels, part


def _first_cut(graph: Neighbours, parts: int, seed: int, limit: int) -> Tensor:
    """A cut of the smallest graph: by METIS, or where it is not installed or the graph is large, by a stream."""
    if graph.entries <= _MOST_COARSE:
        part = metis.cut_small(graph, parts, seed, _TRIES if parts <= _BISECTED else 1)
        if part is not None:
            return part
    part = torch.full((graph.count,), -1, dtype=torch.int32)
    for _ in range(_STREAMS):
        graph.stream(part, parts, limit)
    return part


def _refine(graph: Neighbours, part: Tensor, parts: int, limit: int) -> None:
    """Even out parts that are too heavy, and lessen the cut, in place."""
    graph.balance(part, parts, limit)
    graph.sweep(part, parts, limit, _SWEEPS)
    slack = min(int(graph.weights.max()), int(limit * (_UNEVEN - 1.0)))
    graph.moves(part, parts, limit, slack, _PATIENCE, _WIDEST, _PASSES)
