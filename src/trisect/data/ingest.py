"""A table of edges, with or without times → a record, or a graph directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trisect.data import tables
from trisect.data.columns import Ids, Times, Weights, WholeIds
from trisect.data.periods import PER_SECOND, Period, offsets_of, parse_period, steps_of
from trisect.data.records import Array, Names, Record, StaticRecord, TextNames, TimelineRecord
from trisect.data.splits import random_splits
from trisect.data.store import check_free, write_directory
from trisect.errors import DataError, unknown

_MOST_CLASSES = 10_000


@dataclass(frozen=True)
class Table:
    """Which columns of a table are what. Columns of a table without a header are called 0, 1, 2, ….

    Attributes:
        src, dst: the columns of the ids; by default the first and the second.
        time, period: the column of times, and the length of a step (`"1d"`, or a number in the column's unit).
        time_unit: the unit of times that are numbers (`s`, `ms`, `us`, `ns`); matters for periods such as `"1d"`.
        weight: the column of weights.
        edge_label: the column of edge classes.
        labels: a file of vertex labels: a table of id and label, or .npy in ascending order of the ids.
        undirected: each row stands for both directions.
    """

    src: str | None = None
    dst: str | None = None
    time: str | None = None
    period: Period | None = None
    weight: str | None = None
    edge_label: str | None = None
    labels: str | Path | None = None
    undirected: bool = False
    time_unit: str = "s"


def ingest(
    path: Path | str,
    src: str | None = None,
    dst: str | None = None,
    time: str | None = None,
    period: Period | None = None,
    weight: str | None = None,
    labels: str | Path | None = None,
    *,
    out: Path | str,
    edge_label: str | None = None,
    undirected: bool = False,
    time_unit: str = "s",
    progress: tables.Progress | None = None,
) -> Path:
    """Read a table (CSV, TSV, edge-list text, each also .gz, or Parquet) and write it as a graph directory.

    The arguments are those of `Table`. The directory appears complete or not at all; one that is not empty is refused.
    """
    check_free(Path(out).absolute())
    table = Table(src, dst, time, period, weight, edge_label, labels, undirected, time_unit)
    return write_directory(read_table(Path(path), table, progress), out)


def read_table(path: Path, table: Table, progress: tables.Progress | None = None, seed: int = 0) -> Record:
    """The graph or the timeline that a table of edges describes; rows of a step keep the order of their times."""
    _check(table)
    roles = {
        "src": table.src,
        "dst": table.dst,
        "time": table.time,
        "weight": table.weight,
        "edge label": table.edge_label,
    }
    batches, names = _open(path, roles, progress)
    arrow = tables.have_pyarrow()
    ids: Any = Ids("id") if arrow else WholeIds("id")
    kinds: Any = Ids("edge label") if arrow else WholeIds("edge label")
    times, weights = Times(names.get("time", "")), Weights(names.get("weight", ""))
    rows = 0
    for batch in batches:
        columns = dict(zip(names, batch, strict=True))
        ids.add("src", columns["src"])
        ids.add("dst", columns["dst"])
        if "time" in columns:
            times.add(columns["time"])
        if "weight" in columns:
            weights.add(columns["weight"])
        if "edge label" in columns:
            kinds.add("edge label", columns["edge label"])
        rows += len(columns["src"])
    if rows == 0:
        raise DataError(f"the table {path} is empty; it needs at least one edge.")
    label_text = None
    if table.labels is not None and Path(table.labels).suffix.lower() != ".npy":
        label_text = _read_labels(Path(table.labels), ids)
    numbers, vertex_names, vertices = ids.finish()
    meta: dict[str, Any] = {"source": str(path), "columns": names}
    edge_y = None
    if "edge label" in names:
        coded, classes, _ = kinds.finish()
        edge_y = coded["edge label"].astype(np.int8 if len(classes) < 128 else np.int64)
        meta["edge_classes"] = _class_names(classes, "edge label")
    y = None
    if table.labels is not None:
        y = _vertex_labels(table.labels, label_text, numbers.get("labels"), vertices, meta)
    common: dict[str, Any] = {
        "vertices": vertices,
        "undirected": table.undirected,
        "y": y,
        "splits": {} if y is None or y.dtype.kind != "i" else random_splits(y, seed),
        "names": None if _counts_up(vertex_names) else vertex_names,
        "meta": meta,
    }
    weight = weights.finish() if "weight" in names else None
    if "time" not in names:
        return StaticRecord(src=numbers["src"], dst=numbers["dst"], weight=weight, **common)
    time = times.finish()
    unit = "us" if times.moments else table.time_unit
    period = _period(table.period, time, times.moments)
    meta.update(period=period, time_unit=unit)
    if bool((time[1:] >= time[:-1]).all()):
        order = None
    else:
        order = np.argsort(time, kind="stable")
        time = time[order]
    return TimelineRecord(
        src=_ordered(numbers.pop("src"), order),
        dst=_ordered(numbers.pop("dst"), order),
        weight=_ordered(weight, order),
        edge_y=_ordered(edge_y, order),
        offsets=offsets_of(steps_of(time, period, unit)),
        time=time,
        **common,
    )


def _ordered(array: Any, order: Array | None) -> Any:
    return array if array is None or order is None else array[order]


def _check(table: Table) -> None:
    if table.time_unit not in PER_SECOND:
        raise DataError(unknown("time unit", table.time_unit, PER_SECOND))
    if table.period is not None and table.period != "distinct":
        parse_period(table.period, table.time_unit)
        if table.time is None:
            raise DataError(f"period is {table.period!r} but no time column is named; name it, or leave period out.")


def _period(period: Period | None, time: Array, moments: bool) -> Period:
    if period is None:
        if time.dtype.kind == "i" and not moments and int(time.max()) - int(time.min()) < 10_000:
            return 1
        raise DataError("period is missing; give the length of a step, such as '1d' or a number in the times' unit.")
    if moments and not (isinstance(period, str) and not period.strip().replace(".", "").isdigit()):
        raise DataError(f"period is {period!r} but the times are moments; give it with a unit, such as '1d' or '12h'.")
    return period


def _open(
    path: Path, roles: dict[str, str | None], progress: tables.Progress | None
) -> tuple[Iterator[list[Any]], dict[str, str]]:
    """Batches of the columns, and which column plays which role (in the batches' order)."""
    if tables.is_parquet(path):
        names = _pick(tables.parquet_names(path), roles, path)
        return tables.parquet_batches(path, list(names.values()), progress), names
    shape = tables.sniff(path, list(roles.values()))
    names = _pick(shape.names, roles, path)
    reader = tables.text_batches if tables.have_pyarrow() else tables.number_batches
    return reader(path, shape, list(names.values()), progress), names


def _pick(names: list[str], roles: dict[str, str | None], path: Path) -> dict[str, str]:
    picked = {}
    for position, (role, wanted) in enumerate(roles.items()):
        if position < 2 or wanted is not None:
            picked[role] = tables.pick(names, wanted, role, position, path)
    return picked


def _read_labels(path: Path, ids: Any) -> Any:
    """The label column of a table of id and label; its ids join the others (vertices without edges are kept)."""
    batches, _ = _open(path, {"labels' id": None, "labels' label": None}, None)
    labels: Any = Ids("label") if tables.have_pyarrow() else WholeIds("label")
    for identity, label in batches:
        ids.add("labels", identity)
        labels.add("label", label)
    return labels


def _vertex_labels(path: str | Path, labels: Any, where: Array | None, vertices: int, meta: dict[str, Any]) -> Array:
    """int64 [vertices] classes (-1: none), or the numbers of an .npy file."""
    if labels is None:
        try:
            given: Array = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"labels {path} cannot be read ({error}).") from error
        if len(given) != vertices:
            raise DataError(
                f"labels {path} has {len(given)} entries but there are {vertices} vertices; give one for each."
            )
        return given.astype(np.int64 if given.dtype.kind in "iub" else np.float32)
    if where is None:
        raise DataError(f"labels {path} is empty; give a table of id and label.")
    coded, classes, count = labels.finish()
    first = np.unique(where, return_index=True)[1]
    if len(first) < len(where):
        twice = int(np.setdiff1d(np.arange(len(where)), first)[0])
        raise DataError(f"labels {path} gives a second label to an id in row {twice + 1}; give each id one.")
    codes = coded["label"].astype(np.int64)
    names = _class_names(classes, "labels")
    if count and not isinstance(classes, TextNames) and int(classes[0]) == -1:
        codes, names = codes - 1, names[1:]  # -1 means that the class is not known
    if not isinstance(classes, TextNames) and len(names) and names == [str(k) for k in range(int(names[-1]) + 1)]:
        names = []
    if names:
        meta["classes"] = names
    y = np.full(vertices, -1, np.int64)
    y[where] = codes
    return y


def _class_names(classes: Names, role: str) -> list[str]:
    if len(classes) > _MOST_CLASSES:
        raise DataError(f"{role} has {len(classes):,} different values; classes are wanted, at most {_MOST_CLASSES:,}.")
    return [str(name) for name in np.asarray(classes)]


def _counts_up(names: Names) -> bool:
    return not isinstance(names, TextNames) and (
        not len(names) or (int(names[0]) == 0 and int(names[-1]) == len(names) - 1)
    )
