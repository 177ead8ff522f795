"""METIS in a child process, verified, with a fallback that needs no METIS.

A partitioner is C code over the user's graph: if it crashes or runs away it must take a child down, not the run. The
child is `metis_child.py`, which imports no torch; arrays go to and fro as .npy files.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from trisect.data.records import Array
from trisect.graph.adjacency import Adjacency
from trisect.partition.child import ChildError, run_child
from trisect.partition.neighbours import Neighbours


def cut(adjacency: Adjacency, parts: int, seed: int = 0) -> Tensor:
    """The part of each vertex, int64 [vertices]: METIS where it is installed and does its work, else `cut_by_order`.

    Vertices weigh degree + 1, so that parts have about the same number of edges.
    """
    vertices = adjacency.rows
    if parts == 1:
        return torch.zeros(vertices, dtype=torch.int64)
    if vertices < 2 * parts or not is_installed():
        return cut_by_order(adjacency, parts)
    indptr, indices = symmetric_structure(adjacency)
    assignment = cut_arrays({"indptr": indptr, "indices": indices, "weights": np.diff(indptr) + 1}, parts, seed)
    return cut_by_order(adjacency, parts) if assignment is None else assignment


def cut_small(graph: Neighbours, parts: int, seed: int = 0, tries: int = 1) -> Tensor | None:
    """The part of each vertex of a graph of clusters, int32, or None where METIS is not there or fails.

    Args:
        tries: seeds that are tried, of which the least cut counts.
    """
    if find_spec("pymetis") is None or graph.count < 2 * parts:
        return None
    # both directions in one list, without loops
    merged = graph.contracted(torch.arange(graph.count, dtype=torch.int32), graph.entries)
    if merged is None:
        return None
    side, weights = merged.sides[0], merged.weights
    values = torch.ones(side.entries) if side.values is None else side.values
    arrays = {
        "indptr": side.pointers(),
        "indices": side.indices,
        "weights": _scaled(weights),
        "edge_weights": _scaled(values),
    }
    assignment = cut_arrays({name: array.long().numpy() for name, array in arrays.items()}, parts, seed, tries)
    return None if assignment is None else assignment.to(torch.int32)


def _scaled(weights: Tensor) -> Tensor:
    """Weights whose sum METIS can hold, whatever its integers are."""
    factor = float(weights.sum(dtype=torch.float64)) / (1 << 30)
    return weights if factor <= 1.0 else (weights.double() / factor).clamp_min(1.0)


def is_installed() -> bool:
    """Say whether METIS is there; where it is not, say what is done instead."""
    if find_spec("pymetis") is not None:
        return True
    warnings.warn(
        "pymetis is not installed, so vertices are cut by their order into intervals of equal work, and more rows may"
        " cross between parts than need to; install it: pip install 'trisect[metis]'.",
        stacklevel=3,
    )
    return False


def cut_arrays(arrays: Mapping[str, Array], parts: int, seed: int = 0, tries: int = 1) -> Tensor | None:
    """The part of each vertex, or None (and a warning) where METIS fails.

    Args:
        arrays: `indptr`, `indices` of a symmetric structure without loops, `weights` of vertices, and where edges have
            them `edge_weights`; all int64.
        tries: seeds that are tried, of which the least cut counts.
    """
    vertices = len(arrays["indptr"]) - 1
    try:
        assignment = run_child("metis_child.py", arrays, parts, seed, vertices, tries)
    except ChildError as error:
        warnings.warn(f"METIS did not finish ({error}); vertices are cut by their order instead", stacklevel=3)
        return None
    return torch.from_numpy(assignment)


def cut_by_order(adjacency: Adjacency, parts: int) -> Tensor:
    """Intervals of the vertex order with about the same sum of degree + 1. Good after a locality order."""
    return intervals((adjacency.ends - adjacency.starts).to(torch.float64) + 1.0, parts)


def intervals(weights: Tensor, parts: int) -> Tensor:
    """Intervals with about the same sum of weights (float64 [vertices]): the part of each vertex."""
    vertices = weights.numel()
    middle = torch.cumsum(weights, 0) - weights / 2
    assignment = (middle / weights.sum() * parts).to(torch.int64).clamp(0, parts - 1)
    if vertices >= parts and torch.bincount(assignment, minlength=parts).min() == 0:
        # a few vertices hold nearly all edges: fall back on equal numbers of vertices, so that no part is empty
        assignment = torch.arange(vertices) * parts // vertices
    return assignment


def symmetric_structure(adjacency: Adjacency) -> tuple[Array, Array]:
    """CSR arrays of A + Aᵀ without loops and weights, as METIS wants it (int64)."""
    n = adjacency.rows
    row, column = adjacency.coordinates()
    keep = row != column
    row, column = row[keep], column[keep]
    keys = torch.unique(torch.cat([row * n + column, column * n + row]))
    indptr = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount((keys // n).numpy(), minlength=n), out=indptr[1:])
    return indptr, (keys % n).numpy()
