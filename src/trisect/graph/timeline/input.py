"""What a `Timeline` is made from: records, tables, generators, events in any order, lists of snapshots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from trisect.data.formats.npy import check_record
from trisect.data.formats.pyg import timeline_from_pyg
from trisect.data.generators.generate import generate
from trisect.data.ingest.ingest import Table, read_table
from trisect.data.ingest.loops import warn_of_loops
from trisect.data.ingest.periods import Period, numbers_of, offsets_of, steps_of
from trisect.data.records import Names, TimelineRecord
from trisect.errors import DataError
from trisect.graph.check import index_array, label_array, rows_of, weight_array
from trisect.graph.edge_features import Merge, edge_feature_array
from trisect.graph.timeline.smoothing import Smoothing

SmoothingLike = Smoothing | Mapping[str, Any] | str | None


class TimelineInput(ABC):
    """The ways to a timeline; all end in `from_arrays`, which checks what it is given."""

    @classmethod
    @abstractmethod
    def from_arrays(cls, *arrays: Any, **more: Any) -> Self:
        """Make a timeline from src, dst and offsets of events that are sorted by step."""

    @classmethod
    def from_record(
        cls,
        record: TimelineRecord,
        *,
        smoothing: SmoothingLike = None,
        symmetrise: bool = False,
        split: int = 0,
        merge: Merge = "mean",
    ) -> Self:
        """From what a reader or a generator hands on; `symmetrise` counts events in both directions."""
        check_record(record)
        return cls.from_arrays(
            record.src,
            record.dst,
            record.offsets,
            vertices=record.vertices,
            weight=record.weight,
            undirected=record.undirected or symmetrise,
            smoothing=smoothing,
            x=record.x,
            y=record.y,
            edge_y=record.edge_y,
            splits=record.splits,
            split=split,
            names=record.names,
            edge_x=record.edge_x,
            merge=merge,
            class_names=record.class_names,
            edge_class_names=record.edge_class_names,
            y_weight=record.y_weight,
            relation=record.relation,
            relations=record.relations,
        )

    @classmethod
    def from_table(
        cls,
        frame: Any,
        src: str | None = None,
        dst: str | None = None,
        time: str = "time",
        *,
        period: Period | timedelta | np.timedelta64 | None = None,
        smoothing: SmoothingLike = None,
        merge: Merge = "mean",
        **columns: Any,
    ) -> Self:
        """From a table of events: of pandas, polars or Arrow, a mapping of names to arrays, or a file.

        Args:
            src, dst: the columns of the ids; by default the first and the second.
            time: the column of times: numbers, datetimes with or without a zone, or ISO text.
            period: the length of a step, such as `"1d"`, or a number in the unit of times that are numbers.
            merge: what the features of events between the same vertices become; see the attributes.
            **columns: `weight`, `edge_features`, `edge_label`, `vertices` (a table of vertices), `id`, `label_column`,
                `features`, `vertex_time`, `on_missing` and the other fields of `trisect.data.ingest.ingest.Table`.
        """
        if isinstance(period, (timedelta, np.timedelta64)):
            period = f"{float(np.timedelta64(period) / np.timedelta64(1, 'us')) / 1e6:f}s"
        record = read_table(frame, Table.of(src=src, dst=dst, time=time, period=period, **columns))
        if not isinstance(record, TimelineRecord):
            raise DataError("internal error: a table with times was read as one graph.")
        if "self_loops" not in columns:
            warn_of_loops(record.meta["notes"])
        return cls.from_record(record, smoothing=smoothing, merge=merge)

    @classmethod
    def generate(cls, name: str, *, smoothing: SmoothingLike = None, **options: Any) -> Self:
        """From a generator of timelines (`evolving`, `laundering`, `uniform`); see `data.generators`."""
        record = generate(name, **options)
        if not isinstance(record, TimelineRecord):
            raise DataError(f"The generator {name!r} makes static graphs; use Graph.generate.")
        return cls.from_record(record, smoothing=smoothing)

    @classmethod
    def from_events(
        cls,
        src: Any,
        dst: Any,
        time: Any,
        *,
        period: Period | timedelta | np.timedelta64,
        vertices: int | None = None,
        weight: Any = None,
        edge_y: Any = None,
        undirected: bool = False,
        smoothing: SmoothingLike = None,
        x: Any = None,
        y: Any = None,
        splits: Mapping[str, Any] | None = None,
        split: int = 0,
        names: Names | None = None,
        edge_x: Any = None,
        merge: Merge = "mean",
        relation: Any = None,
        **more: Any,
    ) -> Self:
        """From events in any order: the step of an event is floor((time - earliest) / period); empty steps stay.

        Args:
            time: numbers, or datetimes: datetime64, with a zone, or ISO text (without a zone they count as UTC).
            period: a number in the unit of `time` (seconds for datetime64), or `"1d"`, `"12h"`, `"30min"`, `"1w"`
                (numbers in `time` are then seconds), or a time difference.
            relation: of each event the name of its relation, or its number.
            **more: `class_names` and `edge_class_names`: what class 0, 1, … of y and of edge_y is called; `relations`:
                what relation 0, 1, … is called.
        """
        times, unit, length = numbers_of(time, period)
        source, target = index_array("src", src), index_array("dst", dst)
        for name, size in (("dst", target.numel()), ("time", len(times))):
            if size != source.numel():
                raise DataError(f"src has {source.numel()} entries and {name} {size}; every event needs all of them.")
        if not len(times):
            raise DataError("The timeline is empty: it has no events.")
        step = steps_of(times, length, unit)
        offsets = offsets_of(step)
        ascending = bool(np.all(step[1:] >= step[:-1]))
        order = None if ascending else torch.from_numpy(np.argsort(step, kind="stable"))
        return cls.from_arrays(
            _taken(source, order),
            _taken(target, order),
            offsets,
            vertices=vertices,
            weight=None if weight is None else _taken(weight_array("weight", weight, len(times), torch.float32), order),
            edge_y=None if edge_y is None else _taken(label_array("edge_y", edge_y, widen=False), order),
            undirected=undirected,
            smoothing=smoothing,
            x=x,
            y=y,
            splits=splits,
            split=split,
            names=names,
            edge_x=None if edge_x is None else _taken(edge_feature_array(edge_x, len(times)), order),
            merge=merge,
            relation=None if relation is None else _related(relation, order),
            **more,
        )

    @classmethod
    def from_snapshots(
        cls, snapshots: Sequence[Any], *, smoothing: SmoothingLike = None, vertices: int | None = None, **more: Any
    ) -> Self:
        """From one object a step: an `edge_index` [2, edges], or a PyG `Data`. `more` as in `from_arrays`."""
        items = list(snapshots) if isinstance(snapshots, Iterable) else []
        if not items:
            raise DataError("There are no snapshots; give a list with one object for each step.")
        if all(hasattr(item, "edge_index") for item in items):
            record = timeline_from_pyg(items)
            arrays = {name: getattr(record, name) for name in ("weight", "x", "y", "edge_x", "relation", "relations")}
            arrays["vertices"] = vertices or record.vertices
            return cls.from_arrays(record.src, record.dst, record.offsets, smoothing=smoothing, **{**arrays, **more})
        ends: list[tuple[Tensor, Tensor]] = []
        for step, item in enumerate(items):
            if rows_of(item) != 2:
                raise DataError(
                    f"Snapshot {step} has {rows_of(item) or 'no'} rows; give an edge_index [2, edges] or a PyG Data."
                )
            ends.append((index_array(f"snapshots[{step}][0]", item[0]), index_array(f"snapshots[{step}][1]", item[1])))
        offsets = torch.zeros(len(ends) + 1, dtype=torch.int64)
        offsets[1:] = torch.tensor([source.numel() for source, _ in ends]).cumsum(0)
        src, dst = (torch.cat([pair[side] for pair in ends]) for side in (0, 1))
        return cls.from_arrays(src, dst, offsets, smoothing=smoothing, vertices=vertices, **more)


def _related(relation: Any, order: Tensor | None) -> Any:
    array = relation.detach().cpu().numpy() if isinstance(relation, Tensor) else np.asarray(relation)
    return array if order is None or len(array) != len(order) else array[order.numpy()]


def _taken(array: Tensor, order: Tensor | None) -> Tensor:
    return array if order is None else array[order]
