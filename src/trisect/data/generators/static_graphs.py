"""Generators of one graph: `community`, `rmat`, `citation`."""

from __future__ import annotations

import numpy as np

from trisect.data.records import Array, StaticRecord
from trisect.data.splits import random_splits
from trisect.errors import DataError

_BATCH = 1 << 22


def require(condition: bool, message: str) -> None:
    """Raise the message as a DataError unless the condition holds."""
    if not condition:
        raise DataError(message)


def check_sizes(**sizes: float) -> None:
    """Every size must be at least 1 (`features=0` and the like are checked by those that allow them)."""
    for name, value in sizes.items():
        require(value >= 1, f"{name} is {value}; it must be at least 1.")


def check_fractions(**fractions: float) -> None:
    """Every fraction must lie between 0 and 1."""
    for name, value in fractions.items():
        require(0.0 <= value <= 1.0, f"{name} is {value}; it must lie between 0 and 1.")


def skewed_classes(rng: np.random.Generator, vertices: int, classes: int, skew: float) -> Array:
    """int64 [vertices]: classes of sizes ∝ rank^-skew, each with at least one vertex, in random order."""
    require(classes <= vertices, f"classes is {classes}; it must be at most the number of vertices, {vertices}.")
    weight = np.arange(1, classes + 1, dtype=np.float64) ** -skew
    edges = np.round(np.cumsum(weight) / weight.sum() * (vertices - classes)).astype(np.int64)
    counts = np.diff(edges, prepend=0) + 1
    return rng.permutation(np.repeat(np.arange(classes), counts))


def members(label: Array, classes: int) -> tuple[Array, Array, Array]:
    """Vertices listed class by class (in ascending order), where each class starts, how many it has."""
    order = np.argsort(label, kind="stable").astype(np.int32)
    counts = np.bincount(label, minlength=classes)
    return order, np.cumsum(counts) - counts, counts


def distinct_edges(src: Array, dst: Array, vertices: int, undirected: bool) -> tuple[Array, Array]:
    """Give each edge once, sorted; no self-loops; for undirected graphs the smaller vertex first."""
    if undirected:
        src, dst = np.minimum(src, dst), np.maximum(src, dst)
    keep = src != dst
    key = np.unique(src[keep].astype(np.int64) * vertices + dst[keep])
    return (key // vertices).astype(np.int32), (key % vertices).astype(np.int32)


def class_features(
    rng: np.random.Generator, label: Array, classes: int, features: int, signal: float, common: float = 0.0
) -> Array:
    """float32 [vertices, features]: signal · the class centre + common · one vector for all + unit noise."""
    centres = rng.standard_normal((classes, features), dtype=np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    x = rng.standard_normal((len(label), features), dtype=np.float32)
    centres *= np.float32(signal)
    for start in range(0, len(label), rows := max(1, _BATCH // max(1, features))):
        x[start : start + rows] += centres[label[start : start + rows]]
    if common:
        shared = rng.standard_normal(features, dtype=np.float32)
        x += np.float32(common) * shared / np.float32(np.linalg.norm(shared))
    return x


def community(
    vertices: int = 5000,
    degree: float = 10.0,
    classes: int = 10,
    features: int = 64,
    within: float = 0.7,
    signal: float = 0.5,
    skew: float = 0.5,
    per_class: int = 20,
    seed: int = 0,
) -> StaticRecord:
    """Communities of skewed sizes whose features say little about one vertex and much about a neighbourhood.

    A planted partition: a fraction `within` of the edges stays inside a community. The label is the community; the
    features are its centre times `signal` plus noise of variance 1 in each of the `features` dimensions.

    Args:
        degree: neighbours of a vertex, on average.
        within: the fraction of edges that stay inside a community.
        per_class: training vertices of each class.
    """
    check_sizes(vertices=vertices, degree=degree, classes=classes, features=features, per_class=per_class)
    check_fractions(within=within)
    rng = np.random.default_rng([seed, 1])
    label = skewed_classes(rng, vertices, classes, skew)
    order, starts, counts = members(label, classes)
    wanted = round(vertices * degree / 2)
    # each vertex gets equally many edges, so that few vertices are left alone
    src = np.resize(rng.permutation(vertices).astype(np.int32), wanted)
    inside = rng.random(wanted) < within
    own = label[src]
    near = order[starts[own] + (rng.random(wanted) * counts[own]).astype(np.int64)]
    dst = np.where(inside, near, rng.integers(0, vertices, wanted, dtype=np.int32))
    src, dst = distinct_edges(src, dst, vertices, undirected=True)
    return StaticRecord(
        vertices=vertices,
        src=src,
        dst=dst,
        undirected=True,
        x=class_features(rng, label, classes, features, signal),
        y=label,
        splits=random_splits(label, seed, (0.6, 0.2), per_class),
        meta={"task": "node-classification"},
    )


def rmat(
    vertices: int = 100_000,
    degree: float = 20.0,
    features: int = 128,
    classes: int = 16,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    shuffle: bool = True,
    seed: int = 0,
) -> StaticRecord:
    """A recursive-matrix graph (R-MAT): directed, skewed degrees, duplicates kept; random features and labels.

    Args:
        degree: edges per vertex.
        a, b, c: the fractions of edges in three quadrants; the fourth has the rest.
        shuffle: renumber the vertices at random, as Graph500 does; otherwise low ids have the high degrees.
    """
    check_sizes(vertices=vertices, degree=degree)
    check_fractions(a=a, b=b, c=c)
    require(a + b + c <= 1.0, f"a + b + c is {a + b + c}; the three fractions must add up to at most 1.")
    rng = np.random.default_rng([seed, 2])
    edges = round(vertices * degree)
    levels = max(1, int(np.ceil(np.log2(vertices))))
    src, dst = np.empty(edges, np.int32), np.empty(edges, np.int32)
    for start in range(0, edges, _BATCH):
        count = min(_BATCH, edges - start)
        row, column = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for _ in range(levels):
            u = rng.random(count, dtype=np.float32)
            down = u >= a + b
            right = ((u >= a) & (u < a + b)) | (u >= a + b + c)
            row, column = row * 2 + down, column * 2 + right
        src[start : start + count] = row * vertices >> levels  # scaled down where vertices is no power of two
        dst[start : start + count] = column * vertices >> levels
    if shuffle:
        renumber = rng.permutation(vertices).astype(np.int32)
        src, dst = renumber[src], renumber[dst]
    label = rng.integers(0, classes, vertices) if classes else None
    return StaticRecord(
        vertices=vertices,
        src=src,
        dst=dst,
        x=rng.standard_normal((vertices, features), dtype=np.float32) if features else None,
        y=label,
        splits={} if label is None else random_splits(label, seed),
        meta={"task": "node-classification"},
    )


def citation(
    vertices: int = 20_000,
    degree: float = 7.0,
    classes: int = 40,
    features: int = 128,
    within: float = 0.65,
    signal: float = 2.0,
    common: float = 5.0,
    skew: float = 1.0,
    seed: int = 0,
) -> StaticRecord:
    """A growing citation graph: each vertex cites earlier ones, mostly of its class, the much cited the most.

    Classes are skewed (sizes ∝ rank^-skew), features have a large component that all vertices share (`common`), and
    the splits follow age (the oldest 54 % train, the next 18 % validate), all as in ogbn-arxiv. An earlier vertex j is
    cited with a probability ∝ j^-1/2, which is preferential attachment in expectation (power-law in-degrees).

    Args:
        degree: citations of a vertex, on average.
        within: the fraction of citations inside a class.
        common: the size of the component of the features that all vertices share.
    """
    check_sizes(vertices=vertices, degree=degree, classes=classes, features=features)
    check_fractions(within=within)
    rng = np.random.default_rng([seed, 3])
    label = skewed_classes(rng, vertices, classes, skew)
    order, starts, counts = members(label, classes)
    rank = np.empty(vertices, np.int64)  # how many of its class came before a vertex
    rank[order] = np.arange(vertices) - np.repeat(starts, counts)
    cited = np.ceil(rng.lognormal(np.log(degree) - 0.32, 0.8, vertices)).astype(np.int64)
    src = np.repeat(np.arange(vertices, dtype=np.int32), np.minimum(cited, np.arange(vertices)))
    age = rng.random(len(src)) ** 2
    own = label[src]
    near = order[starts[own] + (age * rank[src]).astype(np.int64)]
    inside = (rng.random(len(src)) < within) & (rank[src] > 0)
    dst = np.where(inside, near, (age * src).astype(np.int32))
    src, dst = distinct_edges(src, dst, vertices, undirected=False)
    position = np.arange(vertices) / vertices
    return StaticRecord(
        vertices=vertices,
        src=src,
        dst=dst,
        undirected=True,
        x=class_features(rng, label, classes, features, signal, common),
        y=label,
        splits={"train": position < 0.54, "val": (position >= 0.54) & (position < 0.72), "test": position >= 0.72},
        meta={"task": "node-classification"},
    )
