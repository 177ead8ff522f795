"""Features of the vertices of a timeline, made from its events: `data.features`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trisect.data.derive import activity_features, signed_log
from trisect.data.records import Array, TimelineRecord
from trisect.data.room import require_room
from trisect.errors import ConfigError, DataError

PARTS = ("degree", "activity", "repeats")
_FORMS = "a width (random features), 'activity', or a mapping of degree (a width), activity and repeats (windows)"


def check_features(value: Any) -> None:
    """Refuse a `data.features` that has none of the forms of `with_features`."""
    if value is None or value == "activity" or _is_positive_integer(value):
        return
    if not isinstance(value, Mapping) or not value:
        raise ConfigError(f"data.features is {value!r}; give {_FORMS}.")
    for key, part in value.items():
        if key not in PARTS:
            raise ConfigError(f"data.features has the key {key!r}; it may have {', '.join(PARTS)}.")
        windows = (
            isinstance(part, (list, tuple)) and len(part) > 0 and all(_is_positive_integer(window) for window in part)
        )
        if not (_is_positive_integer(part) if key == "degree" else windows):
            wanted = "a width" if key == "degree" else "a list of window lengths in steps"
            raise ConfigError(f"data.features.{key} is {part!r}; give {wanted}, each at least 1.")


def with_features(record: TimelineRecord, features: int | str | Mapping[str, Any], seed: int) -> TimelineRecord:
    """Give the record with made features instead of its own.

    Args:
        features: a width: random features, fixed for each vertex. `activity`: see `activity_features`. Or a mapping,
            whose parts stand side by side, [steps, vertices, ·]: `degree: K`, one-hot of the number of distinct
            neighbours in the step, K - 1 standing for all from there on; `activity: [w, …]`, for each window
            log(1 + ·) of the events out and in over the last w steps (together where the timeline is undirected), and
            of their weights, in units of the mean size of a weight up to the step, where it has weights; `repeats: [w,
            …]`, log(1 + ·) of the events out and in that were not the first of their pair in the window.

    A sum of weights below 0 counts as -log(1 + |·|). The features of a step read no later one.
    """
    check_features(features)
    if features == "activity":
        return replace(record, x=activity_features(record))
    if isinstance(features, str):
        raise DataError(f"data.features is {features!r}; give {_FORMS}.")
    if isinstance(features, int):
        rng = np.random.default_rng([seed, 0xFEA7])
        meta = {**record.meta, "made_features": f"{features} random numbers a vertex (data.features)"}
        require_room(4.0 * record.vertices * features, f"data.features of {features:,} numbers a vertex")
        return replace(record, x=rng.standard_normal((record.vertices, features), dtype=np.float32), meta=meta)
    parts = []
    if "degree" in features:
        parts.append(_one_hot_degree(record, features["degree"]))
    if "activity" in features:
        parts.append(_windows(record, features["activity"]))
    if "repeats" in features:
        parts.append(_repeats(record, features["repeats"]))
    return replace(record, x=np.concatenate(parts, axis=2))


def _is_positive_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _one_hot_degree(record: TimelineRecord, width: int) -> Array:
    """float32 [steps, vertices, width]; a neighbour is who is met in either direction, oneself excepted."""
    require_room(4.0 * record.steps * record.vertices * width, f"data.features of {width:,} columns")
    x = np.zeros((record.steps, record.vertices, width), np.float32)
    everyone = np.arange(record.vertices)
    for t in range(record.steps):
        there = slice(int(record.offsets[t]), int(record.offsets[t + 1]))
        src, dst = record.src[there].astype(np.int64), record.dst[there].astype(np.int64)
        low, high = np.minimum(src, dst), np.maximum(src, dst)
        pairs = np.unique((low * record.vertices + high)[low != high])
        ends = np.concatenate([pairs // record.vertices, pairs % record.vertices])
        degree = np.bincount(ends, minlength=record.vertices)
        x[t, everyone, np.minimum(degree, width - 1)] = 1.0
    return x


def _windows(record: TimelineRecord, windows: list[int]) -> Array:
    """float32 [steps, vertices, windows · columns]."""
    step = np.repeat(np.arange(record.steps), np.diff(record.offsets))
    size = record.steps * record.vertices
    columns: list[Array] = []
    for weight in (None,) if record.weight is None else (None, record.weight):
        sides = [
            np.bincount(step * record.vertices + ends, weights=weight, minlength=size).reshape(record.steps, -1)
            for ends in (record.src, record.dst)
        ]
        columns.extend([sides[0] + sides[1]] if record.undirected else sides)
    past = np.cumsum(np.stack(columns, axis=2, dtype=np.float64), axis=0)
    units = np.ones((record.steps, 1, len(columns)))
    if record.weight is not None:  # so that both kinds of columns have the same scale
        units[:, 0, len(columns) // 2 :] = _mean_size(record, record.weight)[:, None]
    x = np.empty((record.steps, record.vertices, len(windows) * len(columns)), np.float32)
    for k, window in enumerate(windows):
        recent = past.copy()
        recent[window:] -= past[:-window]
        x[:, :, k * len(columns) : (k + 1) * len(columns)] = signed_log(recent / units)
    return x


def _mean_size(record: TimelineRecord, weight: Array) -> Array:
    """float64 [steps]: the mean size of the weights up to each step, that step included; 1 where all are 0."""
    sums = np.concatenate([[0.0], np.cumsum(np.abs(weight), dtype=np.float64)])[record.offsets[1:]]
    means: Array = sums / np.maximum(record.offsets[1:] - record.offsets[0], 1)
    return np.where(means > 0, means, 1.0)


def _repeats(record: TimelineRecord, windows: list[int]) -> Array:
    """float32 [steps, vertices, windows · (1 or 2)]."""
    n, sides = record.vertices, 1 if record.undirected else 2
    x = np.empty((record.steps, n, len(windows) * sides), np.float32)
    codes = record.src.astype(np.int64) * n + record.dst
    if record.undirected:
        back = record.dst.astype(np.int64) * n + record.src
    for t in range(record.steps):
        for k, window in enumerate(windows):
            recent = slice(int(record.offsets[max(0, t + 1 - window)]), int(record.offsets[t + 1]))
            met = np.concatenate([codes[recent], back[recent]]) if record.undirected else codes[recent]
            pairs, often = np.unique(met, return_counts=True)
            again = often - 1
            for side, ends in enumerate((pairs // n, pairs % n)[:sides]):
                x[t, :, k * sides + side] = np.bincount(ends, weights=again, minlength=n)
    return np.log1p(x, out=x)
