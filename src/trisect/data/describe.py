"""What a record holds, in numbers and in words: for `trisect data`, `check` and `train`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trisect.data.records import Array, Record, TextNames, TimelineRecord

BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Degrees:
    """Statistics of the degrees (events in and out of a vertex, over all steps)."""

    mean: float
    median: float
    top: int
    isolated: int


def degrees(record: Record) -> Degrees:
    """Degree statistics; an edge counts once at each end."""
    count = np.bincount(record.src, minlength=record.vertices) + np.bincount(record.dst, minlength=record.vertices)
    if not len(count):
        return Degrees(0.0, 0.0, 0, 0)
    return Degrees(float(count.mean()), float(np.median(count)), int(count.max()), int((count == 0).sum()))


def arrays_of(record: Record) -> dict[str, Array]:
    """Give every array of the record by name."""
    names = ("src", "dst", "offsets", "weight", "x", "y", "edge_x", "edge_y", "relation", "time")
    arrays = {name: array for name in names if (array := getattr(record, name, None)) is not None}
    arrays.update({f"split {name}": mask for name, mask in record.splits.items()})
    if isinstance(record.names, TextNames):
        arrays["names"] = record.names.data
    elif record.names is not None:
        arrays["names"] = record.names
    return arrays


def memory(record: Record) -> int:
    """Count the bytes of all arrays."""
    return sum(array.nbytes for array in arrays_of(record).values())


def sparkline(counts: Array, width: int = 60) -> str:
    """Counts as a row of bars, neighbours averaged where there are more than `width`.

    >>> sparkline(np.array([0, 1, 2, 7]))
    '▁▂▃█'
    """
    if len(counts) > width:
        counts = np.array([part.mean() for part in np.array_split(counts, width)])
    top = float(counts.max(initial=0.0))
    if top == 0:
        return BARS[0] * len(counts)
    return "".join(BARS[int(level)] for level in np.floor(counts / top * (len(BARS) - 1) + 1e-9))


def events_per_step(record: TimelineRecord) -> Array:
    """Count the events of each step: int64 [steps]."""
    return np.diff(record.offsets)


def class_sizes(y: Array) -> dict[str, int]:
    """Tell how many entries each class has; -1 is `none`."""
    classes, counts = np.unique(y, return_counts=True)
    return {"none" if int(k) == -1 else str(int(k)): int(n) for k, n in zip(classes, counts, strict=True)}


def class_counts(y: Array, names: Sequence[str] | None = None, most: int = 8) -> str:
    """Classes with their counts: `2 (fraud: 12, sound: 300; none: 5)`, the most frequent first.

    Args:
        names: of the classes, where they have any.
        most: how many classes are listed.
    """
    sizes = class_sizes(y)
    classes = [key for key in sizes if key != "none"]
    labelled = {key: names[int(key)] if names and int(key) < len(names) else key for key in classes}
    frequent = sorted(classes, key=lambda key: -sizes[key])[:most]
    listed = ", ".join(f"{labelled[key]}: {sizes[key]:,}" for key in frequent)
    rest = f", and {len(classes) - len(frequent)} more" if len(classes) > len(frequent) else ""
    none = f"; none: {sizes['none']:,}" if "none" in sizes else ""
    return f"{len(classes)} ({listed}{rest}{none})"


def target_range(y: Array) -> str:
    """Targets of a regression in words: `60, from -1.5 to 2.25, mean 0.1; none: 5`."""
    present = y[~np.isnan(y)]
    if not present.size:
        return f"0; none: {y.size:,}"
    none = f"; none: {y.size - present.size:,}" if present.size < y.size else ""
    return f"{present.size:,}, from {present.min():g} to {present.max():g}, mean {present.mean():g}{none}"


def notes(data: Any) -> list[str]:
    """What a run should say of its data at the start: classes with counts or targets, and features that are made up.

    Args:
        data: a record, or a graph or timeline made of one, whose arrays are tensors.
    """
    lines = []
    if data.y is not None and (y := np.asarray(data.y)).dtype.kind in "iu":
        lines.append(f"classes: {class_counts(y, data.class_names)}")
    elif data.y is not None and y.size:
        lines.append(f"targets: {target_range(y)}")
    edge_y = getattr(data, "edge_y", None)
    if edge_y is not None:
        lines.append(f"edge classes: {class_counts(np.asarray(edge_y), data.edge_class_names)}")
    if data.x is None:
        lines.append(
            "The data have no features; log(1 + in-degree) and log(1 + out-degree) stand in for them (a table of"
            " vertices brings its own: trisect data ingest --vertices)."
        )
    elif made := getattr(data, "meta", {}).get("made_features"):
        lines.append(f"The features are made up: {made}.")
    return lines
