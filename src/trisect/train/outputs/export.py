"""Outputs of a trained model as a table: a row for each vertex (and step), the user's ids first."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from trisect.data.records import Array, Names
from trisect.errors import TrisectError
from trisect.train.outputs.saved_rows import RowsReader

SUFFIXES = (".parquet", ".npz")
_BLOCK = 65_536  # rows


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
    """Make an empty folder for the rows, and remove it afterwards."""
    folder = rows_folder(path)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def join(folder: Path, path: Path, names: Names | None, vertices: int, steps: int, *, timeline: bool) -> int:
    """Put saved rows together into one file, in the user's vertex order; give how many rows it has."""
    rows = RowsReader(folder, vertices, steps)
    draft = path.with_name(f".{path.name}.draft")
    try:
        if path.suffix == ".npz":
            _write_npz(draft, rows, names, timeline)
        else:
            _write_parquet(draft, rows, names, timeline)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return steps * vertices


def vertex_ids(names: Names | None, start: int, stop: int) -> Array:
    """Give the user's ids of some vertices; their numbers where there are none."""
    return np.arange(start, stop) if names is None else np.asarray(names[start:stop])


def _write_npz(path: Path, rows: RowsReader, names: Names | None, timeline: bool) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("vertex.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array(file, vertex_ids(names, 0, rows.vertices), allow_pickle=False)
        for name in rows.names:
            dtype, row = rows.shape(name)
            shape = (*((rows.steps,) if timeline else ()), rows.vertices, *row)
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, header)
                for step, start, stop in rows.blocks(_BLOCK):
                    file.write(rows.block(name, step, start, stop).tobytes())


def _write_parquet(path: Path, rows: RowsReader, names: Names | None, timeline: bool) -> None:
    pyarrow, parquet = _parquet()
    writer = None
    try:
        for step, start, stop in rows.blocks(_BLOCK):  # a row group each
            columns = {"vertex": pyarrow.array(vertex_ids(names, start, stop))}
            if timeline:
                columns["step"] = pyarrow.array(np.full(stop - start, step, np.int32))
            columns |= {name: _column(pyarrow, rows.block(name, step, start, stop)) for name in rows.names}
            table = pyarrow.table(columns)
            writer = parquet.ParquetWriter(path, table.schema) if writer is None else writer
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


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
