"""Graph directories: a JSON manifest beside .npy arrays that are memory-mapped on reading (docs/formats.md)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trisect.data.formats.npy import check_record, map_npy
from trisect.data.records import Array, Names, Record, StaticRecord, TextNames, TimelineRecord
from trisect.data.room import reading, require_room
from trisect.data.sound import sound
from trisect.errors import DataError
from trisect.settings.writing import to_json

MANIFEST = "manifest.json"
FORMAT, VERSION = "trisect-graph", 1
_PLAIN = ("src", "dst", "offsets", "weight", "x", "y", "edge_x", "edge_y", "relation", "time", "y_weight")
ENCODING = "encoding.json"


def check_free(out: Path) -> None:
    """Refuse an output directory that already holds something."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"the output directory {out} exists and is not empty; choose another or remove it.")
    if not out.parent.is_dir():
        raise DataError(f"the folder {out.parent} does not exist; make it or choose another output directory.")


def write_directory(record: Record, out: Path | str) -> Path:
    """Write the record as a graph directory, under a temporary name first, and rename it."""
    target = Path(out)
    target = target if target.is_absolute() else Path.cwd() / target
    check_free(target)
    check_record(record)
    arrays = {name: getattr(record, name) for name in _PLAIN if getattr(record, name, None) is not None}
    arrays.update({f"split.{name}": mask for name, mask in record.splits.items()})
    arrays.update(_names_arrays(record.names))
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        described = {name: _save(work / f"{name}.npy", array) for name, array in arrays.items()}
        timeline = isinstance(record, TimelineRecord)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "kind": "timeline" if timeline else "static",
            "vertices": record.vertices,
            "edges": len(record.src),
            "steps": record.steps if isinstance(record, TimelineRecord) else 1,
            "undirected": record.undirected,
            "arrays": described,
            "meta": {key: value for key, value in record.meta.items() if key != "encoding"},
        }
        if record.meta.get("encoding"):
            _write_json(work / ENCODING, record.meta["encoding"])
        _write_json(work / MANIFEST, manifest)
        os.chmod(work, 0o777 & ~_umask())
        if target.exists():
            target.rmdir()
        work.rename(target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return target


def read_directory(path: Path | str, verify: bool = False) -> Record:
    """Read the record of a graph directory, its arrays memory-mapped; `verify` compares every array's SHA-256."""
    directory = Path(path)
    with reading(str(directory), "ingest the data again"):
        return sound(_read_directory(directory, verify), str(directory))


def _read_directory(directory: Path, verify: bool) -> Record:
    manifest = read_manifest(directory)
    arrays: dict[str, Array] = {}
    for name, entry in manifest["arrays"].items():
        if re.fullmatch(r"[A-Za-z0-9_.]+", name) is None:  # a name is part of a path
            raise DataError(f"{directory / MANIFEST} lists an array {name!r}; names are letters, digits, '_' and '.'.")
        arrays[name] = _load(directory / f"{name}.npy", entry, verify)
    missing = [name for name in ("src", "dst") if name not in arrays]
    if missing:
        raise DataError(f"{directory / MANIFEST} lists no array {missing[0]!r}; ingest the data again.")
    common: dict[str, Any] = {
        "vertices": int(manifest["vertices"]),
        "undirected": bool(manifest["undirected"]),
        "splits": {name[6:]: mask for name, mask in arrays.items() if name.startswith("split.")},
        "names": _names_of(arrays),
        "meta": {**manifest.get("meta", {}), "source": str(directory)},
        **{name: arrays.get(name) for name in ("src", "dst", "weight", "x", "y", "edge_x", "relation", "y_weight")},
    }
    encoding = read_encoding(directory)
    if encoding:
        common["meta"]["encoding"] = encoding
    if manifest["kind"] == "static":
        return StaticRecord(**common)
    if "offsets" not in arrays:
        raise DataError(f"{directory / MANIFEST} lists no array 'offsets'; ingest the data again.")
    common.update({name: arrays.get(name) for name in ("offsets", "edge_y", "time")})
    return TimelineRecord(**common)


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read and check the manifest of a graph directory."""
    path = directory / MANIFEST
    if not path.is_file():
        raise DataError(f"{directory} is no graph directory (it has no {MANIFEST}); make one with ingest.")
    with reading(str(path), "ingest the data again"):
        require_room(20 * path.stat().st_size, str(path))
        manifest = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(manifest, Mapping) or manifest.get("format") != FORMAT:
        raise DataError(f"{path} does not describe a graph directory; its format must be {FORMAT!r}.")
    if manifest.get("version") != VERSION:
        raise DataError(f"{path} has version {manifest.get('version')!r}; this program reads version {VERSION}.")
    needed = {"kind": str, "vertices": int, "undirected": bool, "arrays": dict}
    for name, kind in needed.items():
        if not isinstance(manifest.get(name), kind):
            raise DataError(f"{path}: {name} is {manifest.get(name)!r}; it must be of type {kind.__name__}.")
    if not all(isinstance(entry, dict) for entry in manifest["arrays"].values()):
        raise DataError(f"{path}: arrays must have a mapping for each array; ingest the data again.")
    if not isinstance(manifest.get("meta", {}), dict):
        raise DataError(f"{path}: meta is {manifest['meta']!r}; it must be a mapping.")
    return dict(manifest)


def read_encoding(directory: Path | str) -> dict[str, Any]:
    """Read how columns became features: `vertices` and `edges` → the columns of `encoding.json`, or {}."""
    path = Path(directory) / ENCODING
    if not path.is_file():
        return {}
    with reading(str(path), "ingest the data again"):
        encoding = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(encoding, dict):
        raise DataError(f"{path} does not describe an encoding; ingest the data again.")
    return encoding


def _write_json(path: Path, value: Any) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(to_json(value, indent=1, default=_plain))
        file.flush()
        os.fsync(file.fileno())


def _save(path: Path, array: Array) -> dict[str, Any]:
    np.save(path, array, allow_pickle=False)
    return {"dtype": array.dtype.str, "shape": list(array.shape), "bytes": path.stat().st_size, "sha256": _hash(path)}


def _load(path: Path, entry: Mapping[str, Any], verify: bool) -> Array:
    if not path.is_file():
        raise DataError(f"the graph directory lacks {path}; ingest the data again.")
    size = path.stat().st_size
    if size != entry.get("bytes"):
        raise DataError(
            f"{path} is damaged (it has {size:,} bytes, and the manifest says {entry.get('bytes')!s:.20}); ingest the"
            " data again."
        )
    if verify and _hash(path) != entry.get("sha256"):
        raise DataError(f"{path} is damaged (its SHA-256 is not the manifest's); ingest the data again.")
    if 0 in entry["shape"]:  # nothing can be mapped of it
        with reading(str(path), "ingest the data again"):
            array: Array = np.load(path, allow_pickle=False)
    else:
        array = map_npy(path, "r", "ingest the data again")
    if array.dtype.str != entry["dtype"] or list(array.shape) != list(entry["shape"]):
        raise DataError(f"{path} is damaged (its type or shape is not the manifest's); ingest the data again.")
    return array


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _names_arrays(names: Names | None) -> dict[str, Array]:
    if names is None:
        return {}
    if not isinstance(names, TextNames) and names.dtype.kind not in "iu":
        names = TextNames.of([str(name) for name in names])
    if isinstance(names, TextNames):
        return {"names.offsets": names.offsets, "names.utf8": names.data}
    return {"names": names}


def _names_of(arrays: Mapping[str, Array]) -> Names | None:
    if "names.offsets" in arrays:
        return TextNames(arrays["names.offsets"], arrays["names.utf8"])
    return arrays.get("names")


def _plain(value: Any) -> Any:
    return (
        value.item()
        if isinstance(value, np.generic)
        else value.tolist()
        if isinstance(value, np.ndarray)
        else str(value)
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
