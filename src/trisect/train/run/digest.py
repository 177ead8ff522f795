"""A digest of the data that a run was trained on, so that it is not continued on others without a word."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trisect.errors import CheckpointError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline

FILE = "data.sha256"
KEY = "data"


def digest_of(data: Graph | Timeline) -> str:
    """Give the hash of all arrays of the data that training reads, with their types and shapes."""
    return digest_arrays(_arrays(data))


def digest_arrays(arrays: Mapping[str, Tensor | None]) -> str:
    """Give the hash of arrays and their names, with their types and shapes."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {None if array is None else (array.dtype, tuple(array.shape))};".encode())
        if array is not None and array.numel():
            digest.update(array.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def require_same_data(meta: Mapping[str, Any], digest: str | None, where: Path) -> None:
    """Raise where a checkpoint was made on other data; checkpoints of earlier releases do not say."""
    before = meta.get(KEY)
    if before is not None and digest is not None and before != digest:
        raise CheckpointError(
            f"The data are not those that {where} was trained on (their digests differ); give it those, or start a new"
            " run in another --out."
        )


def _arrays(data: Graph | Timeline) -> dict[str, Tensor | None]:
    named: dict[str, Tensor | None] = {"x": data.x, "y": data.y, "edge_x": data.edge_x}
    if data.y_weight is not None:  # without them the digest is that of releases that did not know them
        named["y_weight"] = data.y_weight
    named.update({f"split {name}": mask for name, mask in data.splits.items()})
    if isinstance(data, Timeline):
        names = ("src", "dst", "offsets", "weight", "edge_y")
        return {**named, **{name: getattr(data, name) for name in names}}
    matrix = data.adjacency.compact()
    return {**named, "ends": matrix.ends, "indices": matrix.indices, "values": matrix.values}
