"""What readers and generators hand on: plain arrays in the user's vertex order, checked by `trisect.graph`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


class TextNames:
    """Vertex ids that are text, kept as UTF-8 bytes with offsets, so that millions of them can stay on disk.

    `names[3]` is a `str`; `names[[3, 5]]`, `names[3:5]` and `np.asarray(names)` are arrays of text.
    """

    def __init__(self, offsets: Array, data: Array) -> None:
        self.offsets = offsets  # int64 [names + 1]
        self.data = data  # uint8 [bytes]

    @classmethod
    def of(cls, names: list[str]) -> TextNames:
        """From a list of strings (for small numbers of them; readers of tables build the arrays directly)."""
        encoded = [name.encode() for name in names]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(name) for name in encoded], out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(encoded), np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (int, np.integer)):
            position = int(index) + (len(self) if index < 0 else 0)
            if not 0 <= position < len(self):
                raise IndexError(f"There is no name {int(index)}; there are {len(self)}, counted from 0.")
            return bytes(self.data[self.offsets[position] : self.offsets[position + 1]]).decode()
        positions = np.arange(len(self))[index]
        starts, stops = self.offsets[positions], self.offsets[positions + 1]
        text = [bytes(self.data[a:b]).decode() for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        return np.array(text, dtype=np.str_)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype=dtype)

    def __repr__(self) -> str:
        return f"TextNames({len(self)})"


Names: TypeAlias = "Array | TextNames"


class VertexType(NamedTuple):
    """A type of vertices: what it is called, how many there are, and how many features they have."""

    name: str
    vertices: int
    features: int


def types_text(types: Sequence[VertexType]) -> str:
    """Return types with their widths as the option `types` of a model has them: `author:334,paper:4231`."""
    return ",".join(f"{kind.name}:{kind.features}" for kind in types)


@dataclass(frozen=True, eq=False)
class StaticRecord:
    """One graph. An edge runs from src to dst; `undirected` says that each edge stands for both directions.

    Attributes:
        src, dst: int32 or int64 [edges].
        weight: float32 [edges], or None.
        x: float32 [vertices, features], or None.
        y: int64 [vertices] classes (-1: none), float32 [vertices, outputs] for regression, or None.
        splits: names `train`, `val`, `test` → bool [vertices] or [vertices, splits].
        names: the user's vertex ids (strings or integers), or None where they are 0..n-1.
        edge_x: float32 [edges, features], the attributes of edges, or None.
        y_weight: float32 [vertices], how much each vertex counts in the loss, or None.
        relation: integers [edges], which relation each edge has, or None; `meta["relations"]` are the names.
        meta: whatever else is known: where the record came from, `task` (a default), `classes` (their names),
            `encoding` (how columns became features, see `trisect.data.ingest.encoding`), ….
    """

    vertices: int
    src: Array
    dst: Array
    weight: Array | None = None
    undirected: bool = False
    x: Array | None = None
    y: Array | None = None
    splits: dict[str, Array] = field(default_factory=dict)
    names: Names | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    edge_x: Array | None = None
    y_weight: Array | None = None
    relation: Array | None = None

    @property
    def vertex_types(self) -> tuple[VertexType, ...]:
        """Return the types of vertices, one after the other in their numbering; () where there is one."""
        types = self.meta.get("vertex_types")
        if not isinstance(types, list) or len(types) < 2:
            return ()
        found = tuple(VertexType(str(t["name"]), int(t["vertices"]), int(t["features"])) for t in types)
        return found if sum(kind.vertices for kind in found) == self.vertices else ()

    @property
    def relations(self) -> list[str] | None:
        """Return the names of the relations of edges; None where edges are of one kind, or relations are numbers."""
        return _named(self.relation, self.meta.get("relations"))

    @property
    def class_names(self) -> list[str] | None:
        """Give what class k of y is called; None where classes are numbers."""
        return _named(self.y, self.meta.get("classes"))


@dataclass(frozen=True, eq=False)
class TimelineRecord:
    """Events, already dealt to steps: the events of step t are the positions offsets[t] .. offsets[t+1]-1.

    Attributes:
        src, dst: int32 or int64 [events].
        offsets: int64 [steps + 1].
        x: float32 [vertices, features] fixed, or [steps, vertices, features], or None (degrees are used).
        y: int64 [vertices] or [steps, vertices] classes; float32 [steps, vertices] for regression; or None.
        edge_y: integers (int8 where the events are many) [events], the classes of edges, or None.
        edge_x: float32 [events, features], the attributes of events, or None.
        relation: integers [events], as in StaticRecord.
        splits: as in StaticRecord where the task splits vertices.
        time: the events' times in the unit of the source [events], where they are kept (other periods need them).
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
    names: Names | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    time: Array | None = None
    edge_x: Array | None = None
    y_weight: Array | None = None
    relation: Array | None = None

    @property
    def relations(self) -> list[str] | None:
        """Return the names of the relations of events; None where events are of one kind, or relations are numbers."""
        return _named(self.relation, self.meta.get("relations"))

    @property
    def steps(self) -> int:
        """Count the snapshots of the timeline."""
        return len(self.offsets) - 1

    @property
    def class_names(self) -> list[str] | None:
        """Give what class k of y is called; None where classes are numbers."""
        return _named(self.y, self.meta.get("classes"))

    @property
    def edge_class_names(self) -> list[str] | None:
        """Give what class k of edge_y is called; None where classes are numbers."""
        return _named(self.edge_y, self.meta.get("edge_classes"))


Record: TypeAlias = "StaticRecord | TimelineRecord"


def _named(classes: Array | None, names: Any) -> list[str] | None:
    """Give the names where there is one for each class; a file that somebody else made may hold anything."""
    if classes is None or classes.dtype.kind not in "iu" or not isinstance(names, list):
        return None
    enough = len(names) > int(classes.max(initial=-1)) and all(isinstance(name, str) for name in names)
    return names if enough else None
