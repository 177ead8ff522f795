"""What can be made from a record: both directions, random features and labels, the activity of each vertex and step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trisect.data.records import Array, StaticRecord, TimelineRecord
from trisect.errors import DataError


def symmetric(record: StaticRecord) -> StaticRecord:
    """The undirected graph with each pair once; the weights of a pair's two directions add up."""
    if record.undirected:
        return record
    low, high = np.minimum(record.src, record.dst), np.maximum(record.src, record.dst)
    key = low.astype(np.int64) * record.vertices + high
    weight = record.weight
    if weight is None:
        pairs = np.unique(key)
    else:
        pairs, position = np.unique(key, return_inverse=True)
        weight = np.bincount(position, weights=weight, minlength=len(pairs)).astype(np.float32)
    src, dst = (pairs // record.vertices).astype(low.dtype), (pairs % record.vertices).astype(low.dtype)
    return replace(record, src=src, dst=dst, weight=weight, undirected=True)


def random_task(record: StaticRecord, features: int | None, classes: int | None, seed: int) -> StaticRecord:
    """Seeded random features, and classes that a random teacher gives to a vertex and the mean of its neighbours."""
    rng = np.random.default_rng([seed, 0xFEA7])
    x = record.x
    if features is not None:
        if features < 1:
            raise DataError(f"data.features is {features}; it must be at least 1.")
        x = rng.standard_normal((record.vertices, features), dtype=np.float32)
    if classes is None:
        return replace(record, x=x)
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
    return replace(record, x=x, y=np.argmax(score, axis=0).astype(np.int64), splits={})


def activity_features(record: TimelineRecord) -> Array:
    """float32 [steps, vertices, 4]: log(1 + ·) of the events out and in, and of the weights out and in, by step."""
    x = np.zeros((record.steps, record.vertices, 4), np.float32)
    for t in range(record.steps):
        there = slice(int(record.offsets[t]), int(record.offsets[t + 1]))
        weight = None if record.weight is None else record.weight[there]
        for column, ends in enumerate((record.src[there], record.dst[there])):
            x[t, :, column] = np.bincount(ends, minlength=record.vertices)
            x[t, :, column + 2] = (
                x[t, :, column] if weight is None else np.bincount(ends, weights=weight, minlength=record.vertices)
            )
    return np.log1p(x, out=x)
