"""Objects with several types of vertices and edges, as PyG's `HeteroData`, in one numbering of all vertices."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from trisect.data.formats.pyg import dense, edges_of, mask_of, numbers_in, target_of
from trisect.data.records import Array, StaticRecord
from trisect.data.room import require_room
from trisect.errors import DataError, unknown


def has_relations(data: Any) -> bool:
    """Whether an object has several kinds of vertices or edges, as PyG's `HeteroData`."""
    return hasattr(data, "edge_types") and hasattr(data, "node_types")


def static_from_hetero(data: Any, target: str | None = None) -> StaticRecord:
    """Read a `HeteroData` object: of each type of vertices `x`, of one of them `y` and masks, of each type of edges
    `edge_index` and `edge_weight`.

    Vertices are numbered type after type, in the order of `data.node_types`; `meta["vertex_types"]` has their names,
    counts and widths. Features of types are as wide as the widest, zeros behind those of a narrower one. With several
    types, one column for each follows, which is 1 for vertices of that type. `trisect.nn.HeteroLinearLayer` reads this
    form, by a weight for each type.

    An edge type ("author", "writes", "paper") becomes the relation `author__writes__paper`.

    Args:
        target: the type whose `y` and masks are read; by default the only one that has `y`.
    """
    types = [str(name) for name in data.node_types]
    if not types:
        raise DataError("the HeteroData has no types of vertices; give at least one.")
    chosen = _target_type(data, types, target)
    counts = [_count(data, name) for name in types]
    firsts = dict(zip(types, np.cumsum([0, *counts[:-1]]).tolist(), strict=True))
    vertices = int(sum(counts))
    xs = [dense(_get(data[name], "x")) for name in types]
    features = [None if x is None else numbers_in(f"x of {name!r}", x) for name, x in zip(types, xs, strict=True)]
    widths = [_width(name, x, count) for name, x, count in zip(types, features, counts, strict=True)]
    src, dst, weight, relation = _edges(data, firsts, dict(zip(types, counts, strict=True)))
    y, splits = None, dict[str, Array]()
    if chosen is not None:
        rows = slice(firsts[chosen], firsts[chosen] + counts[types.index(chosen)])
        y, splits = _targets(data[chosen], chosen, rows, vertices)
    described = [
        {"name": name, "vertices": count, "features": width}
        for name, count, width in zip(types, counts, widths, strict=True)
    ]
    return StaticRecord(
        vertices=vertices,
        src=src,
        dst=dst,
        weight=weight,
        x=joined_features(features, widths, counts),
        y=y,
        splits=splits,
        meta={"source": "PyG", "relations": ["__".join(kind) for kind in data.edge_types], "vertex_types": described},
        relation=relation,
    )


def joined_features(features: list[Array | None], widths: list[int], counts: list[int]) -> Array | None:
    """float32 [vertices, widest + types]: the features of each type, zeros, and the column of the type; one type alone
    has its features as they are."""
    if len(features) == 1:
        return features[0]
    widest, kinds = max(widths), len(features)
    require_room(4.0 * sum(counts) * (widest + kinds), f"features of {sum(counts):,} vertices, {widest:,} at most")
    x = np.zeros((sum(counts), widest + kinds), np.float32)
    first = 0
    for number, (own, width, count) in enumerate(zip(features, widths, counts, strict=True)):
        if own is not None:
            x[first : first + count, :width] = own
        x[first : first + count, widest + number] = 1.0
        first += count
    return x


def _get(store: Any, name: str) -> Any:
    return getattr(store, name, None)


def _count(data: Any, name: str) -> int:
    count = data[name].num_nodes
    if count is None:
        raise DataError(f"vertices of type {name!r} have no x and no num_nodes; set data[{name!r}].num_nodes.")
    return int(count)


def _target_type(data: Any, types: list[str], target: str | None) -> str | None:
    labelled = [name for name in types if _get(data[name], "y") is not None]
    if target is not None and target not in types:
        raise DataError(unknown("type of vertices", target, types))
    if target is not None and target not in labelled:
        others = f"those of {', '.join(labelled)} have" if labelled else "no type has"
        raise DataError(f"vertices of type {target!r} have no y; {others}.")
    if target is None and len(labelled) > 1:
        raise DataError(f"vertices of {len(labelled)} types have y ({', '.join(labelled)}); name one with target.")
    return target if target is not None else labelled[0] if labelled else None


def _width(name: str, x: Array | None, count: int) -> int:
    if x is None:
        return 0
    if x.ndim != 2 or len(x) != count:
        raise DataError(f"x of {name!r} has the shape {list(x.shape)} for {count} vertices; give a row for each.")
    return int(x.shape[1])


def _edges(data: Any, firsts: dict[str, int], counts: dict[str, int]) -> tuple[Array, Array, Array | None, Array]:
    parts: list[tuple[Array, Array, Array | None]] = []
    for kind in data.edge_types:
        store, (source, name, target) = data[kind], kind
        src, dst, weight = edges_of(store)
        for end, ids in ((source, src), (target, dst)):
            if end not in counts:
                raise DataError(f"edges {kind} are of vertices {end!r}, and there is no such type.")
            if len(ids) and int(ids.max()) >= counts[end]:
                raise DataError(f"edges {kind} hold {end} {int(ids.max())}, and there are {counts[end]}.")
        if _get(store, "edge_attr") is not None:
            warnings.warn(f"edge_attr of {name!r} is not read, since edges have relations.", stacklevel=5)
        parts.append((src.astype(np.int64) + firsts[source], dst.astype(np.int64) + firsts[target], weight))
    if not parts:
        raise DataError("the HeteroData has no edges; give edge_index of at least one type.")
    lengths = [len(src) for src, _, _ in parts]
    weight = None
    if any(own is not None for _, _, own in parts):
        weight = np.concatenate([np.ones(len(src), np.float32) if own is None else own for src, _, own in parts])
    small = np.int32 if sum(counts.values()) < 2**31 else np.int64
    src, dst = (np.concatenate([part[side] for part in parts]).astype(small) for side in (0, 1))
    return src, dst, weight, np.repeat(np.arange(len(parts), dtype=np.int32), lengths)


def _targets(store: Any, name: str, rows: slice, vertices: int) -> tuple[Array, dict[str, Array]]:
    own = target_of(store["y"])
    if own is None or len(own) != rows.stop - rows.start:
        count = 0 if own is None else len(own)
        raise DataError(f"y of {name!r} has {count} rows for {rows.stop - rows.start} vertices; give one each.")
    y = np.full((vertices, *own.shape[1:]), -1 if own.dtype.kind == "i" else np.nan, own.dtype)
    y[rows] = own
    splits = {}
    for split in ("train", "val", "test"):
        mask = dense(_get(store, f"{split}_mask"))
        if mask is not None:
            given = mask_of(split, mask)
            splits[split] = np.zeros((vertices, *given.shape[1:]), bool)
            splits[split][rows] = given
    return y, splits
