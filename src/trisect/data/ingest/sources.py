"""Where a table comes from: a text file, a Parquet file, or a frame in memory. All give named columns in batches."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trisect.data.ingest import tables
from trisect.errors import DataError


class Source(ABC):
    """A table with named columns.

    Attributes:
        title: how messages call it.
        names: its columns.
        malformed: how many rows had the wrong number of columns, and were passed over, in the last reading.
    """

    title: str
    names: list[str]
    malformed: int = 0

    @abstractmethod
    def batches(self, columns: list[str], progress: tables.Progress | None = None) -> Iterator[list[Any]]:
        """Give the columns batch by batch, as pyarrow arrays (numpy arrays where pyarrow is not installed)."""

    def where(self, rows: Sequence[int]) -> list[str]:
        """Tell how the user finds these rows (ascending, counted from 0)."""
        return [f"row {row + 1}" for row in rows]

    def where_malformed(self, most: int) -> list[str]:
        """Tell how the user finds the first rows with the wrong number of columns."""
        return []

    def pick(self, wanted: str | None, role: str, position: int = 0) -> str:
        """Give the column asked for, or the one at `position` where none was named."""
        return tables.pick(self.names, wanted, role, position, self.title)


class TextSource(Source):
    """CSV, TSV or edge-list text, also packed as .gz."""

    def __init__(self, path: Path, wanted: Sequence[str | None]) -> None:
        self.path, self.title = path, f"the table {path}"
        self._shape = tables.sniff(path, list(wanted))
        self.names = self._shape.names

    def batches(self, columns: list[str], progress: tables.Progress | None = None) -> Iterator[list[Any]]:
        """Text columns; without pyarrow columns of plain numbers."""
        self.malformed = 0
        if not tables.have_pyarrow():
            return tables.number_batches(self.path, self._shape, columns, progress)
        return tables.text_batches(self.path, self._shape, columns, progress, self._pass_over)

    def _pass_over(self, row: Any) -> str:
        self.malformed += 1
        return "skip"

    def where(self, rows: Sequence[int]) -> list[str]:
        """Lines of the file, counted from 1 as an editor does."""
        wanted, lines = iter(rows), []
        row = next(wanted, None)
        for position, (line, _) in enumerate(self._lines(malformed=False)):
            while row == position:
                lines.append(f"line {line}")
                row = next(wanted, None)
            if row is None:
                return lines
        # where what is read as rows is none as a line, their number must do
        return lines + super().where([] if row is None else [row, *wanted])

    def where_malformed(self, most: int) -> list[str]:
        """Lines of the file, with the number of columns that they have."""
        lines = []
        for line, width in self._lines(malformed=True):
            lines.append(f"line {line}: {width} instead of {self._shape.width}")
            if len(lines) == most:
                break
        return lines

    def _lines(self, malformed: bool) -> Iterator[tuple[int, int]]:
        """Number and width of each line of data: those of the right width, or the others."""
        shape = self._shape
        spaces = shape.delimiter == " "
        with tables.open_raw(self.path) as raw, io.TextIOWrapper(raw, "utf-8-sig", "replace", newline="") as file:
            for _ in range(shape.comments):
                file.readline()
            lines: Any = file if spaces else csv.reader(file, delimiter=shape.delimiter)
            header = shape.header is not None
            for number, line in enumerate(lines, 1):
                if spaces and line.lstrip()[:1] in ("#", "%"):
                    continue
                fields = line.split() if spaces else line
                if not fields:
                    continue
                if header:
                    header = False
                    continue
                if (len(fields) != shape.width) == malformed:
                    yield shape.comments + (number if spaces else lines.line_num), len(fields)


class ParquetSource(Source):
    """A Parquet file as a table with named columns."""

    def __init__(self, path: Path) -> None:
        self.path, self.title = path, f"the table {path}"
        self.names = tables.parquet_names(path)

    def batches(self, columns: list[str], progress: tables.Progress | None = None) -> Iterator[list[Any]]:
        """Columns of the file's own types."""
        return tables.parquet_batches(self.path, columns, progress)


class FrameSource(Source):
    """A table of pandas, polars or Arrow, or a mapping of names to arrays."""

    def __init__(self, frame: Any, title: str) -> None:
        tables.require_pyarrow("a table in memory is read through Arrow")
        import pyarrow as pa

        self.title = title
        try:
            if hasattr(frame, "collect") and not hasattr(frame, "__arrow_c_stream__"):
                frame = frame.collect()  # polars' LazyFrame
            if isinstance(frame, Mapping):
                self._table = pa.table({str(name): _plain(values) for name, values in frame.items()})
            elif hasattr(frame, "to_numpy") and hasattr(frame, "iloc"):  # without the index of pandas
                self._table = pa.Table.from_pandas(frame, preserve_index=False)
            else:
                self._table = pa.table(frame)
        except (pa.ArrowException, TypeError, ValueError, RuntimeError, OverflowError) as error:
            if "Duplicate column names" in str(error):
                names = list(map(str, frame.columns))
                twice = next((name for name in names if names.count(name) > 1), names[0])
                raise DataError(f"{title} has {names.count(twice)} columns {twice!r}; rename all but one.") from error
            raise DataError(
                f"{title} is a {type(frame).__name__} that Arrow cannot read ({str(error).partition(chr(10))[0]}); give"
                " a table of pandas, polars or Arrow, or a mapping of names to arrays."
            ) from error
        self.names = [str(name) for name in self._table.column_names]

    def batches(self, columns: list[str], progress: tables.Progress | None = None) -> Iterator[list[Any]]:
        """Columns of the frame's own types."""
        unique = list(dict.fromkeys(columns))
        chosen, done, rows = self._table.select(unique), 0, max(1, self._table.num_rows)
        for batch in chosen.to_batches(max_chunksize=tables.ROWS):
            done += batch.num_rows
            if progress is not None:
                progress(done / rows)
            yield [batch.column(unique.index(name)) for name in columns]


def _plain(values: Any) -> Any:
    """Give an array as Arrow reads it: tensors by way of numpy."""
    values = values.detach().cpu().numpy() if hasattr(values, "detach") else values
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        unit = np.datetime_data(values.dtype)[0]
        coarse = {"Y": "D", "M": "D", "W": "D", "h": "s", "m": "s"}  # units that Arrow does not have
        values = values.astype(f"datetime64[{coarse[unit]}]") if unit in coarse else values
    return values


def open_source(table: Any, wanted: Sequence[str | None] = (), title: str = "the table") -> Source:
    """Give the source of a path or a frame.

    Args:
        wanted: columns that the user names; one that is a number says that a text file has no header.
        title: how messages call a frame.
    """
    if isinstance(table, Source):
        return table
    if isinstance(table, (str, Path)):
        path = Path(table).expanduser()
        tables.require_readable(path)
        return ParquetSource(path) if tables.is_parquet(path) else TextSource(path, wanted)
    return FrameSource(table, title)
