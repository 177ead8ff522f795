"""The data that a finished run predicts on: its own, its own with rows that came later, or another graph directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trisect.config import Config
from trisect.data.formats.store import MANIFEST
from trisect.data.later import LaterRows, OnLate
from trisect.data.load import load
from trisect.data.records import Array, Record, TimelineRecord
from trisect.errors import DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.train.from_config import data_of, load_record, predicted_classes, source_of
from trisect.train.outputs.table import Described

Say = Callable[[str], None]

# keys of a data section that say how a graph directory is adapted on reading
_ADAPTING = ("period", "symmetrise", "features", "classes", "seed", "weighted")


class PredictedData:
    """Reads the data of a prediction, and knows afterwards what its rows are called.

    Args:
        config: of the run, resolved.
        new: a table, whose rows are joined to the run's data; or a graph directory, which stands alone; None: the run's
            data.
        vertices: beside a table, a table of vertices that are new or have changed.
        on_late: what becomes of events that are not later than the trained ones.
        on_read: is called with the record before anything is computed, so that mistakes are found early.

    Attributes:
        record: what was read.
        trained_steps: how many steps the run's own timeline has.
        continues: whether the data are the run's own or continue them, and do not stand alone.
    """

    record: Record
    trained_steps: int
    continues: bool

    def __init__(
        self,
        config: Config,
        new: Any = None,
        vertices: Any = None,
        *,
        on_late: OnLate = "refuse",
        say: Say = lambda sentence: None,
        on_read: Callable[[PredictedData], None] = lambda data: None,
    ) -> None:
        self._config, self._new, self._vertices, self._on_late = config, new, vertices, on_late
        self._say, self._on_read = say, on_read
        self._labels: tuple[Array | None, Array | None] = (None, None)
        if vertices is not None and new is None:
            raise DataError(f"--vertices is {vertices}, but no new rows are given; give --data a table beside it.")
        self.continues = not (isinstance(new, (str, Path)) and Path(new).is_dir())
        if isinstance(new, (str, Path)):
            path = Path(new)
            if not path.exists():
                raise DataError(f"--data is {path}, which does not exist.")
            if path.is_dir() and vertices is not None:
                raise DataError(
                    f"--vertices is {vertices}, but --data {path} is a directory, which has features of its own; leave"
                    " --vertices out."
                )

    def __call__(self) -> Graph | Timeline:
        """Read the data, and give them as models read them."""
        if self._new is None:
            record = load_record(self._config)
            self._own(record)
        elif not self.continues:
            record = self._alone(Path(self._new))
        else:
            later = LaterRows(self._new, self._vertices, self._on_late, say=self._say)

            def join(base: Record) -> Record:
                self._own(base)
                return later.join(base)

            record = load(source_of(self._config), self._config.data.directory, join)
            if all(labels is None for labels in self._labels):  # labels that are made up on reading
                self._own(load_record(self._config))
        self.record = record = self._with_classes(record)
        self._on_read(self)
        return data_of(self._config, record)

    @property
    def described(self) -> Described:
        """Say what the rows are called."""
        record = self.record
        classes = predicted_classes(self._config, record)
        return Described(record.names, record.vertices, isinstance(record, TimelineRecord), classes)

    @property
    def steps(self) -> int:
        """Count the steps; 1 of a graph."""
        return self.record.steps if isinstance(self.record, TimelineRecord) else 1

    def _own(self, record: Record) -> None:
        """Note what the run's own data say of classes and steps."""
        self._labels = (record.y, getattr(record, "edge_y", None))
        self.trained_steps = record.steps if isinstance(record, TimelineRecord) else 1

    def _with_classes(self, record: Record) -> Record:
        """Give the record with labels that say how many classes, or targets, the run was trained for, and no more."""
        if self._new is None:
            return record
        y, edge_y = self._labels
        timeline = isinstance(record, TimelineRecord)
        labels = None
        if y is not None:
            by_step = timeline and y.ndim >= 2 and y.shape[0] == self.trained_steps
            row = y.shape[2:] if by_step else y.shape[1:]
            labels = np.full((record.vertices, *row), -1 if y.dtype.kind in "iu" else np.nan, y.dtype)
            if y.dtype.kind in "iu" and len(labels):
                labels.reshape(-1)[0] = y.max(initial=-1)
        record = replace(record, y=labels, splits={})
        if isinstance(record, TimelineRecord):
            events = None
            if edge_y is not None:
                events = np.full(len(record.src), -1, edge_y.dtype)
                events[:1] = edge_y.max(initial=-1)
            record = replace(record, edge_y=events)
        return record

    def _alone(self, path: Path) -> Record:
        """Read a graph directory that stands for itself; its features must be those of the trained one."""
        if not (path / MANIFEST).is_file():
            raise DataError(
                f"--data is {path}, a directory without {MANIFEST}; give a graph directory made by trisect data ingest,"
                " or a table."
            )
        base = load_record(self._config)
        self._own(base)
        settings = {key: value for key, value in source_of(self._config).items() if key in _ADAPTING}
        if self._config.data.generate is not None:  # there these are arguments of the generator
            settings = {}
        record = load({"path": str(path), **settings})
        if isinstance(record, TimelineRecord) != isinstance(base, TimelineRecord):
            kinds = ["a timeline" if isinstance(each, TimelineRecord) else "a graph" for each in (record, base)]
            raise DataError(f"--data {path} is {kinds[0]}, and the run was trained on {kinds[1]}; give the same kind.")
        widths = [None if each.x is None else each.x.shape[-1] for each in (record, base)]
        if widths[0] != widths[1]:
            raise DataError(
                f"--data {path} has {_features(widths[0])}, and the run was trained on {_features(widths[1])}; ingest"
                " it with the same columns and --encoding."
            )
        codes = [each.meta.get("encoding", {}).get("vertices") for each in (record, base)]
        if base.x is not None and codes[0] != codes[1]:
            if codes[1] is not None:
                raise DataError(
                    f"--data {path} was encoded with other columns, means or categories than the trained graph; ingest"
                    f" it with --encoding {base.meta.get('source')}."
                )
            self._say(f"The trained features have no stored encoding; those of {path} are taken to mean the same.")
        self._say(f"{path} stands alone: {record.vertices:,} vertices, nothing is carried on from the training.")
        return record


def _features(width: int | None) -> str:
    return "no features" if width is None else f"{width} features"
