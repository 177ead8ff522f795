"""PyTorch Geometric's objects, by the attributes that they have: PyG itself is never imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trisect.data.periods import Period, offsets_of, steps_of
from trisect.data.records import Array, StaticRecord, TimelineRecord
from trisect.errors import DataError


def static_from_pyg(data: Any) -> StaticRecord:
    """A `Data` object: `edge_index`, and where present `edge_weight`, `x`, `y`, `train_mask`, `val_mask`, `test_mask`.

    `edge_attr` of one column counts as weights where there is no `edge_weight`. The edges are taken as they are.
    """
    src, dst = _edges(data)
    x, y = _float(_get(data, "x")), _target(_get(data, "y"))
    vertices = _count(data, src, dst, x, y)
    splits = {
        name: mask.astype(bool)
        for name in ("train", "val", "test")
        if (mask := _array(_get(data, f"{name}_mask"))) is not None
    }
    return StaticRecord(
        vertices=vertices, src=src, dst=dst, weight=_weight(data), x=x, y=y, splits=splits, meta={"source": "PyG"}
    )


def timeline_from_pyg(obj: Any, period: Period | None = None) -> TimelineRecord:
    """A `TemporalData` (`src`, `dst`, `t`, a first column of `msg` as weight), or a list of `Data`, one for each step.

    Args:
        period: of a `TemporalData`: the length of a step in the unit of `t`, or a text such as `"1d"` (t in seconds).
    """
    if isinstance(obj, Sequence) or not hasattr(obj, "src"):
        if period is not None:
            raise DataError(f"period is {period!r}, but a list of Data has one object for each step; leave it out.")
        return _snapshots(list(obj))
    src, dst, time = _array(obj.src), _array(obj.dst), _array(obj.t)
    if src is None or dst is None or time is None:
        raise DataError("the TemporalData lacks src, dst or t; give all three.")
    if period is None:
        raise DataError("period is missing; give the length of a step in the unit of t.")
    steps = steps_of(time, period)
    order = np.argsort(steps, kind="stable")
    message, edge_y = _float(_get(obj, "msg")), _array(_get(obj, "y"))
    weight = None
    if message is not None and message.size:
        weight = message.reshape(len(src), -1)
        weight = weight[order, 0] if weight.shape[1] == 1 else None
    src, dst = _small(src[order]), _small(dst[order])
    return TimelineRecord(
        vertices=_count(obj, src, dst, None, None),
        src=src,
        dst=dst,
        offsets=offsets_of(steps),
        weight=weight,
        edge_y=None if edge_y is None or len(edge_y) != len(src) else edge_y[order].astype(np.int64),
        meta={"source": "PyG", "period": period},
        time=time[order],
    )


def _snapshots(steps: list[Any]) -> TimelineRecord:
    if not steps:
        raise DataError("the list of Data is empty; give one object for each step.")
    edges = [_edges(data) for data in steps]
    weights = [_weight(data) for data in steps]
    xs = [_float(_get(data, "x")) for data in steps]
    ys = [_target(_get(data, "y")) for data in steps]
    vertices = max(_count(data, *edge, x, y) for data, edge, x, y in zip(steps, edges, xs, ys, strict=True))
    offsets = np.zeros(len(steps) + 1, np.int64)
    np.cumsum([len(src) for src, _ in edges], out=offsets[1:])
    return TimelineRecord(
        vertices=vertices,
        src=np.concatenate([src for src, _ in edges]),
        dst=np.concatenate([dst for _, dst in edges]),
        offsets=offsets,
        weight=_joined(weights, "edge_weight", np.concatenate),
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


def _array(value: Any) -> Array | None:
    if value is None:
        return None
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)


def _float(value: Any) -> Array | None:
    array = _array(value)
    return None if array is None else array.astype(np.float32, copy=False)


def _target(value: Any) -> Array | None:
    array = _array(value)
    if array is None:
        return None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    return array.astype(np.int64 if array.dtype.kind in "iub" else np.float32, copy=False)


def _small(ids: Array) -> Array:
    if len(ids) and int(ids.min()) < 0:
        raise DataError(f"edge_index holds {int(ids.min())}; vertex ids must not be negative.")
    return ids.astype(np.int32 if not len(ids) or int(ids.max()) < 2**31 else np.int64, copy=False)


def _edges(data: Any) -> tuple[Array, Array]:
    index = _array(_get(data, "edge_index"))
    if index is None or index.ndim != 2 or index.shape[0] != 2 or index.dtype.kind not in "iu":
        raise DataError("the object has no edge_index of integers [2, edges]; give a PyG Data object.")
    return _small(index[0]), _small(index[1])


def _weight(data: Any) -> Array | None:
    weight = _float(_get(data, "edge_weight"))
    if weight is None:
        weight = _float(_get(data, "edge_attr"))
        if weight is not None and weight.ndim == 2:
            weight = weight[:, 0] if weight.shape[1] == 1 else None
    return weight


def _count(data: Any, src: Array, dst: Array, x: Array | None, y: Array | None) -> int:
    stated = _get(data, "num_nodes")
    highest = max((int(ids.max()) + 1 for ids in (src, dst) if len(ids)), default=0)
    return max(highest, int(stated or 0), len(x) if x is not None else 0, len(y) if y is not None else 0)
