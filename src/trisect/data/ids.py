"""The user's vertex ids: which vertex has an id, and the ids of two tables together."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from trisect.data.formats.npy import check_mapped
from trisect.data.ingest.columns import parse_integers, text_names
from trisect.data.ingest.tables import require_pyarrow
from trisect.data.records import Array, Names, TextNames


def positions_of(names: Names | None, vertices: int, ids: Names) -> Array:
    """int64 [ids]: the vertex that has each id, -1 where there is none.

    Args:
        names: of the vertices; None where they are 0, 1, ….
        ids: whole numbers or text; text is compared with numbers as they are written in plain notation.
    """
    check_mapped("names", names)
    if not isinstance(ids, TextNames) and ids.dtype.kind in "iu":
        if names is None:
            return np.where((ids >= 0) & (ids < vertices), ids, -1).astype(np.int64)
        if not isinstance(names, TextNames) and names.dtype.kind in "iu":
            return _search(np.asarray(names), ids, np.argsort(names, kind="stable"))
    require_pyarrow("ids of vertices are text")
    import pyarrow.compute as pc

    own = _text(np.arange(vertices) if names is None else names)
    where: Array = pc.index_in(_text(ids), value_set=own).fill_null(-1).to_numpy(zero_copy_only=False)
    return where.astype(np.int64)


class IdIndex:
    """Finds vertices by their ids again and again: `positions_of`, with what depends on the names alone made once.

    Args:
        names, vertices: as for `positions_of`.
    """

    def __init__(self, names: Names | None, vertices: int) -> None:
        self._names, self._vertices = names, vertices

    def positions(self, ids: Names) -> Array:
        """Return the vertex that has each id, -1 where there is none: int64 [ids]."""
        names = self._names
        if not isinstance(ids, TextNames) and ids.dtype.kind in "iu":
            if names is None:
                return positions_of(None, self._vertices, ids)
            if not isinstance(names, TextNames) and names.dtype.kind in "iu":
                return _search(np.asarray(names), ids, self._order)
        found = self._by_text
        return np.array([found.get(each, -1) for each in _text(ids).to_pylist()], np.int64)

    @cached_property
    def _order(self) -> Array:
        return np.argsort(np.asarray(self._names), kind="stable")

    @cached_property
    def _by_text(self) -> dict[str, int]:
        require_pyarrow("ids of vertices are text")
        own = _text(np.arange(self._vertices) if self._names is None else self._names).to_pylist()
        # of equal names the first counts, as it does for positions_of
        return dict(zip(reversed(own), range(len(own) - 1, -1, -1), strict=True))


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


def _search(names: Array, ids: Array, order: Array) -> Array:
    if not len(names):
        return np.full(len(ids), -1, np.int64)
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
