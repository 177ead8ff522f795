"""Graphs in npz archives: the shape of the archive is recognised from the arrays in it, never from its name.

| format | arrays | becomes |
|---|---|---|
| E events | src, dst, time; per event weight or amount, rating, outcome, etype | timeline |
| S signals | y [steps, vertices] with edges, or with the arrays of E | timeline, regression |
| P planetoid | edge_index, label, x_indptr …, train_idx … | static, edges as they are |
| H heterophilous | edges, node_features, node_labels, train_masks … | static, each edge once |
| B binary | edges, label, x_indptr, x_indices, x_shape | static, each edge once |
| C structure | indptr, indices | static, directed |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trisect.data.derive import random_task, symmetric
from trisect.data.features import with_features
from trisect.data.formats.npy import read_archive
from trisect.data.ingest.periods import Period, offsets_of, steps_of
from trisect.data.records import Array, Record, StaticRecord, TimelineRecord
from trisect.data.room import reading, require_room
from trisect.data.sound import sound
from trisect.data.splits import choose_split, random_splits
from trisect.errors import DataError

Target = Literal["raw", "log1p", "standardised"]
_TRAIN_FRACTION = 0.7  # targets are standardised with the mean and deviation of the first steps only


@dataclass(frozen=True)
class Options:
    """How to read a named data set or an npz archive.

    Attributes:
        period: the length of a step (events); `"distinct"` makes each distinct time a step.
        split: which of several splits; `all` (or None) keeps them all, [vertices, splits].
        row_normalise: divide each vertex's features by their sum; by default for planetoid sets.
        symmetrise: make a directed graph undirected.
        features: a width (random features); for timelines also what `features.with_features` takes.
        classes: for graphs without labels: classes that depend on the random features of a vertex and its neighbours.
        lags: signals: how many earlier values are the features of a step.
        target: signals: `raw`, `log1p` or `standardised`.
        seed: of random features, labels and splits.
        relation: the array that says which relation each edge has, as numbers from 0.
    """

    period: Period | None = None
    split: int | Literal["all"] | None = 0
    row_normalise: bool | None = None
    symmetrise: bool = False
    features: int | str | Mapping[str, Any] | None = None
    classes: int | None = None
    lags: int | None = None
    target: Target = "raw"
    seed: int = 0
    relation: str | None = None


def read_npz(path: Path, options: Options) -> Record:
    """Read the graph in an npz archive."""
    arrays = read_archive(path)
    with reading(f"data file {path}", "its arrays do not fit together as docs/formats.md says"):
        return sound(from_arrays(arrays, options, str(path)), str(path))


def recognise(arrays: Mapping[str, Array]) -> str | None:
    """Give the letter of the archive's format, or None."""
    names = set(arrays)
    signal = "y" in names and arrays["y"].ndim == 2 and arrays["y"].dtype.kind == "f"
    if {"src", "dst", "time"} <= names:
        return "S" if signal and len(arrays["y"]) > 1 else "E"
    if "edge_index" in names:
        return "P"
    if "edges" in names:
        if signal and not names & {"node_features", "x", "x_indptr"}:
            return "S"
        return "B" if "x_indptr" in names else "H"
    return "C" if {"indptr", "indices"} <= names else None


def from_arrays(arrays: Mapping[str, Array], options: Options, source: str = "arrays") -> Record:
    """Give the record of arrays in one of the formats above."""
    form = recognise(arrays)
    if form is None:
        raise DataError(
            f"{source} holds {', '.join(sorted(arrays)) or 'nothing'}, which is no known graph; give src, dst and "
            "time, or edge_index, or edges, or indptr and indices."
        )
    meta: dict[str, Any] = {"source": source, "format": form}
    relation = None
    if options.relation is not None:
        relation = _relation(arrays, options.relation, source)
        meta["relations"] = [str(k) for k in range(int(relation.max(initial=-1)) + 1)]
    return (_timeline if form in "ES" else _static)(arrays, options, meta, relation)


def _relation(arrays: Mapping[str, Array], name: str, source: str) -> Array:
    """Return the relation of each edge, from 0."""
    if name not in arrays:
        raise DataError(f"data.relation is {name!r}, and {source} holds {', '.join(sorted(arrays))}; name one of them.")
    relation = arrays[name]
    if relation.ndim != 1 or relation.dtype.kind not in "iu" or (len(relation) and int(relation.min()) < 0):
        raise DataError(f"data.relation is {name!r}, which holds no numbers from 0 of edges; name another array.")
    return relation.astype(np.int32)


def _static(
    arrays: Mapping[str, Array], options: Options, meta: dict[str, Any], relation: Array | None
) -> StaticRecord:
    if "edge_index" in arrays:
        src, dst, undirected = arrays["edge_index"][0], arrays["edge_index"][1], False
    elif "edges" in arrays:
        src, dst, undirected = arrays["edges"][:, 0], arrays["edges"][:, 1], True
    else:
        dst = arrays["indices"]
        src = np.repeat(np.arange(len(arrays["indptr"]) - 1, dtype=np.int32), np.diff(arrays["indptr"]))
        undirected = False
    x = _features(arrays)
    y = _first(arrays, "label", "node_labels", "y")
    vertices = _vertices(src, dst, x, y, arrays.get("indptr", np.zeros(1))[1:] if "indptr" in arrays else None)
    if y is None and "node_group" in arrays:
        y = _single_groups(arrays["node_group"], vertices)
        meta["note"] = "vertices in several groups have class -1"
    y = None if y is None else _labels(y)
    planetoid = meta["format"] == "P"
    normalise = options.row_normalise if options.row_normalise is not None else planetoid
    if x is not None and normalise:
        total = x.sum(axis=1, keepdims=True)
        x = x / np.where(total == 0, 1, total)
    record = StaticRecord(
        vertices=vertices,
        src=_ids(src),
        dst=_ids(dst),
        weight=_weight(arrays),
        undirected=undirected,
        x=x,
        y=y,
        splits=_splits(arrays, vertices, options.split),
        names=_first(arrays, "node_id"),
        meta=meta,
        relation=relation,
    )
    if options.symmetrise:
        record = symmetric(record)
    if options.features is not None and not isinstance(options.features, int):
        raise DataError(f"data.features is {options.features!r}; for a static graph give a width (random features).")
    if options.features is not None or options.classes is not None:
        record = random_task(record, options.features, options.classes, options.seed)
    if record.y is not None and record.y.dtype.kind == "i" and not record.splits:
        record = replace(record, splits=random_splits(record.y, options.seed))
        meta["splits"] = f"random 60/20/20, seed {options.seed}"
    return record


def _timeline(
    arrays: Mapping[str, Array], options: Options, meta: dict[str, Any], relation: Array | None
) -> TimelineRecord:
    signal = arrays["y"] if meta["format"] == "S" else None
    if "src" in arrays:
        src, dst, time = arrays["src"], arrays["dst"], arrays["time"]
        period = options.period if options.period is not None else _natural(time)
        steps = steps_of(time, period)
        order = None if bool((steps[1:] >= steps[:-1]).all()) else np.argsort(steps, kind="stable")
        offsets = offsets_of(steps, None if signal is None else len(signal))
        meta["period"] = period
    else:
        edges, count = arrays["edges"], len(arrays["y"])
        src, dst = np.tile(edges[:, 0], count), np.tile(edges[:, 1], count)
        time, order = np.repeat(np.arange(count, dtype=np.int32), len(edges)), None
        offsets = np.arange(count + 1, dtype=np.int64) * len(edges)
    if signal is not None and len(offsets) - 1 != len(signal):
        raise DataError(
            f"period {options.period!r} gives {len(offsets) - 1} steps but y has {len(signal)}; leave it out."
        )
    y = _first(arrays, "is_fraud", "label", "node_labels") if signal is None else None
    per_vertex = _first(arrays, "node_id", "arxiv_id", "bus_stop")
    vertices = _vertices(src, dst, per_vertex, y if signal is None else signal.T)
    weight, edge_y = _weight(arrays), _edge_classes(arrays, meta)
    if weight is not None and "src" not in arrays:
        weight = np.tile(weight, len(arrays["y"]))
    if order is not None:
        src, dst, time = src[order], dst[order], time[order]
        weight = None if weight is None else weight[order]
        edge_y = None if edge_y is None else edge_y[order]
        relation = None if relation is None else relation[order]
    record = TimelineRecord(
        vertices=vertices,
        src=_ids(src),
        dst=_ids(dst),
        offsets=offsets,
        weight=weight,
        undirected=options.symmetrise,
        x=None if "x" not in arrays else arrays["x"].astype(np.float32, copy=False),
        y=None if y is None else _labels(y),
        edge_y=edge_y,
        splits=_splits(arrays, vertices, options.split),
        names=per_vertex,
        meta=meta,
        time=time,
        relation=relation,
    )
    if signal is not None:
        record = _signal(record, signal.astype(np.float32), options)
    elif options.lags is not None:
        raise DataError(f"data.lags is {options.lags}, but {meta['source']} has no signal y [steps, vertices] to lag.")
    if options.features is not None:
        record = with_features(record, options.features, options.seed)
    return record


def _signal(record: TimelineRecord, y: Array, options: Options) -> TimelineRecord:
    """Targets, and the `lags` values before each as its features; the first `lags` steps have no past and go."""
    lags = options.lags if options.lags is not None else (0 if record.x is not None else 4)
    if not 0 <= lags < len(y):
        raise DataError(f"data.lags is {lags}; it must be at least 0 and less than the number of steps, {len(y)}.")
    if lags == 0 and record.x is None:
        raise DataError("data.lags is 0, but the data set has no other features; give at least 1.")
    if options.target == "log1p":
        y = np.log1p(y)
    elif options.target == "standardised":
        seen = y[: max(1, int(_TRAIN_FRACTION * len(y)))]
        mean, deviation = float(seen.mean()), float(seen.std()) or 1.0
        record.meta["target_mean"], record.meta["target_deviation"] = mean, deviation
        y = (y - np.float32(mean)) / np.float32(deviation)
    elif options.target != "raw":
        raise DataError(f"data.target is {options.target!r}; it must be raw, log1p or standardised.")
    steps = len(y)
    x = record.x[lags:] if record.x is not None else None
    if lags:
        past = np.stack([y[k : steps - lags + k] for k in range(lags)], axis=2)  # [steps - lags, vertices, lags]
        x = past if x is None else np.concatenate([x, past], axis=2)
    first = int(record.offsets[lags])
    return replace(
        record,
        src=record.src[first:],
        dst=record.dst[first:],
        weight=None if record.weight is None else record.weight[first:],
        edge_y=None if record.edge_y is None else record.edge_y[first:],
        relation=None if record.relation is None else record.relation[first:],
        time=None if record.time is None else record.time[first:],
        offsets=record.offsets[lags:] - first,
        x=x,
        y=y[lags:],
    )


def _natural(time: Array) -> Period:
    """Whole numbers of a short span count steps themselves; anything else needs a period from the user."""
    if len(time) and time.dtype.kind in "iu" and int(time.max()) - int(time.min()) < 10_000:
        return 1
    raise DataError("data.period is missing; give the length of a step, such as '1d' or a number in the times' unit.")


def _first(arrays: Mapping[str, Array], *names: str) -> Array | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _ids(ids: Array) -> Array:
    if ids.dtype.kind not in "iu":
        raise DataError(f"vertex ids are of type {ids.dtype}; they must be integers.")
    if len(ids) and int(ids.min()) < 0:
        raise DataError(f"a vertex id is {int(ids.min())}; ids must not be negative.")
    return np.ascontiguousarray(ids, dtype=np.int32 if not len(ids) or int(ids.max()) < 2**31 else np.int64)


def _vertices(src: Array, dst: Array, *per_vertex: Array | None) -> int:
    """Count the vertices: the longest array per vertex, or one more than the highest id."""
    for ids in (src, dst):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise DataError(f"vertex ids are {ids.dtype} {list(ids.shape)}; they must be integers of one dimension.")
    highest = max((int(ids.max()) + 1 for ids in (src, dst) if len(ids)), default=0)
    require_room(32.0 * highest, f"a graph of {highest:,} vertices")
    return max([highest, *(len(array) for array in per_vertex if array is not None)])


def _features(arrays: Mapping[str, Array]) -> Array | None:
    dense = _first(arrays, "node_features", "x")
    if dense is not None:
        return dense.astype(np.float32, copy=False)
    if "x_indptr" not in arrays:
        return None
    indptr, indices = arrays["x_indptr"], arrays["x_indices"]
    rows = len(indptr) - 1
    shape = [int(n) for n in arrays["x_shape"]]  # written as (vertices, features) by some, the other way by others
    width = shape[1] if shape[0] == rows and int(indices.max(initial=0)) < shape[1] else shape[0]
    require_room(4.0 * rows * width, f"x of {rows:,} rows and {width:,} columns")
    x = np.zeros((rows, width), np.float32)
    x[np.repeat(np.arange(rows), np.diff(indptr)), indices] = arrays.get("x_data", np.ones(1, np.float32))
    return x


def _labels(y: Array) -> Array:
    return y.astype(np.int64) if y.dtype.kind in "iub" else y.astype(np.float32)


def _single_groups(pairs: Array, vertices: int) -> Array:
    """Classes from (vertex, group) rows: the group of a vertex that has one, -1 where it has several or none."""
    y = np.full(vertices, -1, np.int64)
    y[pairs[:, 0]] = pairs[:, 1]
    y[np.bincount(pairs[:, 0], minlength=vertices) != 1] = -1
    return y


def _weight(arrays: Mapping[str, Array]) -> Array | None:
    weight = _first(arrays, "weight", "amount", "edge_weight")
    return None if weight is None else weight.astype(np.float32, copy=False)


def _edge_classes(arrays: Mapping[str, Array], meta: dict[str, Any]) -> Array | None:
    if "rating" in arrays:
        meta["edge_classes"] = ["negative", "positive"]
        return (arrays["rating"] > 0).astype(np.int64)
    if "outcome" in arrays:
        meta["edge_classes"] = ["lost", "drawn", "won"]
        return arrays["outcome"].astype(np.int64) + 1
    types = _first(arrays, "etype", "edge_y", "edge_label")
    return None if types is None else types.astype(np.int64)


def _splits(arrays: Mapping[str, Array], vertices: int, chosen: int | str | None) -> dict[str, Array]:
    index = chosen if isinstance(chosen, int) else None
    splits: dict[str, Array] = {}
    for name in ("train", "val", "test"):
        if f"{name}_idx" in arrays:
            splits[name] = np.zeros(vertices, dtype=bool)
            splits[name][arrays[f"{name}_idx"]] = True
        elif f"{name}_masks" in arrays:
            splits[name] = arrays[f"{name}_masks"].T
        elif f"{name}_mask" in arrays:
            splits[name] = arrays[f"{name}_mask"].astype(bool)
    count = next((mask.shape[1] for mask in splits.values() if mask.ndim == 2), 1)
    if index is not None and not 0 <= index < count:
        raise DataError(f"data.split is {index}; the data set has {count}, numbered from 0.")
    return choose_split(splits, index)
