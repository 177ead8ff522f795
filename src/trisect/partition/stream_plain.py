"""The stream without native kernels, for small graphs: one level, and the oracle of the kernels' passes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trisect.data.records import Array
from trisect.partition.neighbours import Neighbours

_STREAMS = 3


def plain_stream(graph: Neighbours, parts: int, limit: int, sweeps: int) -> Tensor:
    """The part of each vertex, int32: streamed three times by linear deterministic greedy, then swept."""
    part = torch.full((graph.count,), -1, dtype=torch.int32)
    for _ in range(_STREAMS):
        stream(graph, part, parts, limit)
    sweep(graph, part, parts, limit, sweeps)
    return part


def stream(graph: Neighbours, part: Tensor, parts: int, limit: int) -> None:
    """Pass over the vertices once, as `Neighbours.stream` does."""
    parts_of, weights = part.numpy(), graph.weights.numpy()
    load = _loads(parts_of, weights, parts)
    for vertex in range(graph.count):
        if parts_of[vertex] >= 0:
            load[parts_of[vertex]] -= weights[vertex]
        parts_of[vertex] = -1
        links = _links(graph, parts_of, vertex, parts)
        score = np.where(load + weights[vertex] <= limit, links * (limit - load), 0.0)
        to = int(np.argmax(score)) if score.max() > 0.0 else int(np.argmin(load))
        load[to] += weights[vertex]
        parts_of[vertex] = to


def sweep(graph: Neighbours, part: Tensor, parts: int, limit: int, rounds: int) -> None:
    """Move vertices where the cut gains, as `Neighbours.sweep` does."""
    parts_of, weights = part.numpy(), graph.weights.numpy()
    load = _loads(parts_of, weights, parts)
    for _ in range(rounds):
        moved = 0
        for vertex in range(graph.count):
            own, weight = parts_of[vertex], weights[vertex]
            links = _links(graph, parts_of, vertex, parts)
            free = (links > 0.0) & (load + weight <= limit)
            free[own] = False
            if not free.any():
                continue
            most = links[free].max()
            # the lightest of those with the most links; among equals the one that the vertex meets first
            best = free & (links == most)
            lightest = load[best].min()
            to = _first_met(graph, parts_of, vertex, best & (load == lightest))
            gain = most - links[own]
            if gain > 0.0 or (gain == 0.0 and load[to] + weight < load[own]):
                load[own] -= weight
                load[to] += weight
                parts_of[vertex] = to
                moved += 1
        if moved * 1000 < graph.count:
            break


def _neighbours(graph: Neighbours, vertex: int) -> tuple[Array, Array]:
    columns, values = [], []
    for side in graph.sides:
        stretch = slice(int(side.starts[vertex]), int(side.ends[vertex]))
        column = side.indices[stretch].numpy()
        counts = graph.values_of(side)
        value = np.ones(column.size) if counts is None else counts[stretch].double().numpy()
        columns.append(column[column != vertex])
        values.append(value[column != vertex])
    return np.concatenate(columns), np.concatenate(values)


def _links(graph: Neighbours, parts_of: Array, vertex: int, parts: int) -> Array:
    columns, values = _neighbours(graph, vertex)
    owner = parts_of[columns]
    links: Array = np.bincount(owner[owner >= 0], values[owner >= 0], parts)
    return links


def _first_met(graph: Neighbours, parts_of: Array, vertex: int, allowed: Array) -> int:
    owner = parts_of[_neighbours(graph, vertex)[0]]
    return int(owner[allowed[owner]][0])


def _loads(parts_of: Array, weights: Array, parts: int) -> Array:
    load = np.zeros(parts, dtype=np.int64)
    np.add.at(load, parts_of[parts_of >= 0], weights[parts_of >= 0])
    return load
