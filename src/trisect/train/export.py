"""Outputs of a trained model as a table: a row for each vertex (and step), the user's ids first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trisect.data.records import Array, Record
from trisect.errors import TrisectError
from trisect.train.predict import embed, predict
from trisect.train.setup import Setup

SUFFIXES = (".parquet", ".npz")


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


def export(setup: Setup, record: Record, path: Path) -> int:
    """Write embeddings and the task's outputs of all vertices (and steps); returns how many rows.

    An .npz holds `vertex` [vertices], `embedding` and each output as [vertices, …], or [steps, vertices, …] for a
    timeline. A Parquet file has a row for each vertex (and `step`), lists where a row has several numbers.
    """
    arrays = {"embedding": embed(setup)} | predict(setup)
    found: dict[str, Array] = {
        name: value.float().numpy() if value.is_floating_point() else value.numpy() for name, value in arrays.items()
    }
    names = vertex_ids(record)
    steps = setup.steps
    draft = path.with_name(f".{path.name}.draft")
    if path.suffix == ".npz":
        shaped = found if setup.timeline else {name: value[0] for name, value in found.items()}
        with draft.open("wb") as file:
            np.savez_compressed(file, vertex=names, **shaped)
    else:
        _write_parquet(draft, names, found, steps, setup.timeline)
    draft.replace(path)
    return steps * len(names)


def vertex_ids(record: Record) -> Array:
    """The user's ids, or 0, 1, … where there are none."""
    return np.arange(record.vertices) if record.names is None else np.asarray(record.names)


def _write_parquet(path: Path, names: Array, found: dict[str, Array], steps: int, timeline: bool) -> None:
    pyarrow, parquet = _parquet()
    ids = pyarrow.array(names)
    fields = [("vertex", ids.type)] + ([("step", pyarrow.int32())] if timeline else [])
    fields += [(name, _column(pyarrow, value[0]).type) for name, value in found.items()]
    with parquet.ParquetWriter(path, pyarrow.schema(fields)) as writer:
        for step in range(steps):  # a row group a step, so that only one is in memory twice
            columns = {"vertex": ids}
            if timeline:
                columns["step"] = pyarrow.array(np.full(len(names), step, np.int32))
            columns |= {name: _column(pyarrow, value[step]) for name, value in found.items()}
            writer.write_table(pyarrow.table(columns))


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
