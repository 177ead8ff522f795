"""Vertex orders: vertices that read each other stand close together, so that an aggregation finds rows in the cache.

Every order is a permutation int64 [vertices]: position i holds vertex order[i]. All are deterministic.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from trisect.errors import ConfigError, DataError, TrisectError
from trisect.graph.adjacency import Adjacency
from trisect.graph.assemble import Edges, assemble
from trisect.graph.graph import Graph, permuted
from trisect.graph.timeline.timeline import Timeline
from trisect.native.library import INT, INT64, POINTER, Kernel, available

OrderName = Literal["community", "rcm", "degree", "random"]

_LISTS = (POINTER,) * 6
_RCM = Kernel("trisect_order_rcm", *_LISTS, INT64, POINTER, returns=INT)
_LABELS = Kernel("trisect_order_labels", *_LISTS, INT64, POINTER, INT64, INT, POINTER, returns=INT)
_MISSES = Kernel("trisect_order_misses", POINTER, POINTER, POINTER, INT64, INT64, INT64, INT64, returns=INT64)

_ROUNDS = 4
_MOST_EVENTS = 50_000_000
CACHE_BYTES = 4 << 20  # that rows of one aggregation can count on: a guess, so that every host decides alike


def vertex_order(adjacency: Adjacency, name: OrderName, *, seed: int = 0, largest: int = 1024) -> Tensor:
    """A permutation of the vertices of a square matrix; the direction of edges does not matter.

    Args:
        name: `community`: groups found by label propagation, one after the other, inside and among each other in `rcm`
            order. `rcm`: reverse Cuthill–McKee. `degree`: most edges first. `random`: shuffled by `seed`.
        largest: the most vertices of a community.
    """
    if name not in get_args(OrderName):
        raise ConfigError(f"The vertex order is {name!r}; choose one of {', '.join(get_args(OrderName))}.")
    if adjacency.rows != adjacency.columns:
        raise DataError(f"A vertex order needs a square matrix, but there are {adjacency.rows} x {adjacency.columns}.")
    if name == "random":
        return torch.randperm(adjacency.rows, generator=torch.Generator().manual_seed(seed))
    matrix = adjacency.to("cpu").compact()
    turned = matrix.transpose()
    if name == "degree":
        degree = (matrix.ends - matrix.starts) + (turned.ends - turned.starts)
        return torch.argsort(degree, descending=True, stable=True)
    if not available():
        raise TrisectError(
            f"The vertex order {name!r} needs the native kernels; use degree, or reinstall with a compiler."
        )
    along = torch.empty(matrix.rows, dtype=torch.int32)
    lists, keep = _lists(matrix)
    _check_memory(_RCM(*lists, matrix.rows, along.data_ptr()))
    del lists, keep
    return along.long() if name == "rcm" else _by_community(matrix, along.long(), largest)


def _by_community(matrix: Adjacency, along: Tensor, largest: int) -> Tensor:
    """Label propagation on the graph in rcm order, where the labels that a vertex reads are mostly near."""
    count = matrix.rows
    lists, keep = _lists(permuted(matrix.with_values(None), along))
    label, sequence = (torch.arange(count, dtype=torch.int32) for _ in range(2))
    _check_memory(_LABELS(*lists, count, sequence.data_ptr(), largest, _ROUNDS, label.data_ptr()))
    del lists, keep
    # communities by their first vertex, vertices of one as they stand
    walk = label.long()
    first = torch.full((count,), count, dtype=torch.int64)
    first.scatter_reduce_(0, walk, torch.arange(count), "amin")
    return along[torch.argsort(first[walk], stable=True)]


def _lists(matrix: Adjacency) -> tuple[list[int], list[Tensor]]:
    """Pointers to the neighbours by row and by column (the same ones twice where all edges go both ways), and the
    arrays, which must live as long."""
    turned = matrix.transpose()
    if torch.equal(turned.indices, matrix.indices) and torch.equal(turned.ends, matrix.ends):
        turned = matrix
    arrays = [array.contiguous() for side in (matrix, turned) for array in (side.starts, side.ends, side.indices)]
    return [array.data_ptr() for array in arrays], arrays


def locality(adjacency: Adjacency, window: int = 16_384) -> float:
    """The share of reads that an aggregation, row by row, repeats within `window` entries: 1 is best.

    It stands for the hits in a cache that holds about `window` rows of features.
    """
    entries = adjacency.entries
    if entries == 0:
        return 1.0
    if not available():
        return _locality_torch(adjacency, window)
    matrix = adjacency.to("cpu").checked()
    starts, ends, indices = matrix.starts.contiguous(), matrix.ends.contiguous(), matrix.indices.contiguous()
    misses = _MISSES(
        *(starts.data_ptr(), ends.data_ptr(), indices.data_ptr()),
        *(matrix.rows, matrix.columns, matrix.column_base, window),
    )
    _check_memory(min(misses, 0))
    return 1.0 - float(misses) / entries


def choose_order(data: Graph | Timeline | Adjacency, width: int = 64) -> Tensor | None:
    """An order that makes aggregations faster, or None where the present one is as good.

    Not worth it: where all rows of `width` float32 features fit into the cache anyway; where most reads find their row
    in it already; where the best order found saves less than a fifth of the misses.
    """
    if not available():
        return None
    vertices = data.rows if isinstance(data, Adjacency) else data.vertices
    if isinstance(data, Graph) and data.x is not None:
        width = max(width, data.x.shape[1] if data.x.shape[1] <= 1024 else 0)
    if vertices * width * 4 <= CACHE_BYTES:
        return None
    matrix = _pattern(data)
    if matrix.entries == 0:
        return None
    window = max(1, CACHE_BYTES // (width * 4))
    now = locality(matrix, window)
    if now >= 0.9:
        return None
    community = vertex_order(matrix, "community")
    after = locality(permuted(matrix, community), window)
    return community if (1.0 - after) <= 0.8 * (1.0 - now) else None


def _pattern(data: Graph | Timeline | Adjacency) -> Adjacency:
    """The edges without weights; of a timeline those of all steps (the latest, where there are very many)."""
    if isinstance(data, Graph):
        data = data.adjacency
    if isinstance(data, Adjacency):
        return data.to("cpu").compact().with_values(None)
    last = int(data.offsets[data.first + data.steps])
    first = max(int(data.offsets[data.first]), last - _MOST_EVENTS)
    edges = Edges(data.src.cpu(), data.dst.cpu(), first=first, last=last)
    pointers, indices, _ = assemble(edges, data.vertices, data.vertices)
    return Adjacency.from_csr(pointers, indices, None, data.vertices)


def _locality_torch(adjacency: Adjacency, window: int) -> float:
    """The same count by sorting: entries in reading order, grouped by column."""
    column = adjacency.edge_index()[0]
    order = torch.argsort(column, stable=True)
    same = column[order][1:] == column[order][:-1]
    near = order.diff() <= window
    return float((same & near).sum()) / column.numel()


def _check_memory(code: int) -> None:
    if code < 0:
        raise TrisectError("There is not enough memory to order the vertices.")
