"""From edges to the matrix that a model reads: assembling, loops, symmetry, normalisation. All return new matrices."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from trisect.errors import DataError
from trisect.graph.adjacency import Adjacency
from trisect.graph.assemble import Edges, assemble
from trisect.graph.check import check_finite, check_index, index_array, vertex_count, weight_array
from trisect.native.library import FLOAT, INT, INT64, POINTER, Kernel, available, threads

Normalisation = Literal["symmetric", "row", "none"]


class MatrixForm(Protocol):
    """How a model wants its matrices: what they are divided by, and whether vertices read themselves."""

    @property
    def normalisation(self) -> Normalisation:
        """What rows or entries are divided by."""

    @property
    def self_loops(self) -> bool:
        """Whether every vertex reads itself."""


NORMALISATIONS: tuple[str, ...] = ("symmetric", "row", "none")

_LOOP_LENGTHS = Kernel("trisect_loop_lengths", POINTER, POINTER, POINTER, INT64, INT64, POINTER, INT)
_LOOP_WRITE = Kernel(
    "trisect_loop_write",
    *(POINTER, POINTER, POINTER, POINTER, INT64, INT64, INT64, FLOAT, POINTER, POINTER, POINTER, INT),
)
_ROW_SUMS = Kernel("trisect_row_sums", POINTER, POINTER, POINTER, INT64, POINTER, INT)
_SCALE = Kernel("trisect_scale", POINTER, POINTER, POINTER, POINTER, INT64, INT64, POINTER, POINTER, POINTER, INT)


def adjacency_from_edges(
    src: Any,
    dst: Any,
    weight: Any = None,
    vertices: int | None = None,
    *,
    columns: int | None = None,
    undirected: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Adjacency:
    """The matrix of a list of edges: row = dst, column = src, duplicates added up, columns ascending in each row.

    Args:
        src, dst: integers [edges], arrays of numpy or torch.
        weight: one number an edge. Without it a pair that occurs k times has the value k, and a graph without
            duplicates has no values at all.
        vertices: how many there are; by default the largest id plus one.
        columns: for a rectangular matrix the number of sources (then `vertices` is the number of rows).
        undirected: each edge stands for both directions (a loop for itself).
    """
    source, target = index_array("src", src), index_array("dst", dst)
    if source.numel() != target.numel():
        raise DataError(f"src has {source.numel()} entries and dst {target.numel()}; every edge needs both ends.")
    if source.dtype != target.dtype:
        source, target = source.long(), target.long()
    if columns is None:
        rows = columns = vertex_count(vertices, source, target)
    else:
        rows, columns = vertex_count(vertices, target), vertex_count(columns, source)
        if undirected and rows != columns:
            raise DataError(f"undirected needs a square matrix, but there are {rows} rows and {columns} columns.")
    check_index("src", source, columns)
    check_index("dst", target, rows)
    value = None if weight is None else weight_array("weight", weight, source.numel(), dtype)
    pointers, indices, values = assemble(Edges(source, target, value, both=undirected), rows, columns, dtype)
    return Adjacency.from_csr(pointers, indices, values, columns).vouched()


def validate(adjacency: Adjacency) -> None:
    """Refuse a matrix that cannot be read (`Adjacency.checked`), has a column twice in a row, or infinite values."""
    source, target = adjacency.checked().edge_index()
    bad = (target[1:] == target[:-1]) & (source[1:] == source[:-1])
    if bool(bad.any()):
        entry = int(bad.nonzero()[0])
        raise DataError(
            f"row {int(target[entry])} has column {int(source[entry])} twice; build the matrix with"
            " adjacency_from_edges, which adds them up."
        )
    if adjacency.values is not None:
        check_finite("values", adjacency.values)


def self_loops(adjacency: Adjacency, value: float = 1.0) -> Adjacency:
    """Adds a loop of weight `value` to each row that has none; loops that exist keep their weight (as PyG does)."""
    _check_own_columns(adjacency)
    weighted = adjacency.values is not None or value != 1.0
    if available() and adjacency.device.type == "cpu" and adjacency.dtype == torch.float32:
        return _self_loops_native(adjacency, value, weighted)
    matrix = adjacency.compact()
    source, target = matrix.edge_index()
    own = source == target + matrix.self_start
    missing = torch.ones(matrix.rows, dtype=torch.bool, device=matrix.device)
    missing[target[own]] = False
    row = missing.nonzero()[:, 0]
    weight = None
    if weighted:
        old = torch.ones(matrix.entries, device=matrix.device) if matrix.values is None else matrix.values
        weight = torch.cat([old, torch.full((row.numel(),), value, dtype=old.dtype, device=matrix.device)])
    edges = Edges(torch.cat([source, row + matrix.self_start]), torch.cat([target, row]), weight)
    pointers, indices, values = assemble(edges, matrix.rows, matrix.columns, matrix.dtype)
    return Adjacency.from_csr(pointers, indices, values, matrix.columns, matrix.self_start)


def _self_loops_native(adjacency: Adjacency, value: float, weighted: bool) -> Adjacency:
    adjacency.checked()
    starts, ends, indices = adjacency.starts.contiguous(), adjacency.ends.contiguous(), adjacency.indices.contiguous()
    old = None if adjacency.values is None else adjacency.values.contiguous()
    rows, own = adjacency.rows, adjacency.self_start + adjacency.column_base
    pointers = torch.zeros(rows + 1, dtype=torch.int64)
    block = (starts.data_ptr(), ends.data_ptr(), indices.data_ptr())
    _LOOP_LENGTHS(*block, rows, own, pointers[1:].data_ptr(), threads())
    torch.cumsum(pointers, 0, out=pointers)
    out = torch.empty(int(pointers[-1]), dtype=torch.int32)
    values = torch.empty(out.numel(), dtype=torch.float32) if weighted else None
    _LOOP_WRITE(
        *block,
        None if old is None else old.data_ptr(),
        *(rows, adjacency.column_base, own, value, pointers.data_ptr(), out.data_ptr()),
        None if values is None else values.data_ptr(),
        threads(),
    )
    return Adjacency.from_csr(pointers, out, values, adjacency.columns, adjacency.self_start).vouched()


def symmetrise(adjacency: Adjacency, reduce: Literal["sum", "max"] = "sum") -> Adjacency:
    """Each edge in both directions; an edge that has its reverse already gets their sum (or maximum).

    Without weights the result has none either: it is the union. Loops stay as they are.
    """
    if adjacency.rows != adjacency.columns:
        raise DataError(f"symmetrise needs a square matrix, but there are {adjacency.rows} x {adjacency.columns}.")
    matrix = adjacency.compact()
    source, target = matrix.edge_index()
    union = assemble(Edges(source, target, both=True), matrix.rows, matrix.columns)
    if matrix.values is None:
        return Adjacency.from_csr(union[0], union[1], None, matrix.columns)
    if reduce == "sum":
        summed = assemble(Edges(source, target, matrix.values, both=True), matrix.rows, matrix.columns, matrix.dtype)
        return Adjacency.from_csr(*summed, matrix.columns)
    result = Adjacency.from_csr(union[0], union[1], None, matrix.columns)
    to, fro = result.edge_index()
    keys = fro * matrix.columns + to  # ascending, since rows and columns are
    values = torch.full((keys.numel(),), -torch.inf, dtype=matrix.dtype, device=matrix.device)
    for row, column in ((target, source), (source, target)):
        position = torch.searchsorted(keys, row * matrix.columns + column)
        values.scatter_reduce_(0, position, matrix.values, "amax")
    return result.with_values(values)


def row_sums(adjacency: Adjacency) -> Tensor:
    """float64 [rows]: the sum of each row's values (the weighted in-degree of a vertex)."""
    if available() and adjacency.checked().device.type == "cpu" and adjacency.dtype == torch.float32:
        starts, ends = adjacency.starts.contiguous(), adjacency.ends.contiguous()
        values = None if adjacency.values is None else adjacency.values.contiguous()
        out = torch.empty(adjacency.rows, dtype=torch.float64)
        pointer = None if values is None else values.data_ptr()
        _ROW_SUMS(starts.data_ptr(), ends.data_ptr(), pointer, adjacency.rows, out.data_ptr(), threads())
        return out
    weight = adjacency.edge_weight()
    if weight is None:
        return (adjacency.ends - adjacency.starts).double()
    out = torch.zeros(adjacency.rows, dtype=torch.float64, device=adjacency.device)
    return out.index_add_(0, adjacency.edge_index()[1], weight.double())


def normalise(adjacency: Adjacency, kind: Normalisation, self_loops: bool) -> Adjacency:
    """The matrix that a convolution multiplies with, as PyG's `gcn_norm` makes it.

    Args:
        kind: `symmetric`: D^-1/2 A D^-1/2; `row`: D^-1 A; `none`: A. D is the sum of each row (of the edges that come
            in), taken in float64; a vertex without any keeps zeros.
        self_loops: first add a loop of weight 1 where there is none.
    """
    if kind not in NORMALISATIONS:
        raise DataError(f"normalisation is {kind!r}; choose one of {', '.join(NORMALISATIONS)}.")
    matrix = _with_loops(adjacency) if self_loops else adjacency
    if kind == "none":
        return matrix
    if kind == "symmetric" and matrix.rows != matrix.columns:
        raise DataError(
            f"Symmetric normalisation needs a square matrix, but there are {matrix.rows} x {matrix.columns}; "
            "normalise the whole graph before cutting blocks from it."
        )
    sums = row_sums(matrix)
    if kind == "row":
        return scale(matrix, torch.where(sums == 0, 0.0, 1.0 / sums), None)
    if bool((sums < 0).any()):
        row = int((sums < 0).nonzero()[0])
        raise DataError(
            f"The weights of the edges into vertex {row} add up to {float(sums[row]):g}; symmetric normalisation needs "
            "sums that are not negative (take absolute weights, or normalisation row or none)."
        )
    root = inverse_root(sums)
    return scale(matrix, root, root)


def normalise_block(block: Adjacency, kind: Normalisation, self_loops: bool, column_sums: Tensor | None) -> Adjacency:
    """`normalise` of some rows, whose own columns come first, as it would be in the whole matrix.

    Args:
        column_sums: [columns], for `symmetric` alone: the row sum of each column's vertex in the whole matrix, loops
            included.
    """
    if kind != "symmetric" or column_sums is None:
        return normalise(block, kind, self_loops)
    matrix = _with_loops(block) if self_loops else block
    root = inverse_root(column_sums.double())
    return scale(matrix, root[: block.rows].contiguous(), root)


def inverse_root(sums: Tensor) -> Tensor:
    """Give 1 / sqrt(sum) of each vertex, and 0 where the sum is 0."""
    return torch.where(sums == 0, 0.0, sums.rsqrt())


def scale(matrix: Adjacency, left: Tensor, right: Tensor | None) -> Adjacency:
    """Make left[row] * right[column] * value of each value, in float64.

    In this order a symmetric matrix stays symmetric to the bit.
    """
    if available() and matrix.checked().device.type == "cpu" and matrix.dtype == torch.float32:
        starts, ends, indices = matrix.starts.contiguous(), matrix.ends.contiguous(), matrix.indices.contiguous()
        old = None if matrix.values is None else matrix.values.contiguous()
        plain = matrix.entries == indices.numel()
        values = torch.empty(indices.numel()) if plain else torch.zeros(indices.numel())
        _SCALE(
            *(starts.data_ptr(), ends.data_ptr(), indices.data_ptr(), None if old is None else old.data_ptr()),
            *(matrix.rows, matrix.column_base, left.data_ptr(), None if right is None else right.data_ptr()),
            *(values.data_ptr(), threads()),
        )
        return matrix.with_values(values)
    matrix = matrix.compact()
    source, target = matrix.edge_index()
    scaled = left[target] if right is None else left[target] * right[source]
    if matrix.values is not None:
        scaled = scaled * matrix.values.double()
    return matrix.with_values(scaled.to(matrix.dtype))


def _with_loops(adjacency: Adjacency) -> Adjacency:
    return self_loops(adjacency)


def _check_own_columns(adjacency: Adjacency) -> None:
    first, last = adjacency.self_start, adjacency.self_start + adjacency.rows
    if first < 0 or last > adjacency.columns:
        raise DataError(
            f"Self-loops need every row among the columns, but the rows are the columns {first}..{last} "
            f"of {adjacency.columns}."
        )
