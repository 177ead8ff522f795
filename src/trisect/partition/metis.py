"""METIS in a child process, verified, with a fallback that needs no METIS.

A partitioner is C code over the user's graph: if it crashes or runs away it must take a child down, not the run. The
child is `metis_child.py`, which imports no torch; arrays go to and fro as .npy files.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trisect.data.records import Array
from trisect.graph.adjacency import Adjacency

_TIMEOUT = 1800.0
_CHILD = Path(__file__).with_name("metis_child.py")


def cut(adjacency: Adjacency, parts: int, seed: int = 0) -> Tensor:
    """The part of each vertex, int64 [vertices]: METIS where it is installed and does its work, else `cut_by_order`.

    Vertices weigh degree + 1, so that parts have about the same number of edges.
    """
    vertices = adjacency.rows
    if parts == 1:
        return torch.zeros(vertices, dtype=torch.int64)
    if vertices < 2 * parts or find_spec("pymetis") is None:
        return cut_by_order(adjacency, parts)
    indptr, indices = symmetric_structure(adjacency)
    weights = np.diff(indptr) + 1
    with tempfile.TemporaryDirectory(prefix="trisect-metis-") as folder:
        try:
            assignment = _run_child(Path(folder), indptr, indices, weights, parts, seed)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            warnings.warn(f"METIS did not finish ({error}); vertices are cut by their order instead", stacklevel=2)
            return cut_by_order(adjacency, parts)
    counts = np.bincount(assignment, minlength=parts)
    if (counts == 0).any():
        warnings.warn("METIS left a part empty; vertices are cut by their order instead", stacklevel=2)
        return cut_by_order(adjacency, parts)
    return torch.from_numpy(assignment)


def cut_by_order(adjacency: Adjacency, parts: int) -> Tensor:
    """Intervals of the vertex order with about the same sum of degree + 1. Good after a locality order."""
    weights = (adjacency.ends - adjacency.starts).to(torch.float64) + 1.0
    middle = torch.cumsum(weights, 0) - weights / 2
    assignment = (middle / weights.sum() * parts).to(torch.int64).clamp(0, parts - 1)
    if adjacency.rows >= parts and torch.bincount(assignment, minlength=parts).min() == 0:
        # a few vertices hold nearly all edges: fall back on equal numbers of vertices, so that no part is empty
        assignment = torch.arange(adjacency.rows) * parts // adjacency.rows
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


def _run_child(
    folder: Path,
    indptr: Array,
    indices: Array,
    weights: Array,
    parts: int,
    seed: int,
) -> Array:
    for name, array in (("indptr", indptr), ("indices", indices), ("weights", weights)):
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    command = [sys.executable, str(_CHILD), str(folder), str(parts), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)  # noqa: S603
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise ValueError(reason[0])
    assignment: Array = np.load(folder / "assignment.npy", allow_pickle=False).astype(np.int64)
    if assignment.shape != (len(indptr) - 1,) or assignment.min() < 0 or assignment.max() >= parts:
        raise ValueError("its answer is not an assignment of the vertices")
    return assignment
