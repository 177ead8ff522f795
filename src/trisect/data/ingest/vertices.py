"""Tables of vertices: an id and columns that describe it, once for each vertex or, with a column of times, often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trisect.data.ingest import tables
from trisect.data.ingest.attributes import Attribute, IntegerClasses, Raw, parse_columns
from trisect.data.ingest.columns import Times
from trisect.data.ingest.encoding import MOST_CATEGORIES, Encoding, apply, fit, missing_row, notes
from trisect.data.ingest.flaws import Flaws, OnMissing, in_words
from trisect.data.ingest.sources import Source
from trisect.data.records import Array
from trisect.data.room import require_room
from trisect.errors import DataError


@dataclass(frozen=True, eq=False)
class VertexTable:
    """A table that was read; its ids are in the common dictionary under `role`.

    Attributes:
        identity: the column of ids.
        raws: the columns that become features.
        label: the column of labels, or None.
        time: when each row begins to hold [rows], or None.
        notes: what was left out, for the user.
        dropped: how many rows were bad.
    """

    source: Source
    role: str
    identity: str
    raws: list[Raw]
    label: Raw | None
    time: Array | None
    are_dates: bool
    notes: list[str]
    dropped: int


def _without_names(raws: list[Raw], title: str) -> tuple[list[Raw], list[str]]:
    """Give the columns that are features, and what to say of the others: texts that mostly occur once name a vertex."""
    names = [raw for raw in raws if len(raw.names) > max(MOST_CATEGORIES, len(raw) // 2)]
    said = [
        f"Column {raw.column!r} of {title} has {len(raw.names):,} different texts in {len(raw):,} rows and is left out;"
        " name it in features (--features) to keep it."
        for raw in names
    ]
    return [raw for raw in raws if raw not in names], said


def label_column(source: Source, identity: str, wanted: str | None) -> str:
    """Give the column of labels: the one named, or the only one beside the id; several are refused."""
    if wanted is not None:
        return source.pick(wanted, "label_column")
    others = list(dict.fromkeys(name for name in source.names if name != identity))
    if len(others) == 1:
        return source.pick(others[0], "label_column")
    if not others:
        raise DataError(f"{source.title} has the column {identity!r} alone; labels need an id and a label.")
    raise DataError(
        f"{source.title} has {len(others)} columns that may be the label ({', '.join(others)}); name one with"
        " label_column (--label-column)."
    )


def read_vertices(
    source: Source,
    ids: Any,
    role: str,
    *,
    identity: str | None = None,
    features: Any = None,
    label: str | None = None,
    label_elsewhere: str | None = None,
    time: str | None = None,
    describe: bool = True,
    on_missing: OnMissing = "refuse",
) -> VertexTable:
    """Read a table of vertices; its ids join those of the edges, so that vertices without edges are kept.

    Args:
        ids: the common dictionary (`columns.Ids`).
        identity: the column of ids; by default the first.
        features: the columns that become features (see `attributes.parse_columns`); by default all others.
        label: the column of labels, or None.
        label_elsewhere: the column of labels of another table; a column of this name here is no feature.
        time: the column of times, from which on a row holds, or None.
        describe: whether features are wanted at all.
    """
    identity = source.pick(identity, "id")
    wanted = parse_columns(features)
    if describe and features is None:
        wanted = [(name, None) for name in source.names if name not in (identity, label, time, label_elsewhere)]
    if wanted:
        tables.require_pyarrow("columns of vertices become features")
    for name, _ in wanted:
        source.pick(name, "the feature")
        if name in (identity, label, label_elsewhere):
            raise DataError(f"the column {name!r} is the {'id' if name == identity else 'label'}; it is no feature.")
    if label == identity and label is not None:
        raise DataError(f"label_column is {label!r}, which is the column of ids of {source.title}; name another.")
    attributes: list[Any] = [Attribute(name, kind) for name, kind in wanted]
    columns = [identity, *(name for name, _ in wanted)]
    if label is not None:
        attributes.append(Attribute(label, "category") if tables.have_pyarrow() else IntegerClasses(label))
        columns.append(label)
    times = None
    if time is not None:
        times = Times(source.pick(time, "vertex_time"))
        attributes.append(times)
        columns.append(time)
    flaws = Flaws(source, on_missing)
    for batch in source.batches(columns):
        read = [ids.read(f"id {identity!r}", batch[0])]
        read += [attribute.read(values) for attribute, values in zip(attributes, batch[1:], strict=True)]
        judged = {str(k): (values, bad) for k, (values, (_, bad)) in enumerate(zip(batch, read, strict=True))}
        keep = flaws.judge(judged, len(batch[0]))
        ids.keep(role, read[0][0], keep)
        for attribute, (values, _) in zip(attributes, read[1:], strict=True):
            attribute.keep(values, keep)
    counts = flaws.finish()
    if counts["rows"] == counts["dropped"]:
        raise DataError(f"{source.title} has no row that can be used; it needs at least one vertex.")
    are_dates = times is not None and times.are_dates
    finished = [attribute.finish() for attribute in attributes]
    when = finished.pop() if time is not None else None
    labels = finished.pop() if label is not None else None
    said = in_words(counts, source.title)
    if describe and features is None and label_elsewhere in source.names:
        said.append(f"Column {label_elsewhere!r} of {source.title} is the label, and so no feature.")
    if features is None:
        finished, left_out = _without_names(finished, source.title)
        said += left_out
    return VertexTable(source, role, identity, finished, labels, when, are_dates, said, counts["dropped"])


def require_once(table: VertexTable, where: Array) -> None:
    """Refuse a second row for a vertex; `where` has the vertex of each row."""
    first = np.unique(where, return_index=True)[1]
    if len(first) == len(where):
        return
    again = np.setdiff1d(np.arange(len(where)), first)
    # positions count the rows that were kept, so that they are lines only where none was dropped
    line = f" in {table.source.where([int(again[0])])[0]}" if not table.dropped else ""
    raise DataError(
        f"{table.source.title} has a second row for an id{line} ({len(again):,} such rows in all); give each id one"
        " row, or name the column of times with vertex_time (--vertex-time)."
    )


def fixed_features(
    table: VertexTable,
    where: Array,
    vertices: int,
    train: Array | None,
    most: int,
    stored: Encoding | None = None,
) -> tuple[Array, Encoding, list[str]]:
    """float32 [vertices, features] of a table with one row a vertex, their encoding, and what to say of it.

    Args:
        where: the vertex of each row.
        train: the training vertices, bool [vertices]; None: not known.
        stored: an encoding that is used instead of a fitted one.
    """
    require_once(table, where)
    encoding = stored or fit(
        table.raws,
        None if train is None else train[where],
        statistics=_statistics(train),
        most=most,
        flag=len(where) < vertices,
    )
    said = [*table.notes, *notes(encoding, table.raws, table.source.title, stored=stored is not None)]
    row = np.full(vertices, -1, np.int64)
    row[where] = np.arange(len(where))
    x = apply(encoding, table.raws, row)  # a vertex without a row takes the last one, until the next line
    if len(where) < vertices:
        x[row < 0] = missing_row(encoding)
        said.append(f"{vertices - len(where):,} of {vertices:,} vertices have no row in {table.source.title}.")
    return x, encoding, said


def changing_features(
    table: VertexTable,
    where: Array,
    vertices: int,
    step: Array,
    steps: int,
    train: Array | None,
    most: int,
    stored: Encoding | None = None,
) -> tuple[Array, Encoding, list[str]]:
    """float32 [steps, vertices, features] of a table with times: the last value holds, before the first it is missing.

    Args:
        step: the step of each row; what was before the first step holds in it.
        stored: an encoding that is used instead of a fitted one.
    """
    encoding = stored or fit(
        table.raws, None if train is None else train[where], statistics=_statistics(train), most=most, flag=True
    )
    said = [*table.notes, *notes(encoding, table.raws, table.source.title, stored=stored is not None)]
    late = int((step >= steps).sum())
    if late:
        said.append(f"{late:,} rows of {table.source.title} lie after the last event and are not used.")
    order = np.argsort(step if table.time is None else table.time, kind="stable")
    rows, where, step = apply(encoding, table.raws, order), where[order], np.maximum(step[order], 0)
    bounds = np.searchsorted(step, np.arange(steps + 1))
    require_room(
        4.0 * steps * vertices * rows.shape[1], f"{rows.shape[1]} features of {vertices:,} vertices at {steps:,} steps"
    )
    x = np.empty((steps, vertices, rows.shape[1]), np.float32)
    now = np.tile(missing_row(encoding), (vertices, 1))
    for t in range(steps):
        part = slice(bounds[t], bounds[t + 1])
        # of several rows of a vertex the last is assigned, which is the latest
        now[where[part]] = rows[part]
        x[t] = now
    return x, encoding, said


def _statistics(train: Array | None) -> str:
    return "all rows (no split into training and other vertices is known)" if train is None else "training vertices"
