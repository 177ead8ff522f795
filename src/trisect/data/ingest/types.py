"""Several tables of vertices, one for each type, and the features of all types in one matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trisect.data.formats.hetero import joined_features
from trisect.data.ingest.sources import open_source
from trisect.data.ingest.vertices import VertexTable, fixed_features, read_vertices, require_once
from trisect.data.records import Array, Names
from trisect.errors import DataError

if TYPE_CHECKING:
    from trisect.data.ingest.ingest import Table


def read_types(table: Table, ids: Any) -> dict[str, VertexTable]:
    """Read the table of each type; all columns but the id and the label become its features.

    Args:
        ids: the common dictionary of all tables, so that an id names one vertex whatever its type.
    """
    for name in ("features", "vertex_time", "encoding"):
        if getattr(table, name) is not None:
            raise DataError(
                f"{name} is {getattr(table, name)!r}, and vertices has {len(table.vertices)} tables; it is for one."
            )
    label = table.label_column if table.labels is None else None
    read, found = {}, []
    for kind, frame in table.vertices.items():
        source = open_source(frame, [table.id], f"the table of vertices {kind!r}")
        own = label if label in source.names else None
        found += [kind] if own is not None else []
        read[str(kind)] = read_vertices(
            source, ids, f"vertices {kind}", identity=table.id, label=own, on_missing=table.on_missing
        )
    if label is not None and len(found) != 1:
        have = f"{len(found)} tables of vertices have ({', '.join(found)})" if found else "no table of vertices has"
        raise DataError(f"label_column is {label!r}, which {have}; name a column of one.")
    return read


def labelled_type(types: Mapping[str, VertexTable]) -> VertexTable | None:
    """Return the table whose vertices have labels."""
    return next((table for table in types.values() if table.label is not None), None)


def typed_features(
    types: Mapping[str, VertexTable],
    numbers: Mapping[str, Array],
    names: Names,
    vertices: int,
    train: Array | None,
    most: int,
    meta: dict[str, Any],
) -> tuple[Array | None, list[str]]:
    """Return x in the form of `joined_features`, and what to say of it; `meta` gets types and encodings.

    Args:
        numbers: of each table's role, the vertex of each row.
        names: of the vertices.
        train: the training vertices, bool [vertices]; None: not known.
        most: categories of a column that have a feature of their own.
    """
    kind_of = np.full(vertices, -1, np.int32)
    for number, (kind, table) in enumerate(types.items()):
        where = numbers[table.role]
        require_once(table, where)
        twice = where[kind_of[where] >= 0]
        if len(twice):
            other = list(types)[int(kind_of[twice[0]])]
            raise DataError(
                f"the id {names[int(twice[0])]} is in the tables of vertices {other!r} and {kind!r}; give each vertex"
                " one type, and ids that tell types apart."
            )
        kind_of[where] = number
    bare = np.flatnonzero(kind_of < 0)
    if len(bare):
        raise DataError(
            f"{len(bare):,} vertices are in no table of vertices, the first is {names[int(bare[0])]}; give each type"
            " its table."
        )
    found: list[Array | None] = []
    said: list[str] = []
    described: list[dict[str, Any]] = []
    for kind, table in types.items():
        where, x = numbers[table.role], None
        if table.raws:
            order = np.arange(len(where))
            x, used, lines = fixed_features(table, order, len(where), None if train is None else train[where], most)
            meta.setdefault("encoding", {})[f"vertices {kind}"] = used.plain()
            said += lines
        found.append(x)
        described.append({"name": kind, "vertices": len(where), "features": 0 if x is None else x.shape[1]})
    meta["vertex_types"] = described
    rows = np.concatenate([numbers[table.role] for table in types.values()])
    joined = joined_features(found, [kind["features"] for kind in described], [kind["vertices"] for kind in described])
    if joined is None:
        return None, said
    x = np.empty_like(joined)
    x[rows] = joined
    return x, said
