"""Outputs on disk as they are computed, and read back in the user's vertex order, some rows at a time.

A rank saves its rows for some steps at a time, vertices ascending. Whoever joins
them maps the files and never holds more than a block of rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trisect.data.formats.npy import map_npy
from trisect.data.records import Array
from trisect.errors import RunError
from trisect.settings.writing import to_json

_META = "rows.json"
_VERTICES = "vertices.npy"


@dataclass(frozen=True, eq=False)
class SavedRows:
    """Rows of some vertices at some steps.

    Attributes:
        first: its first step.
        vertices: the user's vertices of the rows, ascending [rows].
        columns: name → [steps, rows, …].
    """

    first: int
    vertices: Array
    columns: dict[str, Array]


class RowsWriter:
    """Writes the rows of one rank into a folder; each rank uses names of its own."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder, self._rank, self._count = folder, rank, 0

    def add(self, first: int, vertices: Tensor | None, columns: Mapping[str, Tensor]) -> None:
        """Save outputs of steps first, first + 1, …; `vertices` says whose the rows are (None: 0, 1, …)."""
        target = self.folder / f"rank-{self._rank:05d}-{self._count:06d}"
        self._count += 1
        target.mkdir()
        rows = next(iter(columns.values())).shape[1]
        order = None if vertices is None else torch.argsort(vertices)
        ascending = torch.arange(rows) if vertices is None or order is None else vertices[order]
        np.save(target / _VERTICES, ascending.cpu().numpy(), allow_pickle=False)
        for name, value in columns.items():
            half = value.is_floating_point() and value.dtype not in (torch.float32, torch.float64)
            value = value.float() if half else value
            value = value if order is None else value.index_select(1, order.to(value.device))
            np.save(target / f"column-{name}.npy", value.cpu().numpy(), allow_pickle=False)
        # last: rows without it are not complete
        (target / _META).write_text(to_json({"first": first, "columns": list(columns)}))


class RowsReader:
    """Reads all rows that were saved in a folder.

    Args:
        vertices: how many rows a step has.
        steps: those that are read.
    """

    def __init__(self, folder: Path, vertices: int, steps: range) -> None:
        self.vertices, self.steps = vertices, steps
        self._saved = [_read(path.parent) for path in sorted(folder.glob(f"*/{_META}"))]
        self.names = list(dict.fromkeys(name for saved in self._saved for name in saved.columns))

    def shape(self, name: str) -> tuple[np.dtype, tuple[int, ...]]:
        """Give the type of a column, and the shape of one row of it."""
        column = next(saved.columns[name] for saved in self._saved if name in saved.columns)
        return column.dtype, column.shape[2:]

    def block(self, name: str, step: int, start: int, stop: int) -> Array:
        """Give a column of the user's vertices start .. stop-1 at a step: [rows, …]."""
        dtype, shape = self.shape(name)
        values = np.empty((stop - start, *shape), dtype)
        filled = 0
        for saved in self._saved:
            column = saved.columns.get(name)
            if column is not None and saved.first <= step < saved.first + len(column):
                low, high = np.searchsorted(saved.vertices, (start, stop))
                values[saved.vertices[low:high] - start] = column[step - saved.first, low:high]
                filled += int(high - low)
        if filled != stop - start:
            raise RunError(f"{stop - start - filled} rows of {name} at step {step} were not computed by any rank.")
        return values

    def take(self, name: str, step: int, vertices: Array) -> Array:
        """Give a column of these of the user's vertices, ascending, at a step: [rows, …]; no other rows are read."""
        dtype, shape = self.shape(name)
        values = np.empty((len(vertices), *shape), dtype)
        filled = 0
        for saved in self._saved:
            column = saved.columns.get(name)
            if column is None or not saved.first <= step < saved.first + len(column):
                continue
            position = np.minimum(np.searchsorted(saved.vertices, vertices), len(saved.vertices) - 1)
            here = np.flatnonzero(saved.vertices[position] == vertices) if len(saved.vertices) else position[:0]
            values[here] = column[step - saved.first][position[here]]
            filled += len(here)
        if filled != len(vertices):
            raise RunError(f"{len(vertices) - filled} rows of {name} at step {step} were not computed by any rank.")
        return values

    def blocks(self, rows: int) -> Iterator[tuple[int, int, int]]:
        """List (step, start, stop): all rows in order, at most so many at a time."""
        for step in self.steps:
            for start in range(0, self.vertices, rows):
                yield step, start, min(start + rows, self.vertices)


def _read(folder: Path) -> SavedRows:
    meta = json.loads((folder / _META).read_text())
    columns = {name: map_npy(folder / f"column-{name}.npy", "r", "predict again") for name in meta["columns"]}
    return SavedRows(int(meta["first"]), map_npy(folder / _VERTICES, "r", "predict again"), columns)
