"""Labels of vertices, from a table or an .npy file, and how a table's ids meet those of the edges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trisect.data.ingest.attributes import classes, is_absent
from trisect.data.ingest.sources import Source, open_source
from trisect.data.ingest.vertices import VertexTable, label_column, require_once
from trisect.data.records import Array
from trisect.errors import DataError

if TYPE_CHECKING:
    from trisect.data.ingest.ingest import Table


def label_source(table: Table) -> tuple[Source, str, str]:
    """Open the table of labels; give it, its column of ids and its column of labels."""
    named = table.id if table.vertices is None else None
    source = open_source(table.labels, [named, table.label_column], "the table of labels")
    identity = source.pick(named, "id")
    return source, identity, label_column(source, identity, table.label_column)


def without_edges(table: VertexTable, numbers: Mapping[str, Array], vertices: int) -> list[str]:
    """Say how many ids of a table occur in no edge; refuse a table of which none does, since its ids are others."""
    where = np.unique(numbers[table.role])
    ends = np.zeros(vertices, bool)
    ends[numbers["src"]] = True
    ends[numbers["dst"]] = True
    alone = int((~ends[where]).sum())
    if alone == len(where):
        raise DataError(
            f"no id of {table.source.title} (column {table.identity!r}) occurs in an edge; name its column of ids with"
            " id (--id), and write ids alike in both tables."
        )
    return [f"{alone:,} of {len(where):,} ids of {table.source.title} occur in no edge."] if alone else []


def is_npy(labels: Any) -> bool:
    """Tell whether labels are those of an .npy file."""
    return isinstance(labels, (str, Path)) and Path(labels).suffix.lower() == ".npy"


def labels_of(table: VertexTable, where: Array, vertices: int, meta: dict[str, Any], said: list[str]) -> Array | None:
    """int64 [vertices] classes (-1: none), or float32 targets; `where` has the vertex of each row."""
    if table.label is None:
        return None
    require_once(table, where)
    values, names = classes(table.label, f"label {table.label.column!r}", targets=True)
    if names:
        meta["classes"] = names
    said += [
        f"label {table.label.column!r} has a class called {name!r}; leave such cells empty where they mean that"
        " there is no label."
        for name in names
        if is_absent(name)
    ]
    meta["columns"]["label"] = table.label.column
    y = np.full(vertices, -1 if values.dtype.kind == "i" else np.nan, values.dtype)
    y[where] = values
    return y


def npy_labels(path: str | Path, vertices: int) -> Array:
    """Read one label for each vertex, in ascending order of the ids."""
    try:
        labels: Array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"labels {path} cannot be read ({error}); give an .npy file of numbers.") from error
    if labels.ndim not in (1, 2) or labels.dtype.kind not in "iubf":
        raise DataError(
            f"labels {path} holds {labels.dtype} values of the shape {list(labels.shape)}; give a number a vertex."
        )
    if len(labels) != vertices:
        raise DataError(
            f"labels {path} has {len(labels)} entries but there are {vertices} vertices; give one for each."
        )
    return labels.astype(np.int64 if labels.dtype.kind in "iub" else np.float32)
