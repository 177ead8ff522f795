"""PyTorch Geometric's objects, by the attributes that they have: PyG itself is never imported."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from trisect.data.ingest.periods import Period, numbers_of, offsets_of, steps_of
from trisect.data.records import Array, StaticRecord, TimelineRecord
from trisect.errors import DataError


def static_from_pyg(data: Any) -> StaticRecord:
    """Read a `Data` object: `edge_index`, and where present `edge_weight`, `x`, `y`, `y_weight` and masks such as
    `train_mask`.

    Edges may also be `adj_t`, a sparse matrix whose rows are the targets. `edge_attr` of any width becomes `edge_x`.
    The edges are taken as they are.
    """
    src, dst, weight = edges_of(data)
    x, y = _float(_get(data, "x"), "x"), target_of(_get(data, "y"))
    _refuse_beyond(src, dst, x)
    vertices = _count(data, src, dst, x, y)
    splits = {
        name: mask_of(name, mask)
        for name in ("train", "val", "test")
        if (mask := dense(_get(data, f"{name}_mask"))) is not None
    }
    return StaticRecord(
        vertices=vertices,
        src=src,
        dst=dst,
        weight=weight,
        x=x,
        y=y,
        splits=splits,
        meta={"source": "PyG"},
        edge_x=_attributes(data, "edge_attr", len(src)),
        y_weight=_float(_get(data, "y_weight"), "y_weight"),
    )


def timeline_from_pyg(obj: Any, period: Period | None = None) -> TimelineRecord:
    """Read a `TemporalData` (`src`, `dst`, `t`, `msg` as `edge_x`), or a list of `Data`, one for each step.

    Args:
        period: of a `TemporalData`: the length of a step in the unit of `t`, or a text such as `"1d"` (t in seconds).
    """
    if not hasattr(obj, "src"):
        if not isinstance(obj, Iterable):
            raise DataError(f"the object is a {type(obj).__name__}; give a TemporalData, or a list of Data.")
        if period is not None:
            raise DataError(f"period is {period!r}, but a list of Data has one object for each step; leave it out.")
        return _snapshots(list(obj))
    src, dst, time = dense(obj.src), dense(obj.dst), dense(obj.t)
    if src is None or dst is None or time is None:
        raise DataError("the TemporalData lacks src, dst or t; give all three.")
    if period is None:
        raise DataError("period is missing; give the length of a step in the unit of t.")
    time, unit, period = numbers_of(time, period)
    for name, array in (("dst", dst), ("t", time)):
        if array.shape != src.shape:
            raise DataError(f"src has the shape {list(src.shape)} and {name} {list(array.shape)}; give one an event.")
    steps = steps_of(time, period, unit)
    order = np.argsort(steps, kind="stable")
    message, edge_y = _attributes(obj, "msg", len(src)), dense(_get(obj, "y"))
    if edge_y is not None and (edge_y.shape[:1] != src.shape or edge_y.size != len(src)):
        raise DataError(f"y has the shape {list(edge_y.shape)} for {len(src)} events; give one class an event.")
    if edge_y is not None and bool((edge_y != edge_y.astype(np.int64)).any()):
        raise DataError("y holds decimals; the classes of events are whole numbers.")
    weight = _weight(obj, len(src))
    src, dst = _small(src[order]), _small(dst[order])
    return TimelineRecord(
        vertices=_count(obj, src, dst, None, None),
        src=src,
        dst=dst,
        offsets=offsets_of(steps),
        weight=None if weight is None else weight[order],
        edge_y=None if edge_y is None else edge_y.reshape(len(src))[order].astype(np.int64),
        meta={"source": "PyG", "period": period},
        time=time[order],
        edge_x=None if message is None else message[order],
    )


def _snapshots(steps: list[Any]) -> TimelineRecord:
    if not steps:
        raise DataError("the list of Data is empty; give one object for each step.")
    edges = [edges_of(data) for data in steps]
    attributes = [_attributes(data, "edge_attr", len(src)) for data, (src, _, _) in zip(steps, edges, strict=True)]
    xs = [_float(_get(data, "x"), "x") for data in steps]
    ys = [target_of(_get(data, "y")) for data in steps]
    vertices = max(_count(data, *edge[:2], x, y) for data, edge, x, y in zip(steps, edges, xs, ys, strict=True))
    offsets = np.zeros(len(steps) + 1, np.int64)
    np.cumsum([len(src) for src, _, _ in edges], out=offsets[1:])
    return TimelineRecord(
        vertices=vertices,
        src=np.concatenate([src for src, _, _ in edges]),
        dst=np.concatenate([dst for _, dst, _ in edges]),
        offsets=offsets,
        weight=_joined([weight for _, _, weight in edges], "edge_weight", np.concatenate),
        edge_x=_joined(attributes, "edge_attr", np.concatenate),
        x=_joined([_padded(x, vertices) for x in xs], "x", np.stack),
        y=_joined([_padded(y, vertices, fill=-1) for y in ys], "y", np.stack),
        meta={"source": "PyG"},
    )


def _joined(arrays: list[Array | None], name: str, join: Any) -> Array | None:
    present = [array for array in arrays if array is not None]
    if not present:
        return None
    if len(present) < len(arrays):
        step = next(t for t, array in enumerate(arrays) if array is None)
        raise DataError(f"the Data of step {step} has no {name} while others have; give it to all or to none.")
    widths = sorted({array.shape[1:] for array in present})
    if len(widths) > 1:
        raise DataError(f"{name} has rows of the shapes {widths[0]} and {widths[1]} in different steps; give all one.")
    joined: Array = join(present)
    return joined


def _padded(array: Array | None, vertices: int, fill: float = 0) -> Array | None:
    """Vertices may appear late: early steps have fewer rows."""
    if array is None or len(array) == vertices:
        return array
    rest = np.full((vertices - len(array), *array.shape[1:]), fill, array.dtype)
    return np.concatenate([array, rest])


def _get(data: Any, name: str) -> Any:
    return getattr(data, name, None)


def dense(value: Any) -> Array | None:
    """Turn a tensor, sparse or dense, or an array into a numpy array; None stays None."""
    if value is None:
        return None
    if hasattr(value, "detach"):
        value = value.detach()
    for densify in ("to_dense", "toarray"):  # torch and torch_sparse; scipy
        if hasattr(value, densify) and not isinstance(value, np.ndarray):
            value = getattr(value, densify)()
            break
    if hasattr(value, "cpu"):
        value = value.cpu()
    if str(getattr(value, "dtype", "")) in ("torch.bfloat16", "torch.float16"):
        value = value.float()  # numpy has no bfloat16
    return np.asarray(value)


def numbers_in(name: str, array: Array) -> Array:
    """float32 of any shape; what is no real number is refused."""
    if array.dtype.kind not in "iubf":
        raise DataError(f"{name} holds {array.dtype} values; give real numbers.")
    return array.astype(np.float32, copy=False)


def mask_of(name: str, mask: Array) -> Array:
    """Give a mask as booleans; a list of positions, which numbers other than 0 and 1 betray, is refused."""
    if mask.dtype.kind not in "iub" or (mask.size and not bool(((mask == 0) | (mask == 1)).all())):
        raise DataError(f"{name}_mask holds {mask.dtype} values other than 0 and 1; give a boolean a vertex.")
    return mask.astype(bool)


def _float(value: Any, name: str) -> Array | None:
    array = dense(value)
    return None if array is None else numbers_in(name, array)


def target_of(value: Any) -> Array | None:
    """Return y as classes (int64) or as numbers (float32)."""
    array = dense(value)
    if array is None:
        return None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    return array.astype(np.int64, copy=False) if array.dtype.kind in "iub" else numbers_in("y", array)


def _small(ids: Array) -> Array:
    if len(ids) and int(ids.min()) < 0:
        raise DataError(f"edge_index holds {int(ids.min())}; vertex ids must not be negative.")
    return ids.astype(np.int32 if not len(ids) or int(ids.max()) < 2**31 else np.int64, copy=False)


def edges_of(data: Any) -> tuple[Array, Array, Array | None]:
    """Return sources, targets and weights of all edges."""
    if hasattr(data, "edge_types") and hasattr(data, "node_types"):
        raise DataError(
            f"the object is a {type(data).__name__} with {len(data.edge_types)} types of edges, and one of a list; a"
            " timeline of relations is made by Timeline.from_events(…, relation=…)."
        )
    index, matrix = _get(data, "edge_index"), _get(data, "adj_t")
    if index is None and matrix is not None:
        target, source, values = coordinates(matrix)
        weight = _weight(data, len(source))
        # a matrix of ones says no more than that there is an edge
        plain = values is None or values.ndim > 1 or bool((values == 1).all())
        return _small(source), _small(target), weight if weight is not None or plain else values
    pairs = dense(index)
    if pairs is None or pairs.ndim != 2 or pairs.shape[0] != 2 or pairs.dtype.kind not in "iu":
        raise DataError("the object has no edge_index of integers [2, edges]; give a PyG Data object.")
    return _small(pairs[0]), _small(pairs[1]), _weight(data, pairs.shape[1])


def coordinates(matrix: Any) -> tuple[Array, Array, Array | None]:
    """Rows, columns and values (float32, or None) of a sparse matrix of torch_sparse, torch or scipy."""
    if not any(hasattr(matrix, name) for name in ("coo", "to_sparse_coo", "tocoo")):
        raise DataError(
            f"the matrix is a {type(matrix).__name__}; give a sparse matrix of torch, torch_sparse or scipy."
        )
    _square(matrix)
    if hasattr(matrix, "coo"):  # torch_sparse.SparseTensor
        row, column, values = matrix.coo()
    elif hasattr(matrix, "to_sparse_coo"):
        plain = matrix.detach().to_sparse_coo().coalesce()
        (row, column), values = plain.indices(), plain.values()
    else:
        plain = matrix.tocoo()
        row, column, values = plain.row, plain.col, plain.data
    return np.asarray(dense(row)), np.asarray(dense(column)), _float(values, "the matrix")


def _square(matrix: Any) -> int:
    """Give the size of a square matrix; refuse another."""
    shape = tuple(matrix.sparse_sizes()) if hasattr(matrix, "sparse_sizes") else tuple(getattr(matrix, "shape", ()))
    if len(shape) != 2 or shape[0] != shape[1]:
        raise DataError(f"the matrix has the shape {list(shape)}; a graph needs a square one.")
    return int(shape[0])


def _weight(data: Any, edges: int) -> Array | None:
    weight = _float(_get(data, "edge_weight"), "edge_weight")
    if weight is None:
        return None
    if weight.size != edges:
        raise DataError(f"edge_weight has the shape {list(weight.shape)} for {edges} edges; give one weight an edge.")
    return weight.reshape(edges)


def _attributes(data: Any, name: str, edges: int) -> Array | None:
    """float32 [edges, features]; says of a single column that it is no weight."""
    values = _float(_get(data, name), name)
    if values is None and _get(data, "edge_index") is None and hasattr(_get(data, "adj_t"), "coo"):
        values = _float(data.adj_t.coo()[2], "adj_t")  # a SparseTensor may hold several numbers an edge
        values = values if values is not None and values.ndim > 1 else None
    if values is None or values.size == 0:
        return None
    if not values.ndim or values.shape[0] != edges:
        raise DataError(f"{name} has the shape {list(values.shape)} for {edges} edges; give one row an edge.")
    values = values.reshape(edges, -1)
    if values.shape[1] == 1:
        warnings.warn(
            f"{name} is read as one feature an edge (edge_x), not as a weight; set edge_weight where it is one.",
            stacklevel=3,
        )
    return values


def _refuse_beyond(src: Array, dst: Array, x: Array | None) -> None:
    """Refuse an edge to a vertex that has no row of x."""
    for row, ids in enumerate((src, dst)):
        if x is not None and len(ids) and int(ids.max()) >= len(x):
            raise DataError(
                f"edge_index[{row}, {int(ids.argmax())}] is {int(ids.max())}, and x has {len(x)} rows, for vertices"
                f" 0..{len(x) - 1}; number the vertices from 0 without gaps, or give x a row for each."
            )


def _count(data: Any, src: Array, dst: Array, x: Array | None, y: Array | None) -> int:
    stated, matrix = _get(data, "num_nodes"), _get(data, "adj_t")
    if _get(data, "edge_index") is None and matrix is not None:
        stated = _square(matrix)
    highest = max((int(ids.max()) + 1 for ids in (src, dst) if len(ids)), default=0)
    return max(highest, int(stated or 0), len(x) if x is not None else 0, len(y) if y is not None else 0)
