"""What readers and generators hand on: plain arrays in the user's vertex order, checked by `trisect.graph`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class StaticRecord:
    """One graph. An edge runs from src to dst; `undirected` says that each edge stands for both directions.

    Attributes:
        x: float32 [vertices, features], or None.
        y: int64 [vertices] classes (-1: none), float32 [vertices, outputs] for regression, or None.
        splits: names `train`, `val`, `test` → bool [vertices] or [vertices, splits].
        names: the user's vertex ids (strings or integers), or None where they are 0..n-1.
    """

    vertices: int
    src: Array
    dst: Array
    weight: Array | None = None
    undirected: bool = False
    x: Array | None = None
    y: Array | None = None
    splits: dict[str, Array] = field(default_factory=dict)
    names: Array | None = None
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class TimelineRecord:
    """Events, already dealt to steps: the events of step t are the positions offsets[t] .. offsets[t+1]-1.

    Attributes:
        x: float32 [vertices, features] fixed, or [steps, vertices, features], or None (degrees are used).
        y: int64 [vertices] or [steps, vertices] classes; float32 [steps, vertices] for regression; or None.
        edge_y: int64 [events] classes of edges, or None.
        splits: as in StaticRecord where the task splits vertices.
    """

    vertices: int
    src: Array
    dst: Array
    offsets: Array
    weight: Array | None = None
    undirected: bool = False
    x: Array | None = None
    y: Array | None = None
    edge_y: Array | None = None
    splits: dict[str, Array] = field(default_factory=dict)
    names: Array | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """How many snapshots there are."""
        return len(self.offsets) - 1
