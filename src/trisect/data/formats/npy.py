"""Arrays in .npy files and npz archives: sizes are compared with the file and with the free memory before reading."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from trisect.data.records import Array, Record, TextNames
from trisect.data.room import reading, require_room
from trisect.errors import DataError

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npy(path: Path | str, what: str) -> Array:
    """Read an .npy file; pickled objects are refused."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{what} {path} does not exist, or is no regular file.")
    with reading(f"{what} {path}", "give an .npy file of numbers"), open(path, "rb") as file:
        _check_header(file, path.stat().st_size, f"{what} {path}")
        file.seek(0)
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
        return array


def map_npy(path: Path, mode: Literal["r", "c"], remedy: str) -> Array:
    """Map an .npy file, whose pages are read when they are used; one that is shorter than its header says is refused.

    Args:
        mode: `r`: read-only; `c`: pages are copied when they are written to.
    """
    with reading(str(path), remedy):
        array: Array = np.load(path, mmap_mode=mode, allow_pickle=False)
    return array


def check_record(record: Record) -> None:
    """Refuse a record of which an array is mapped from a file that was cut off since (see `check_mapped`)."""
    splits = {f"split.{name}": mask for name, mask in record.splits.items()}
    for name, array in {**vars(record), **splits}.items():
        check_mapped(name, array)


def check_mapped(name: str, array: Any) -> None:
    """Refuse an array whose file was cut off after it was mapped: a read past its end would kill the process."""
    if isinstance(array, TextNames):
        check_mapped(f"{name}.offsets", array.offsets)
        check_mapped(f"{name}.utf8", array.data)
    pages = getattr(array, "_mmap", None)
    if pages is not None and pages.size() < len(pages):
        raise DataError(
            f"{name} is mapped from {getattr(array, 'filename', 'a file')}, of which {pages.size():,} of {len(pages):,}"
            " bytes are left since it was opened; write the file again, and open it anew."
        )


def read_archive(path: Path) -> dict[str, Array]:
    """Read all arrays of an npz archive."""
    if not path.exists():
        raise DataError(f"data file {path} does not exist.")
    if not path.is_file():
        raise DataError(f"data file {path} is no regular file; give an npz archive.")
    what = f"data file {path}"
    with reading(what, "give a readable npz archive"), zipfile.ZipFile(path) as archive:
        members = [item for item in archive.infolist() if item.filename.endswith(".npy")]
        require_room(sum(item.file_size for item in members), what)
        arrays: dict[str, Array] = {}
        for item in members:
            name = item.filename.removesuffix(".npy")
            with archive.open(item) as file:
                _check_header(file, item.file_size, f"{name} of {what}")
            with archive.open(item) as file:
                arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
        return arrays


def _check_header(file: IO[bytes] | Any, size: int, what: str) -> None:
    """Refuse an array whose header speaks of more bytes than the file has, or of objects."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise DataError(f"{what} has the version {version}, which is not read; save it again with numpy.")
    shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise DataError(f"{what} holds pickled objects, which are never read; save numbers or text.")
    count = 1
    for length in shape:
        count *= int(length)
    if not 0 <= count * dtype.itemsize <= size:
        raise DataError(f"{what} is damaged: its header speaks of the shape {list(shape)}, and the file is smaller.")
    require_room(count * dtype.itemsize, what)
