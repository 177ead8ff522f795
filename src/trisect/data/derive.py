"""What can be made from a record: both directions, random features and labels, the activity of each vertex and step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trisect.data.records import Array, StaticRecord, TimelineRecord
from trisect.data.room import require_room
from trisect.errors import DataError


def symmetric(record: StaticRecord) -> StaticRecord:
    """Make the undirected graph with each pair once; the weights of both directions add up, and edge features
    are averaged."""
    if record.undirected:
        return record
    if record.relation is not None:  # two vertices may have edges of several relations
        return replace(record, undirected=True)
    low, high = np.minimum(record.src, record.dst), np.maximum(record.src, record.dst)
    key = low.astype(np.int64) * record.vertices + high
    weight, edge_x = record.weight, record.edge_x
    if weight is None and edge_x is None:
        pairs = np.unique(key)
    else:
        pairs, position, counts = np.unique(key, return_inverse=True, return_counts=True)

        def total(values: Array) -> Array:
            return np.bincount(position, weights=values, minlength=len(pairs))

        weight = None if weight is None else total(weight).astype(np.float32)
        if edge_x is not None:
            edge_x = np.stack([total(column) / counts for column in edge_x.T], axis=1).astype(np.float32)
    src, dst = (pairs // record.vertices).astype(low.dtype), (pairs % record.vertices).astype(low.dtype)
    return replace(record, src=src, dst=dst, weight=weight, edge_x=edge_x, undirected=True)


def random_task(record: StaticRecord, features: int | None, classes: int | None, seed: int) -> StaticRecord:
    """Seeded random features, and classes that a random teacher gives to a vertex and the mean of its neighbours."""
    rng = np.random.default_rng([seed, 0xFEA7])
    x, meta = record.x, record.meta
    if features is not None:
        if features < 1:
            raise DataError(f"data.features is {features}; it must be at least 1.")
        require_room(4.0 * record.vertices * features, f"data.features of {features:,} numbers a vertex")
        x = rng.standard_normal((record.vertices, features), dtype=np.float32)
        meta = {**meta, "made_features": f"{features} random numbers a vertex (data.features)"}
    if classes is None:
        return replace(record, x=x, meta=meta)
    if classes < 2:
        raise DataError(f"data.classes is {classes}; it must be at least 2.")
    if x is None:
        raise DataError("data.classes needs features; give data.features, a width, as well.")
    score = np.ascontiguousarray((x @ rng.standard_normal((x.shape[1], classes), dtype=np.float32)).T)
    ends = [(record.src, record.dst), (record.dst, record.src)][: 2 if record.undirected else 1]
    degree = np.maximum(sum(np.bincount(dst, minlength=record.vertices) for _, dst in ends), 1)
    for k in range(classes):  # score is [classes, vertices]
        own = score[k]
        around = sum(np.bincount(dst, weights=own[src], minlength=record.vertices) for src, dst in ends) / degree
        score[k] = own / max(float(own.std()), 1e-6) + around / max(float(around.std()), 1e-6)
    return replace(record, x=x, y=np.argmax(score, axis=0).astype(np.int64), splits={}, meta=meta)


def activity_features(record: TimelineRecord) -> Array:
    """float32 [steps, vertices, 4]: log(1 + ·) of the events out and in, and of the weights out and in, by step.

    A sum of weights below 0 counts as -log(1 + |·|).
    """
    x = np.zeros((record.steps, record.vertices, 4), np.float32)
    for t in range(record.steps):
        there = slice(int(record.offsets[t]), int(record.offsets[t + 1]))
        weight = None if record.weight is None else record.weight[there]
        for column, ends in enumerate((record.src[there], record.dst[there])):
            x[t, :, column] = np.bincount(ends, minlength=record.vertices)
            x[t, :, column + 2] = (
                x[t, :, column] if weight is None else np.bincount(ends, weights=weight, minlength=record.vertices)
            )
    return signed_log(x)


def signed_log(x: Array) -> Array:
    """log(1 + |x|) with the sign of x."""
    return np.copysign(np.log1p(np.abs(x)), x)
