"""Outputs of a trained model as a table: a row for each vertex (and step), or for each pair, the user's ids first."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from trisect.data.records import Array, Names
from trisect.errors import CheckpointError, TrisectError
from trisect.settings.writing import drafted
from trisect.train.outputs.saved_rows import RowsReader
from trisect.train.run.lock import LOCK, locked

SUFFIXES = (".parquet", ".npz")
_BLOCK = 65_536  # rows


@dataclass(frozen=True, eq=False)
class Described:
    """What the rows of a table are called.

    Attributes:
        names: the user's vertex ids; None where they are 0, 1, ….
        vertices: how many there are.
        timeline: whether a row belongs to a step.
        classes: the names of the classes; None where they are numbers.
    """

    names: Names | None
    vertices: int
    timeline: bool
    classes: Sequence[str] | None = None

    def ids(self, start: int, stop: int) -> Array:
        """Give the user's ids of some vertices; their numbers where there are none."""
        return np.arange(start, stop) if self.names is None else np.asarray(self.names[start:stop])

    def ids_of(self, vertices: Array) -> Array:
        """Give the user's ids of these vertices."""
        return vertices if self.names is None else np.asarray(self.names[vertices])

    def class_names(self, count: int) -> list[str]:
        """Give a name for each class: its number where it has none."""
        own = list(self.classes or ())[:count]
        return own + [str(number) for number in range(len(own), count)]


def check_target(path: Path) -> None:
    """Raise where `path` cannot be written, before anything is computed."""
    if path.suffix not in SUFFIXES:
        raise TrisectError(f"--out is {path}, but must end in .parquet or .npz.")
    if path.is_dir():
        raise TrisectError(f"--out is {path}, which is a directory; give a file.")
    if not path.parent.is_dir():
        raise TrisectError(f"--out is {path}, but the directory {path.parent} does not exist.")
    if path.suffix == ".parquet":
        _parquet()


def rows_folder(path: Path) -> Path:
    """Give the folder where the rows of a table lie until they are joined: beside it, so that all ranks see them."""
    return path.absolute().with_name(f".{path.name}.rows")


@contextmanager
def rows_folder_beside(path: Path) -> Iterator[Path]:
    """Make an empty folder for the rows, and remove it afterwards; what a process that was killed left is removed.

    Raises:
        CheckpointError: another process predicts to the same file.
    """
    folder = rows_folder(path)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise CheckpointError(f"{folder} is no directory; remove it.")
    folder.mkdir(exist_ok=True)
    with locked(folder):
        try:
            for earlier in folder.iterdir():
                if earlier.name != LOCK:
                    shutil.rmtree(earlier) if earlier.is_dir() else earlier.unlink()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def join(rows: RowsReader, path: Path, described: Described) -> int:
    """Put saved rows together into one file, in the user's vertex order; give how many rows it has."""
    with drafted(path) as draft:
        if path.suffix == ".npz":
            _write_npz(draft, rows, described)
        else:
            with ParquetTable(draft) as table:
                for step, start, stop in rows.blocks(_BLOCK):
                    table.add(_columns(rows, described, step, start, stop))
    return len(rows.steps) * rows.vertices


def _columns(rows: RowsReader, described: Described, step: int, start: int, stop: int) -> dict[str, Array]:
    """Give the columns of a block of rows: a class by its name, and a column for the probability of each."""
    columns: dict[str, Array] = {"vertex": described.ids(start, stop)}
    if described.timeline:
        columns["step"] = np.full(stop - start, step, np.int32)
    for name in rows.names:
        columns |= named_columns(name, rows.block(name, step, start, stop), described)
    return columns


def named_columns(name: str, values: Array, described: Described) -> dict[str, Array]:
    """Give a column as a table has it: a class by its name, and a column for the probability of each."""
    if name == "class" and described.classes is not None:
        return {name: np.asarray(described.classes)[values]}
    if name == "probability" and values.ndim == 2:
        names = described.class_names(values.shape[1])
        return {f"{name}_{each}": values[:, k] for k, each in enumerate(names)}
    return {name: values}


def _write_npz(path: Path, rows: RowsReader, described: Described) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        _write_array(archive, "vertex", described.ids(0, rows.vertices))
        if described.timeline:
            _write_array(archive, "step", np.arange(rows.steps.start, rows.steps.stop))
        if described.classes is not None:
            _write_array(archive, "classes", np.asarray(described.classes))
        for name in rows.names:
            dtype, row = rows.shape(name)
            shape = (*((len(rows.steps),) if described.timeline else ()), rows.vertices, *row)
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, header)
                for step, start, stop in rows.blocks(_BLOCK):
                    file.write(rows.block(name, step, start, stop).tobytes())


def _write_array(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)


class ParquetTable:
    """Writes a Parquet file, a row group at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pyarrow, self._parquet = _parquet()
        self._writer: Any = None

    def add(self, columns: Mapping[str, Array]) -> None:
        """Write some rows; all calls give the same columns."""
        pyarrow = self._pyarrow
        table = pyarrow.table({name: _column(pyarrow, values) for name, values in columns.items()})
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)

    def __enter__(self) -> ParquetTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()


class NpzTable:
    """Gathers rows, and writes them as one array a column at the end; for tables that fit into memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: dict[str, list[Array]] = {}

    def add(self, columns: Mapping[str, Array]) -> None:
        """Take some rows; all calls give the same columns."""
        for name, values in columns.items():
            self._parts.setdefault(name, []).append(values)

    def __enter__(self) -> NpzTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            with zipfile.ZipFile(self._path, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, parts in self._parts.items():
                    _write_array(archive, name, np.concatenate(parts))


def table_writer(path: Path, suffix: str) -> ParquetTable | NpzTable:
    """Give the writer of a table of the kind that the suffix names."""
    return NpzTable(path) if suffix == ".npz" else ParquetTable(path)


def _column(pyarrow: Any, values: Array) -> Any:
    if values.ndim == 1:
        return pyarrow.array(values)
    flat = values.reshape(len(values), -1)
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat.reshape(-1)), flat.shape[1])


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise TrisectError(
            "Parquet needs pyarrow; install it with: pip install 'trisect[parquet]', or give --out a name in .npz."
        ) from None
    return pyarrow, parquet
