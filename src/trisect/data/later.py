"""Rows that came after a graph was stored: read by the same columns, encoded alike, and joined to its record.

Vertices keep their numbers, and new ones follow. New events of a timeline lie after its last one, in steps that go on
counting from its first event. The result is the record that all rows together would have given, under the stored
encoding; labels and splits are left out, since nothing is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from trisect.data.formats.npy import check_record
from trisect.data.ids import with_new_ids
from trisect.data.ingest import encoding as encodings
from trisect.data.ingest.flaws import OnMissing, in_words
from trisect.data.ingest.ingest import EdgeColumns, Table, with_stored_columns
from trisect.data.ingest.loops import split_off
from trisect.data.ingest.periods import offsets_of, steps_since
from trisect.data.ingest.sources import open_source
from trisect.data.ingest.vertices import VertexTable, read_vertices, require_once
from trisect.data.records import Array, Record, StaticRecord, TimelineRecord
from trisect.errors import DataError, unknown

OnLate = Literal["refuse", "drop"]
_PLAIN = {"src": "src", "dst": "dst", "time": "time", "weight": "weight"}


@dataclass(frozen=True)
class LaterRows:
    """Where rows that came later are, and what to do with those that cannot be used.

    Attributes:
        table: a table of edges or events: a path, or a table of pandas, polars or Arrow.
        vertices: a table of vertices that are new, or whose attributes have changed; or None.
        on_late: what becomes of events that are not later than the last stored one: `refuse`, or `drop`.
        on_missing: what becomes of bad rows, as for `Table`.
        say: is told what was left out, guessed or counted, a sentence at a time.
    """

    table: Any
    vertices: Any = None
    on_late: OnLate = "refuse"
    on_missing: OnMissing = "refuse"
    say: Callable[[str], None] = lambda sentence: None

    def join(self, base: Record) -> Record:
        """Return the record of the stored rows and these together."""
        if self.on_late not in get_args(OnLate):
            raise DataError(unknown("value of on_late", str(self.on_late), get_args(OnLate)))
        check_record(base)
        return _Joining(self, base).record()


class _Joining:
    """One joining of later rows to a record."""

    def __init__(self, rows: LaterRows, base: Record) -> None:
        self._rows, self._base, self._say = rows, base, rows.say
        roles = base.meta.get("columns") or _PLAIN
        self._stored = base.meta.get("encoding", {})
        if rows.vertices is not None and "vertices" not in self._stored:
            raise DataError(
                f"a table of vertices is given ({_title(rows.vertices)}), but the features of the trained graph come"
                " from none (it has no encoding.json of vertices); leave it out, or ingest and train with --vertices."
            )
        timeline = isinstance(base, TimelineRecord)
        table = Table(
            src=roles["src"],
            dst=roles["dst"],
            time=roles["time"] if timeline and "time" in roles else None,
            weight=roles.get("weight") if base.weight is not None else None,
            relation=roles.get("relation") if base.relation is not None else None,
            vertices=rows.vertices,
            id=roles.get("id"),
            vertex_time=roles.get("vertex time"),
            on_missing=rows.on_missing,
            self_loops="drop" if base.meta.get("self_loops") == "drop" else "keep",
            encoding={part: self._stored[part] for part in self._parts()} or None,
        )
        if timeline and table.time is None:
            raise DataError(
                "the trained graph is a timeline whose column of times is not recorded; ingest it again with --time."
            )
        self._table, self._encodings = with_stored_columns(table)
        used = self._table
        self._source = open_source(rows.table, [used.src, used.dst, used.time, used.weight, used.relation])
        self._columns = EdgeColumns(self._source, self._table)

    def _parts(self) -> list[str]:
        wanted = {"vertices": self._rows.vertices is not None, "edges": self._base.edge_x is not None}
        return [part for part in ("vertices", "edges") if wanted[part] and part in self._stored]

    def record(self) -> Record:
        """Read the rows and put them behind those of the record."""
        base, columns = self._base, self._columns
        counts = columns.read(None)
        self._tell(in_words(counts, self._source.title))
        described = self._describe()
        numbers, names, _ = columns.ids.finish()
        where, joined_names, vertices = with_new_ids(base.names, base.vertices, names)
        new = vertices - base.vertices
        if new:
            self._say(f"{new:,} vertices of {self._source.title} were never seen in training.")
        weight, _, raws = columns.finish({})
        edge_x = None
        if raws:
            edge_x = encodings.apply(self._encodings["edges"], raws)
            self._tell(encodings.notes_on_unknown(self._encodings["edges"], raws, self._source.title))
        elif base.edge_x is not None:
            raise DataError("the trained edges have features without a stored encoding; give a graph directory.")
        more: dict[str, Any] = {
            "src": where[numbers["src"]],
            "dst": where[numbers["dst"]],
            "weight": weight,
            "edge_x": edge_x,
            "relation": self._relation(base),
        }
        table, title = self._table, self._source.title
        keep, _, lines = split_off(more["src"], more["dst"], table.self_loops, title, counts["dropped"])
        self._tell(lines)
        more = _rows(more, keep)
        rows = None if described is None else where[numbers[described.role]]
        common: dict[str, Any] = {"vertices": vertices, "names": joined_names, "y": None, "splits": {}}
        if isinstance(base, StaticRecord):
            self._say(f"{len(more['src']):,} edges join the trained graph.")
            common["x"] = self._features(described, rows, vertices, None, 1)
            return replace(base, **common, **_behind(base, more))
        time, order = self._times(base, keep)
        more = _rows(more, order)
        all_times = time if base.time is None else np.concatenate([np.asarray(base.time), time])
        steps = self._steps(base, time)
        offsets = self._offsets(base, steps)
        step = None
        if described is not None and described.time is not None:
            step = self._steps_of_vertices(base, described, all_times)
        return replace(
            base,
            **common,
            **_behind(base, more),
            offsets=offsets,
            time=None if base.time is None else all_times,
            edge_y=None,
            x=self._features(described, rows, vertices, step, len(offsets) - 1),
        )

    def _tell(self, lines: list[str]) -> None:
        for line in lines:
            self._say(line)

    def _relation(self, base: Record) -> Array | None:
        """Return the relations of the rows in the numbers of the trained ones."""
        if base.relation is None:
            return None
        numbers, names = self._columns.relations()
        if numbers is None:
            raise DataError("the trained edges have relations whose column is not recorded; give a graph directory.")
        known = base.relations or [str(k) for k in range(int(base.relation.max(initial=-1)) + 1)]
        strange = next((name for name in names if name not in known), None)
        if strange is not None:
            raise DataError(f"{self._source.title}: {unknown('relation', strange, known)}")
        place = np.array([known.index(name) for name in names], base.relation.dtype)
        return place[numbers] if len(place) else numbers.astype(base.relation.dtype)

    # Times

    def _times(self, base: TimelineRecord, keep: Array | None) -> tuple[Array, Array]:
        """Return the times of the events that are kept, ascending, and their rows in this order.

        Args:
            keep: the rows that are events, bool [rows]; None: all.
        """
        times = self._columns.times
        if times is None:
            raise DataError("internal error: later events were read without their times.")
        time = times.finish() if keep is None else times.finish()[keep]
        dates = bool(base.meta.get("dates", base.meta.get("time_unit") == "us"))
        if base.time is not None and times.are_dates != dates:
            forms = ("dates", "numbers") if dates else ("numbers", "dates")
            raise DataError(
                f"the times of the trained events are {forms[0]}, and those of {self._source.title} are {forms[1]};"
                " use one form."
            )
        if base.time is None and (time.dtype.kind != "i" or times.are_dates):
            raise DataError(
                f"the trained timeline keeps no times, so that {self._source.title} must give steps as whole numbers,"
                f" from {base.steps} on."
            )
        last = base.steps - 1 if base.time is None else base.time[-1]
        late = time <= last
        if late.any() and (late.all() or self._rows.on_late == "refuse"):
            remedy = "leave these rows out, or use --on-late drop"
            raise DataError(
                f"{int(late.sum()):,} of {len(time):,} rows of {self._source.title} are not later than the last trained"
                f" {'step' if base.time is None else 'time'}, {_moment(last, dates=times.are_dates)};"
                f" {'give rows that came after it' if late.all() else remedy}."
            )
        if late.any():
            self._say(
                f"{int(late.sum()):,} of {len(time):,} rows of {self._source.title} are not later than the last"
                " trained event and were dropped (--on-late drop)."
            )
        rows = np.flatnonzero(~late)
        rows = rows[np.argsort(time[rows], kind="stable")]
        return time[rows], rows

    def _steps(self, base: TimelineRecord, time: Array) -> Array:
        """Give the steps of later events, counted as those of the trained ones."""
        if base.time is None:
            return time
        period = base.meta.get("period", 1)
        if period == "distinct":
            return base.steps + np.unique(time, return_inverse=True)[1]
        return steps_since(time, np.asarray(base.time), period, str(base.meta.get("time_unit", "s")))

    def _offsets(self, base: TimelineRecord, steps: Array) -> Array:
        """Give where each step begins, of all events; say what was appended."""
        inside = int((steps < base.steps).sum())
        counts = np.diff(offsets_of(steps))
        total = max(base.steps, len(counts))
        events = np.zeros(total, np.int64)
        events[: base.steps] = np.diff(base.offsets)
        events[: len(counts)] += counts
        offsets = np.zeros(total + 1, np.int64)
        np.cumsum(events, out=offsets[1:])
        if inside:
            self._say(
                f"{inside:,} rows of {self._source.title} fall into step {base.steps - 1}, the last trained one, whose"
                " period they complete."
            )
        appended = total - base.steps
        empty = int((events[base.steps :] == 0).sum())
        hollow = f", {empty:,} of them empty" if empty else ""
        after = f"steps {base.steps} to {total - 1}{hollow}" if appended else "no new step"
        self._say(f"{len(steps):,} events follow the {base.steps:,} trained steps ({after}).")
        return offsets

    def _steps_of_vertices(self, base: TimelineRecord, table: VertexTable, events: Array) -> Array:
        """Give the step in which each row of a table of vertices begins to hold; `events`: times of all events."""
        if table.time is None or base.time is None:
            raise DataError("internal error: a table of vertices has times, and the trained events have none.")
        if table.are_dates != bool(base.meta.get("dates", base.meta.get("time_unit") == "us")):
            raise DataError(
                "the times of the vertices and of the edges are numbers in one table and dates in the other; use one"
                " form."
            )
        return steps_since(table.time, events, base.meta.get("period", 1), str(base.meta.get("time_unit", "s")))

    # Features

    def _describe(self) -> VertexTable | None:
        table = self._table
        if table.vertices is None:
            return None
        source = open_source(table.vertices, [table.id, table.vertex_time], "the table of vertices")
        described = read_vertices(
            source,
            self._columns.ids,
            "vertices",
            identity=table.id,
            features=table.features,
            time=table.vertex_time,
            on_missing=table.on_missing,
        )
        self._tell(described.notes)
        self._tell(encodings.notes_on_unknown(self._encodings["vertices"], described.raws, source.title))
        return described

    def _features(
        self, table: VertexTable | None, rows: Array | None, vertices: int, step: Array | None, steps: int
    ) -> Array | None:
        """float32 [vertices, features] or [steps, vertices, features] of all vertices.

        Args:
            rows: the vertex of each row of the table.
            step: the step from which each row holds, where attributes change over time.
        """
        base, new = self._base, vertices - self._base.vertices
        if base.x is None:
            return None
        plain = self._stored.get("vertices")
        if plain is None and new:
            raise DataError(
                f"{self._source.title} has {new:,} vertices that were never seen in training, and the trained graph"
                " keeps no encoding of columns to make their features by; give --data a graph directory instead."
            )
        if plain is None and base.x.ndim == 3:
            raise DataError(
                "the trained features differ by step and come from no table; give --data a graph directory instead."
            )
        missing = np.zeros(base.x.shape[-1], np.float32)
        encoding = None
        if plain is not None:
            encoding = encodings.Encoding.of(plain)
            missing = encodings.missing_row(encoding)
            if len(missing) != base.x.shape[-1]:
                raise DataError(
                    f"encoding.json describes {len(missing)} features, and the trained graph has {base.x.shape[-1]};"
                    " ingest it again."
                )
        bare = new - (0 if rows is None else len(np.unique(rows[rows >= base.vertices])))
        if bare:
            self._say(
                f"{bare:,} of the {new:,} new vertices have no row in a table of vertices (--vertices); their features"
                " count as missing."
            )
        encoded = None
        if table is not None and encoding is not None:
            encoded = encodings.apply(encoding, table.raws)
        if base.x.ndim == 2:
            x = np.empty((vertices, base.x.shape[1]), np.float32)
            x[: base.vertices], x[base.vertices :] = base.x, missing
            if table is not None and rows is not None and encoded is not None:
                require_once(table, rows)
                x[rows] = encoded
                changed = int((rows < base.vertices).sum())
                if changed and isinstance(base, TimelineRecord):
                    self._say(
                        f"{changed:,} rows of {table.source.title} describe vertices of the training; features do not"
                        " change over time here, so that they hold at all steps."
                    )
            return x
        return self._changing(base.x, table, rows, encoded, missing, vertices, step, steps)

    def _changing(
        self,
        old: Array,
        table: VertexTable | None,
        rows: Array | None,
        encoded: Array | None,
        missing: Array,
        vertices: int,
        step: Array | None,
        steps: int,
    ) -> Array:
        """Attributes that change: the last value holds, and rows of trained vertices hold from the new steps on."""
        trained, seen = old.shape[0], old.shape[1]
        x = np.empty((steps, vertices, old.shape[2]), np.float32)
        x[:trained, :seen], x[trained:, :seen], x[:, seen:] = old, old[-1], missing
        if table is None or rows is None or encoded is None or step is None or table.time is None:
            return x
        early = (rows < seen) & (step < trained)
        if early.any():
            self._say(
                f"{int(early.sum()):,} rows of {table.source.title} describe trained vertices within the trained steps;"
                f" they hold from step {trained} on."
            )
        begins = np.where(rows < seen, np.maximum(step, trained), np.maximum(step, 0))
        late = int((begins >= steps).sum())
        if late:
            self._say(f"{late:,} rows of {table.source.title} lie after the last event and are not used.")
        order = np.argsort(table.time, kind="stable")
        order = order[np.argsort(begins[order], kind="stable")]
        bounds = np.searchsorted(begins[order], np.arange(steps + 1))
        now, changed = np.empty_like(x[0]), np.zeros(vertices, bool)
        for t in range(steps):
            part = order[bounds[t] : bounds[t + 1]]
            # of several rows of a vertex the last is assigned, which is the latest
            now[rows[part]], changed[rows[part]] = encoded[part], True
            x[t, changed] = now[changed]
        return x


def _rows(arrays: dict[str, Any], rows: Array | None) -> dict[str, Any]:
    """Return the given rows of each array (None: all of them)."""
    return arrays if rows is None else {name: None if a is None else a[rows] for name, a in arrays.items()}


def _behind(base: Record, more: dict[str, Any]) -> dict[str, Any]:
    """Give arrays of the record, by name, with those of later rows behind them."""
    own = {name: getattr(base, name) for name in more}
    return {
        name: None if array is None else np.concatenate([np.asarray(array), more[name].astype(array.dtype)])
        for name, array in own.items()
    }


def _title(table: Any) -> str:
    return str(table) if isinstance(table, str) or hasattr(table, "__fspath__") else type(table).__name__


def _moment(value: Any, *, dates: bool) -> str:
    return str(np.datetime64(int(value), "us")) if dates else f"{value}"
