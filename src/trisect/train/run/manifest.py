"""The manifest of a checkpoint, checked before it is believed: it may have come from anywhere with its directory."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from trisect.errors import CheckpointError
from trisect.settings.writing import to_json
from trisect.train.run.sound_json import (
    ANYTHING,
    COUNT,
    FINITE,
    NUMBER,
    TEXT,
    Each,
    Maybe,
    flaw_of,
    open_regular,
    parse,
)

FORMAT = "trisect-checkpoint"
VERSION = 2
MANIFEST = "manifest.json"
_LARGEST = 1 << 28  # bytes of a manifest
_DIMENSIONS = 8
# what a trainer's state says besides its tensors; each name may be missing, which the trainer refuses itself
_META = {
    "epoch": COUNT,
    "monitor": TEXT,
    "best_epoch": COUNT,
    "best_value": Maybe(NUMBER),
    "stale": COUNT,
    "lr": {"scale": FINITE, "stalled": COUNT},
    "loss": [NUMBER],
    "guard": Maybe(
        {
            **dict.fromkeys(("level", "began", "alarms", "good_epoch"), COUNT),
            "checks": [{"epoch": COUNT, "exact": Maybe(NUMBER), "stale": Maybe(NUMBER)}],
            "actions": [Each(ANYTHING)],
        }
    ),
}
_SHARD = re.compile(r"^rank-[0-9]{5,9}\.safetensors$")


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of the checkpoint `path`, and check it against its own hash and for sense.

    Raises:
        CheckpointError: it is damaged, of another release, or does not describe a checkpoint.
    """
    manifest = _load(path)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"The checkpoint {path} is not one of Trisect's.")
    if manifest.get("version") != VERSION:
        raise CheckpointError(
            f"The checkpoint {path} has the format version {str(manifest.get('version'))[:20]!r}, of another release"
            f" whose numbers differ; start a new run, or continue with that release; this release reads {VERSION}."
        )
    if manifest.get("sha256") != manifest_hash(manifest):
        raise CheckpointError(f"The checkpoint {path} is damaged: its {MANIFEST} does not match its own hash.")
    flaw = _flaw(manifest)
    if flaw is not None:
        raise CheckpointError(f"The checkpoint {path} is damaged: its {MANIFEST} {flaw}.")
    return manifest


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """Give the hash of a manifest without its own."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(to_json(rest, sort_keys=True).encode()).hexdigest()


def _load(path: Path) -> Any:
    try:
        with os.fdopen(open_regular(path / MANIFEST), "rb") as file:
            if os.fstat(file.fileno()).st_size > _LARGEST:
                raise CheckpointError(f"The checkpoint {path} is damaged: its {MANIFEST} is absurdly large.")
            return parse(file.read())
    except FileNotFoundError:
        raise CheckpointError(f"The checkpoint {path} is damaged: it has no {MANIFEST}.") from None
    except (OSError, ValueError):
        raise CheckpointError(f"The checkpoint {path} is damaged: its {MANIFEST} cannot be read.") from None


def _flaw(manifest: Mapping[str, Any]) -> str | None:
    """Say what is wrong with a manifest, as the end of a sentence; None where nothing is."""
    for key, kind in (("run", str), ("epoch", int), ("best", bool), ("files", dict), ("tensors", dict), ("meta", dict)):
        if not isinstance(manifest.get(key), kind) or (kind is int and not _is_size(manifest[key])):
            return f"has no proper {key!r}"
    meta = manifest["meta"]
    flaw = flaw_of(meta, {key: form for key, form in _META.items() if key in meta}, "meta")
    if flaw is not None:
        return flaw
    if meta.get("epoch", manifest["epoch"]) != manifest["epoch"]:
        return f"says epoch {manifest['epoch']}, and its meta epoch {meta['epoch']}"
    files, tensors = manifest["files"], manifest["tensors"]
    for name, entry in files.items():
        if not _SHARD.match(name):
            return f"names the file {name[:80]!r}, which is none of a checkpoint's"
        if not isinstance(entry, dict) or not _is_size(entry.get("bytes")) or not isinstance(entry.get("sha256"), str):
            return f"does not give the size and the hash of {name}"
    for name, entry in tensors.items():
        if not isinstance(entry, dict) or not _is_shape(entry.get("shape")):
            return f"gives no shape of {name[:80]!r}"
        flaw = _flaw_of_shards(entry.get("shards"), entry["shape"], files)
        if flaw is not None:
            return f"gives shards of {name[:80]!r} {flaw}"
    return None


def _flaw_of_shards(shards: Any, shape: Sequence[int], files: Mapping[str, Any]) -> str | None:
    if not isinstance(shards, list) or not shards:
        return "that are none"
    for shard in shards:
        if not isinstance(shard, dict) or not (_is_shape(shard.get("shape")) and _is_shape(shard.get("offset"))):
            return "without shape and offset"
        if not isinstance(shard.get("file"), str) or shard["file"] not in files:
            return "in a file that it does not list"
        if not len(shard["shape"]) == len(shard["offset"]) == len(shape):
            return "of another number of dimensions"
        if any(o + n > full for o, n, full in zip(shard["offset"], shard["shape"], shape, strict=True)):
            return "that reach beyond it"
        if math.prod(shard["shape"]) > files[shard["file"]]["bytes"]:
            return "that are larger than their files"
    if sum(math.prod(shard["shape"]) for shard in shards) != math.prod(shape):
        return "that do not cover it"
    # of equal volume, they cover the tensor exactly where no two of them overlap
    if any(_overlap(one, other) for one, other in combinations(shards, 2)):
        return "that overlap"
    return None


def _overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    sides = zip(one["offset"], one["shape"], other["offset"], other["shape"], strict=True)
    return all(max(a, b) < min(a + n, b + m) for a, n, b, m in sides)


def _is_size(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 62


def _is_shape(shape: object) -> bool:
    return isinstance(shape, list) and len(shape) <= _DIMENSIONS and all(map(_is_size, shape))
