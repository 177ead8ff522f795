"""The user's vertex ids: which vertex has an id, and the ids of two tables together."""

from __future__ import annotations

from typing import Any

import numpy as np

from trisect.data.ingest.columns import parse_integers, text_names
from trisect.data.ingest.tables import require_pyarrow
from trisect.data.records import Array, Names, TextNames


def positions_of(names: Names | None, vertices: int, ids: Names) -> Array:
    """int64 [ids]: the vertex that has each id, -1 where there is none.

    Args:
        names: of the vertices; None where they are 0, 1, ….
        ids: whole numbers or text; text is compared with numbers as they are written in plain notation.
    """
    if not isinstance(ids, TextNames) and ids.dtype.kind in "iu":
        if names is None:
            return np.where((ids >= 0) & (ids < vertices), ids, -1).astype(np.int64)
        if not isinstance(names, TextNames) and names.dtype.kind in "iu":
            return _search(np.asarray(names), ids)
    require_pyarrow("ids of vertices are text")
    import pyarrow.compute as pc

    own = _text(np.arange(vertices) if names is None else names)
    where: Array = pc.index_in(_text(ids), value_set=own).fill_null(-1).to_numpy(zero_copy_only=False)
    return where.astype(np.int64)


def with_new_ids(names: Names | None, vertices: int, ids: Names) -> tuple[Array, Names | None, int]:
    """Number ids that may be new: the vertex of each [ids], the names of all vertices, and how many these are.

    Vertices keep their numbers; new ones follow in the order of `ids`, which are distinct.
    """
    where = positions_of(names, vertices, ids)
    new = np.flatnonzero(where < 0)
    if not len(new):
        return where, names, vertices
    where[new] = vertices + np.arange(len(new))
    old = np.arange(vertices) if names is None else names
    if any(isinstance(each, TextNames) or each.dtype.kind not in "iu" for each in (old, ids)):
        import pyarrow as pa

        together = pa.chunked_array([_text(old), _text(ids).take(pa.array(new))])
        return where, text_names(together), vertices + len(new)
    joined = np.concatenate([old, ids[new]])
    counts_up = bool((joined == np.arange(len(joined))).all())
    return where, None if counts_up else joined, vertices + len(new)


def read_ids(values: Any) -> Names:
    """Ids of a column or a list as whole numbers, where all are in plain notation, or as text."""
    if isinstance(values, TextNames):
        return values
    plain = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if plain.dtype.kind in "iu":
        return plain
    text = _text(plain)
    integers = parse_integers(text)
    return text_names(text) if integers is None else integers


def _search(names: Array, ids: Array) -> Array:
    if not len(names):
        return np.full(len(ids), -1, np.int64)
    order = np.argsort(names, kind="stable")
    position = np.minimum(np.searchsorted(names, ids, sorter=order), len(names) - 1)
    where = order[position]
    return np.where(names[where] == ids, where, -1).astype(np.int64)


def _text(names: Names) -> Any:
    """Give ids as a pyarrow array of text, without a loop."""
    import pyarrow as pa

    if isinstance(names, TextNames):
        offsets = pa.py_buffer(np.ascontiguousarray(names.offsets, np.int64))
        content = pa.py_buffer(np.ascontiguousarray(names.data))
        return pa.LargeStringArray.from_buffers(len(names), offsets, content)
    return pa.array(np.asarray(names)).cast(pa.large_string())
