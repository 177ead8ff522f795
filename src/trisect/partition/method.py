"""Which partitioner cuts a graph: METIS, or beyond the memory that is free, the stream."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.layout import Partitioner
from trisect.ops.memory import free_bytes
from trisect.partition import metis, stream

# What METIS takes beside the graph, in the process that hands it over and in its own, as `trisect bench partition`
# measures it (docs/planner.md).
_METIS, _METIS_A_VERTEX, _METIS_AN_ENTRY = 100_000_000, 60, 160
_SMALL = 1_000_000  # entries, up to which nothing is worked out


def metis_bytes(vertices: int, entries: int) -> int:
    """The memory that METIS takes beside a graph of so many vertices and entries of its matrix, both directions."""
    return _METIS + vertices * _METIS_A_VERTEX + entries * _METIS_AN_ENTRY


def cut_bytes(vertices: int, entries: int, method: Partitioner) -> int:
    """The memory that a cut takes in the process that starts the ranks, before they do."""
    used = _method_within(free_bytes(torch.device("cpu")), vertices, entries, method)
    return stream.stream_bytes(vertices) if used == "stream" else metis_bytes(vertices, entries)


def _method_within(free: int, vertices: int, entries: int, method: Partitioner) -> Partitioner:
    large = entries > _SMALL and metis_bytes(vertices, entries) > free
    return "stream" if method == "metis" and large else method


def choose_method(vertices: int, entries: int, method: Partitioner) -> Partitioner:
    """What was asked for, or the stream, and a sentence, where that is METIS and would take more than is free."""
    free = free_bytes(torch.device("cpu"))
    used = _method_within(free, vertices, entries, method)
    if used == method:
        return method
    needed = metis_bytes(vertices, entries)
    warnings.warn(
        f"METIS would take about {needed / 2**20:,.0f} MiB to cut the vertices and {free / 2**20:,.0f} MiB are free, "
        f"so they are cut by a stream, which takes about {stream.stream_bytes(vertices) / 2**20:,.0f} MiB; say "
        "layout.partition: stream to have it so always.",
        stacklevel=3,
    )
    return used


def cut_by(method: Partitioner, adjacency: Adjacency, parts: int, seed: int) -> Tensor:
    """The part of each vertex of a static graph, int64; a hypergraph is one of snapshots, and METIS stands for it."""
    return stream.cut(adjacency, parts, seed) if method == "stream" else metis.cut(adjacency, parts, seed)
