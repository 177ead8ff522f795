"""A table of edges, with or without times, and tables of vertices → a record, or a graph directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from trisect.data.formats.store import check_free, read_encoding, write_directory
from trisect.data.ingest import encoding as encodings
from trisect.data.ingest import tables
from trisect.data.ingest.attributes import Attribute, IntegerClasses, Raw, classes, is_absent, parse_columns
from trisect.data.ingest.columns import Ids, IntegerIds, Times, Weights
from trisect.data.ingest.flaws import Flaw, Flaws, OnMissing, check_choice, in_words, listed
from trisect.data.ingest.labels import is_npy, label_source, labels_of, npy_labels, without_edges
from trisect.data.ingest.loops import SelfLoops, check_self_loops, split_off
from trisect.data.ingest.periods import PER_SECOND, Period, offsets_of, parse_period, steps_of, steps_since
from trisect.data.ingest.sources import Source, open_source
from trisect.data.ingest.types import labelled_type, read_types, typed_features
from trisect.data.ingest.vertices import (
    VertexTable,
    changing_features,
    fixed_features,
    read_vertices,
)
from trisect.data.records import Array, Names, Record, StaticRecord, TextNames, TimelineRecord
from trisect.data.splits import random_splits
from trisect.errors import ConfigError, DataError, unknown

_ROWS = 1 << 20
_READING = 0.8  # the fraction of the progress that reading has; sorting and writing have the rest


@dataclass(frozen=True)
class Table:
    """Which columns of a table are what. Columns of a table without a header are called 0, 1, 2, ….

    Attributes:
        src, dst: the columns of the ids; by default the first and the second.
        time, period: the column of times, and the length of a step (`"1d"`, or a number in the column's unit).
        time_unit: the unit of times that are numbers (`s`, `ms`, `us`, `ns`); matters for periods such as `"1d"`.
        weight: the column of weights.
        edge_label: the column of edge classes.
        relation: the column of relations: which kind each edge is of.
        edge_features: columns that become features of edges: `"amount,kind:category"` or a list.
        labels: a file of vertex labels: a table of id and label, or .npy in ascending order of the ids.
        vertices: a table of vertices (a file, or a frame); or by name one for each type of vertices.
        id: its column of ids (or that of `labels`); by default the first.
        label_column: its column of labels (or that of `labels`).
        features: its columns that become features, as `edge_features`; by default all others.
        vertex_time: its column of times, where attributes change over time.
        categories: so many categories of a column have a feature of their own.
        on_missing: what happens to bad rows: `refuse`, `drop`, or `zero` (0 stands for missing weights).
        self_loops: what happens to rows whose src and dst are one vertex: `keep` (as edges), or `drop`.
        undirected: each row stands for both directions.
        encoding: a graph directory (or what its encoding.json holds) whose columns, means, scales and categories are
            used instead of fitted ones, so that a model that was trained there can read the features.
    """

    src: str | None = None
    dst: str | None = None
    time: str | None = None
    period: Period | None = None
    weight: str | None = None
    edge_label: str | None = None
    relation: str | None = None
    labels: Any = None
    undirected: bool = False
    time_unit: str = "s"
    vertices: Any = None
    id: str | None = None
    label_column: str | None = None
    features: str | Sequence[str] | None = None
    vertex_time: str | None = None
    edge_features: str | Sequence[str] | None = None
    categories: int = encodings.MOST_CATEGORIES
    on_missing: OnMissing = "refuse"
    self_loops: SelfLoops = "keep"
    encoding: Any = None

    @classmethod
    def of(cls, **columns: Any) -> Table:
        """Make one from keywords that a user wrote; an unknown one is refused."""
        names = [field.name for field in fields(cls)]
        for name in columns:
            if name not in names:
                raise ConfigError(unknown("option of from_table", name, names))
        return cls(**columns)


def ingest(
    path: Any,
    src: str | None = None,
    dst: str | None = None,
    time: str | None = None,
    period: Period | None = None,
    weight: str | None = None,
    labels: str | Path | None = None,
    *,
    out: Path | str,
    progress: tables.Progress | None = None,
    **more: Any,
) -> Path:
    """Read a table (CSV, TSV, edge-list text, each also .gz, or Parquet) and write it as a graph directory.

    The arguments are those of `Table`. The directory appears complete or not at all; one that is not empty is refused.
    """
    check_free(Path(out).absolute())
    table = Table(src=src, dst=dst, time=time, period=period, weight=weight, labels=labels, **more)
    target = write_directory(read_table(path, table, _part(progress, _READING + 0.1)), out)
    if progress is not None:
        progress(1.0)
    return target


def _part(progress: tables.Progress | None, fraction: float) -> Callable[[float], None] | None:
    return None if progress is None else lambda done: progress(fraction * done)


def read_table(path: Any, table: Table, progress: tables.Progress | None = None, seed: int = 0) -> Record:
    """Read the graph or the timeline that a table of edges describes; rows of a step keep the order of their times.

    Args:
        path: a file, or a table of pandas, polars or Arrow, or a mapping of names to arrays.
        seed: of the split where there are labels.
    """
    _check(table)
    table, stored = with_stored_columns(table)
    wanted = parse_columns(table.edge_features)
    named = [table.src, table.dst, table.time, table.weight, table.edge_label, table.relation]
    source = open_source(path, [*named, *(name for name, _ in wanted)])
    columns = EdgeColumns(source, table)
    counts = columns.read(_part(progress, _READING))
    types: dict[str, VertexTable] = {}
    if isinstance(table.vertices, Mapping) and all(isinstance(each, str) for each in table.vertices):
        types = read_types(table, columns.ids) if _are_tables(table.vertices) else {}
    if types:
        own = table if table.labels is not None else replace(table, label_column=None)
        described, labelled = _read_tables(replace(own, vertices=None), columns.ids)
        labelled = labelled_type(types) if labelled is None else labelled
    else:
        described, labelled = _read_tables(table, columns.ids)
    numbers, names, vertices = columns.ids.finish()
    meta: dict[str, Any] = {"source": source.title.removeprefix("the table "), "columns": columns.roles}
    if described is not None:
        meta["columns"]["id"] = described.identity
        if table.vertex_time is not None:
            meta["columns"]["vertex time"] = table.vertex_time
    said = in_words(counts, source.title)
    said += columns.unused()
    for read in dict.fromkeys(each for each in (described, labelled, *types.values()) if each is not None):
        said += without_edges(read, numbers, vertices)
    y = npy_labels(table.labels, vertices) if is_npy(table.labels) else None
    if labelled is not None:
        y = labels_of(labelled, numbers[labelled.role], vertices, meta, said)
        said += [] if labelled is described or labelled in types.values() else labelled.notes
    splits = _splits(y, seed, timeline=columns.times is not None)
    empty = [name for name, mask in splits.items() if not mask.any()]
    if empty:
        splits = {name: mask for name, mask in splits.items() if mask.any()}
        said.append(f"There are too few labelled vertices for the splits {' and '.join(empty)}, which are left out.")
    weight, edge_y, raws = columns.finish(meta)
    relation, meta_relations = columns.relations()
    if relation is not None:
        meta["relations"] = meta_relations
    src, dst = numbers.pop("src"), numbers.pop("dst")
    keep, counts["self_loops"], lines = split_off(src, dst, table.self_loops, source.title, counts["dropped"])
    if keep is not None and not keep.any():
        raise DataError(
            f"{source.title} has self-loops alone, and self_loops is 'drop'; keep them, or give other edges."
        )
    said += lines
    if table.self_loops == "drop":
        meta["self_loops"] = "drop"
    if keep is not None:
        src, dst, weight, edge_y, relation = (_taken(array, keep) for array in (src, dst, weight, edge_y, relation))
        raws = [replace(raw, values=raw.values[keep]) for raw in raws]
    time, order, offsets = None, None, None
    if columns.times is not None:
        time = _taken(columns.times.finish(), keep)
        unit = "us" if columns.times.are_dates else table.time_unit
        period = _period(table.period, time, columns.times.are_dates)
        meta.update(period=period, time_unit=unit, dates=columns.times.are_dates)
        if not bool((time[1:] >= time[:-1]).all()):
            order = np.argsort(time, kind="stable")
            time = time[order]
            src, dst = src[order], dst[order]
            weight, edge_y, relation = (_taken(array, order) for array in (weight, edge_y, relation))
        offsets = offsets_of(steps_of(time, period, unit))
    counts["duplicates"] = count_duplicates(src, dst, time)
    meta["rows"] = {key: value for key, value in counts.items() if key != "reasons"}
    if counts["duplicates"]:
        said.append(
            f"{counts['duplicates']:,} rows repeat an earlier one (same src, dst and time); they are kept."
            if time is not None
            else f"{counts['duplicates']:,} rows repeat an earlier one (same src and dst); they become one edge, and"
            " their weights are added."
        )
    edge_x = None
    if raws:
        fitted = stored.get("edges") or encodings.fit(raws, most=table.categories)
        said += encodings.notes(fitted, raws, source.title, stored="edges" in stored)
        edge_x = encodings.apply(fitted, raws, order)
        meta.setdefault("encoding", {})["edges"] = fitted.plain()
    x = None
    if types:
        x, lines = typed_features(types, numbers, names, vertices, splits.get("train"), table.categories, meta)
        said += lines
    if described is not None and described.raws:
        where, train = numbers[described.role], splits.get("train")
        if described.time is None or offsets is None:
            x, used, lines = fixed_features(described, where, vertices, train, table.categories, stored.get("vertices"))
        else:
            step = _steps_of_rows(described, time, columns, meta)
            x, used, lines = changing_features(
                described, where, vertices, step, len(offsets) - 1, train, table.categories, stored.get("vertices")
            )
        meta.setdefault("encoding", {})["vertices"] = used.plain()
        said += lines
    meta["notes"] = said
    if progress is not None:
        progress(1.0)
    common: dict[str, Any] = {
        "vertices": vertices,
        "src": src,
        "dst": dst,
        "weight": weight,
        "undirected": table.undirected,
        "x": x,
        "y": y,
        "edge_x": edge_x,
        "relation": relation,
        "splits": splits,
        "names": None if _counts_up(names) else names,
        "meta": meta,
    }
    if offsets is None:
        if edge_y is not None:
            meta["notes"].append("Classes of edges are kept for timelines alone; the edge label of this graph is not.")
        return StaticRecord(**common)
    return TimelineRecord(offsets=offsets, edge_y=edge_y, time=time, **common)


def _are_tables(vertices: Mapping[str, Any]) -> bool:
    """Whether a mapping has a table for each type of vertices; else it is a table itself, of columns by name."""
    whole = (str, Path, Mapping)
    return all(
        isinstance(each, whole) or hasattr(each, "columns") or hasattr(each, "schema") for each in vertices.values()
    )


def _splits(y: Array | None, seed: int, *, timeline: bool) -> dict[str, Array]:
    """Split the vertices with a label. Targets of a timeline are split by steps, later, and so not here."""
    if y is None or (y.dtype.kind != "i" and timeline):
        return {}
    if y.dtype.kind == "i":
        return random_splits(y, seed)
    labelled = ~np.isnan(y) if y.ndim == 1 else ~np.isnan(y).any(axis=1)
    return random_splits(np.where(labelled, 0, -1), seed)


class EdgeColumns:
    """The columns of the table of edges while it is read."""

    def __init__(self, source: Source, table: Table) -> None:
        arrow = tables.have_pyarrow()
        if not arrow and table.on_missing != "refuse":
            tables.require_pyarrow(f"on_missing is {table.on_missing!r}")
        self._source, self._choice = source, table.on_missing
        self.ids: Any = Ids() if arrow else IntegerIds()
        self.roles = {"src": source.pick(table.src, "src", 0), "dst": source.pick(table.dst, "dst", 1)}
        if self.roles["src"] == self.roles["dst"]:
            raise DataError(f"src and dst are both the column {self.roles['src']!r}; name two columns.")
        given = {"time": table.time, "weight": table.weight, "edge label": table.edge_label, "relation": table.relation}
        for role, name in given.items():
            if name is not None:
                self.roles[role] = source.pick(name, role)
        if table.relation is not None and table.edge_features is not None:
            raise ConfigError(
                f"relation is {table.relation!r} and edge_features {table.edge_features!r}; edges have relations or"
                " features, so leave one out."
            )
        self.times = Times(self.roles["time"]) if "time" in self.roles else None
        self._weights = Weights(self.roles["weight"]) if "weight" in self.roles else None
        self._kinds: Any = None
        if "edge label" in self.roles:
            column = self.roles["edge label"]
            self._kinds = Attribute(column, "category") if arrow else IntegerClasses(column)
        self._related: Any = None
        if "relation" in self.roles:
            column = self.roles["relation"]
            self._related = Attribute(column, "category") if arrow else IntegerClasses(column)
        wanted = parse_columns(table.edge_features)
        if wanted:
            tables.require_pyarrow("columns of edges become features")
        for name, _ in wanted:
            use = next((role for role in ("src", "dst", "edge label") if self.roles.get(role) == name), None)
            if use is not None:
                raise DataError(f"the column {name!r} of {source.title} is the {use}; it is no feature of edges.")
        self._attributes = [Attribute(source.pick(name, "the edge feature"), kind) for name, kind in wanted]
        self._names = [*self.roles.values(), *(name for name, _ in wanted)]

    def read(self, progress: tables.Progress | None) -> dict[str, Any]:
        """Read all rows; give how many there were, and how many were dropped."""
        flaws = Flaws(self._source, self._choice)
        others = [each for each in (self.times, self._weights, self._kinds, self._related) if each is not None]
        others += self._attributes
        ends = ("src", "dst")
        for batch in self._source.batches(self._names, progress):
            read = [
                self.ids.read(f"{end} {self.roles[end]!r}", values) for end, values in zip(ends, batch, strict=False)
            ]
            read += [column.read(values) for column, values in zip(others, batch[2:], strict=True)]
            judged = {str(k): (values, bad) for k, (values, (_, bad)) in enumerate(zip(batch, read, strict=True))}
            if self._related is not None:
                place = 2 + others.index(self._related)
                values, missing = judged[str(place)][0], _without_value(read[place][0])
                if missing.any():
                    flaw = Flaw(f"{self.roles['relation']!r} is empty, and each edge needs a relation", missing)
                    judged[str(place)] = (values, [flaw])
            keep = flaws.judge(judged, len(batch[0]))
            for end, (values, _) in zip(ends, read, strict=False):
                self.ids.keep(end, values, keep)
            for column, (values, _) in zip(others, read[2:], strict=True):
                column.keep(values, keep)
        counts = flaws.finish()
        if counts["rows"] == 0:
            raise DataError(f"{self._source.title} is empty; it needs at least one edge.")
        if counts["rows"] == counts["dropped"]:
            raise DataError(f"{self._source.title} has no row that can be used; all {counts['rows']:,} were dropped.")
        return counts

    def unused(self) -> list[str]:
        """Say which columns of the table nothing reads."""
        names = [name for name in self._source.names if name not in self._names]
        return [f"Not used of {self._source.title}: {listed(names)}."] if names else []

    def relations(self) -> tuple[Array | None, list[str]]:
        """Return the relation of each edge as a number (None: no column has them), and what numbers are called."""
        if self._related is None:
            return None, []
        numbers, names = classes(self._related.finish(), "relation", targets=False)
        count = int(numbers.max(initial=-1)) + 1
        return numbers.astype(np.int8 if count < 128 else np.int32), names or [str(k) for k in range(count)]

    def finish(self, meta: dict[str, Any]) -> tuple[Array | None, Array | None, list[Raw]]:
        """Weights, classes of edges, and the columns that become features."""
        weight = None if self._weights is None else self._weights.finish()
        edge_y = None
        if self._kinds is not None:
            edge_y, names = classes(self._kinds.finish(), "edge label", targets=False)
            count = int(edge_y.max(initial=-1)) + 1
            edge_y = edge_y.astype(np.int8 if count < 128 else np.int64)
            meta["edge_classes"] = names or [str(k) for k in range(count)]
        return weight, edge_y, [attribute.finish() for attribute in self._attributes]


def _without_value(texts: Any) -> Array:
    """Return the rows of a column of categories that have none."""
    if isinstance(texts, np.ndarray):
        return np.zeros(len(texts), bool)
    empty: Array = np.array([text is None or is_absent(text) for text in texts.to_pylist()], bool)
    return empty


def with_stored_columns(table: Table) -> tuple[Table, dict[str, encodings.Encoding]]:
    """Give the table with the columns of a stored encoding, where it names one, and the encodings of its parts."""
    if table.encoding is None:
        return table, {}
    plain = table.encoding if isinstance(table.encoding, Mapping) else read_encoding(table.encoding)
    stored = {part: encodings.Encoding.of(plain[part]) for part in ("vertices", "edges") if part in plain}
    if not stored:
        raise DataError(
            f"encoding is {table.encoding}, which keeps none (no encoding.json); name a graph directory that was made"
            " from a table of vertices or with edge features."
        )
    for part, option in (("vertices", table.features), ("edges", table.edge_features)):
        if option is not None and part in stored:
            raise DataError(
                f"the columns {option!r} are named beside encoding, which names those of {part} already; leave them"
                " out."
            )
    chosen = {part: [f"{column.column}:{column.kind}" for column in stored[part].columns] for part in stored}
    features = chosen.get("vertices") if table.vertices is not None else None
    return replace(table, features=features, edge_features=chosen.get("edges", table.edge_features)), stored


def _read_tables(table: Table, ids: Any) -> tuple[VertexTable | None, VertexTable | None]:
    """Read the table that describes vertices and the one that labels them, which may be the same, or None.

    Labels in an .npy file are read later.
    """
    if table.vertices is None:
        for name in ("features", "vertex_time"):
            if getattr(table, name) is not None:
                raise DataError(f"{name} is {getattr(table, name)!r} but there is no table of vertices; set vertices.")
    own = table.label_column if table.labels is None else None
    if table.label_column is not None and (is_npy(table.labels) or (table.labels is None and table.vertices is None)):
        raise DataError(f"label_column is {table.label_column!r} but no table has labels; give vertices or labels.")
    described = None
    elsewhere = None if table.labels is None or is_npy(table.labels) else label_source(table)[2]
    if table.vertices is not None:
        names = [name for name, _ in parse_columns(table.features)]
        source = open_source(table.vertices, [table.id, table.vertex_time, own, *names], "the table of vertices")
        if own is not None and table.vertex_time is not None:
            raise DataError(
                f"label_column is {own!r} in a table whose rows change over time (vertex_time); give the labels in a"
                " table of their own (labels)."
            )
        described = read_vertices(
            source,
            ids,
            "vertices",
            identity=table.id,
            features=table.features,
            label=None if own is None else source.pick(own, "label_column"),
            label_elsewhere=elsewhere,
            time=table.vertex_time,
            on_missing=table.on_missing,
        )
    if table.labels is None or is_npy(table.labels):
        return described, described if own is not None else None
    labels, identity, label = label_source(table)
    labelled = read_vertices(
        labels, ids, "labels", identity=identity, label=label, describe=False, on_missing=table.on_missing
    )
    return described, labelled


def _steps_of_rows(table: VertexTable, time: Array | None, columns: EdgeColumns, meta: dict[str, Any]) -> Array:
    """Give the step in which each row of a table of vertices begins to hold."""
    if time is None or table.time is None or columns.times is None:
        raise DataError("internal error: a table of vertices with times was read beside edges without times.")
    if table.are_dates != columns.times.are_dates:
        raise DataError(
            "the times of the vertices and of the edges are numbers in one table and dates in the other; use one form."
        )
    return steps_since(table.time, time, meta["period"], meta["time_unit"])


def count_duplicates(src: Array, dst: Array, time: Array | None) -> int:
    """Count the rows that have the ends and the time of an earlier one (by 64-bit hashes, to save memory)."""
    keys = np.empty(len(src), np.uint64)
    for start in range(0, len(src), _ROWS):
        part = slice(start, start + _ROWS)
        key: Array = (src[part].astype(np.uint64) << np.uint64(32)) + dst[part].astype(np.uint64)
        if time is not None:
            key = _mixed(key) ^ np.ascontiguousarray(time[part]).view(np.uint64)
        keys[part] = _mixed(key)
    keys.sort()
    parts = (keys[start : start + _ROWS + 1] for start in range(0, len(keys), _ROWS))
    return sum(int((part[1:] == part[:-1]).sum()) for part in parts)


def _mixed(key: Array) -> Array:
    """Apply the finaliser of splitmix64, under which different keys stay different."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    key ^= key >> np.uint64(31)
    return key


def _taken(array: Any, rows: Array | None) -> Any:
    return array if array is None or rows is None else array[rows]


def _check(table: Table) -> None:
    check_choice(table.on_missing)
    check_self_loops(table.self_loops)
    if table.vertex_time is not None and table.time is None:
        raise DataError(
            f"vertex_time is {table.vertex_time!r} but no column of times of edges is named; name it (time)."
        )
    if table.time_unit not in PER_SECOND:
        raise DataError(unknown("time unit", table.time_unit, PER_SECOND))
    if table.period is not None and table.period != "distinct":
        parse_period(table.period, table.time_unit)
        if table.time is None:
            raise DataError(f"period is {table.period!r} but no time column is named; name it, or leave period out.")


def _period(period: Period | None, time: Array, are_dates: bool) -> Period:
    if period is None:
        if time.dtype.kind == "i" and not are_dates and int(time.max()) - int(time.min()) < 10_000:
            return 1
        raise DataError("period is missing; give the length of a step, such as '1d' or a number in the times' unit.")
    if are_dates and not (isinstance(period, str) and not period.strip().replace(".", "").isdigit()):
        raise DataError(f"period is {period!r} but the times are dates; give it with a unit, such as '1d' or '12h'.")
    return period


def _counts_up(names: Names) -> bool:
    return not isinstance(names, TextNames) and (
        not len(names) or (int(names[0]) == 0 and int(names[-1]) == len(names) - 1)
    )
