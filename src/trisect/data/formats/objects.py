"""Graphs of SciPy, NetworkX and DGL, by the methods that they have: none of these is imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from trisect.data.formats.pyg import coordinates, dense, mask_of, numbers_in
from trisect.data.records import Array, Names, StaticRecord, TextNames
from trisect.errors import DataError


def static_from_scipy(matrix: Any) -> StaticRecord:
    """Read a square sparse matrix; the entry (i, j) is the edge i → j, and its value the weight, unless all are 1."""
    if not hasattr(matrix, "tocoo"):
        raise DataError(f"the matrix is a {type(matrix).__name__}; give a sparse matrix of SciPy.")
    source, target, values = coordinates(matrix)
    weight = None if values is None or bool((values == 1).all()) else values
    return StaticRecord(int(matrix.shape[0]), source, target, weight, meta={"source": "SciPy"})


def static_from_networkx(
    graph: Any, *, weight: str | None = "weight", x: str | Sequence[str] | None = None, y: str | None = None
) -> StaticRecord:
    """Read a `Graph`, `DiGraph` or one of their multigraphs; vertices keep its order, and their names.

    Args:
        weight: the attribute of edges that is their weight (1 where an edge lacks it; none where all lack it).
        x: one attribute of vertices or several, numbers or lists of numbers, that are their features.
        y: the attribute of vertices that is their label; text becomes classes in alphabetical order, None has none.
    """
    if not all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed")):
        raise DataError(f"the graph is a {type(graph).__name__}; give a Graph or DiGraph of NetworkX.")
    nodes = list(graph.nodes(data=True))
    number = {node: k for k, (node, _) in enumerate(nodes)}
    edges = list(graph.edges(data=True))
    weights = None
    if weight is not None and any(weight in data for _, _, data in edges):
        weights = np.array([_edge_number(a, b, weight, data.get(weight, 1.0)) for a, b, data in edges], np.float32)
    columns = [x] if isinstance(x, str) else list(x or [])
    features = None
    if columns:
        features = np.concatenate([_node_column(nodes, name) for name in columns], axis=1)
    labels, meta = None, {"source": "NetworkX"}
    if y is not None:
        labels, classes = _node_labels(nodes, y)
        if classes:
            meta["classes"] = classes  # type: ignore[assignment]
    return StaticRecord(
        vertices=len(nodes),
        src=np.array([number[a] for a, _, _ in edges], np.int32),
        dst=np.array([number[b] for _, b, _ in edges], np.int32),
        weight=weights,
        undirected=not graph.is_directed(),
        x=features,
        y=labels,
        names=_names([node for node, _ in nodes]),
        meta=meta,
    )


def static_from_dgl(graph: Any) -> StaticRecord:
    """Read a homogeneous `DGLGraph`: `feat` or `x`, `label` or `y` and masks of `ndata`; `weight`, `w` or
    `edge_weight`, and `feat` or `edge_attr`, of `edata`.
    """
    if len(getattr(graph, "ntypes", ["_N"])) > 1 or len(getattr(graph, "etypes", ["_E"])) > 1:
        raise DataError("the DGLGraph has several types of vertices or edges; give a homogeneous one.")
    source, target = (np.asarray(dense(ends)) for ends in graph.edges()[:2])
    y = dense(_first(graph.ndata, "label", "y"))
    weight = dense(_first(graph.edata, "weight", "w", "edge_weight"))
    x, edge_x = dense(_first(graph.ndata, "feat", "x")), dense(_first(graph.edata, "feat", "edge_attr"))
    masks = {name: dense(_first(graph.ndata, f"{name}_mask")) for name in ("train", "val", "test")}
    return StaticRecord(
        vertices=int(graph.num_nodes()),
        src=source,
        dst=target,
        weight=None if weight is None else _by_edge("weight", weight, len(source)).reshape(len(source)),
        x=None if x is None else numbers_in("feat", x),
        y=None if y is None else y.astype(np.int64) if y.dtype.kind in "iub" else numbers_in("label", y),
        splits={name: mask_of(name, mask) for name, mask in masks.items() if mask is not None},
        edge_x=None if edge_x is None else _by_edge("feat", edge_x, len(source)).reshape(len(source), -1),
        meta={"source": "DGL"},
    )


def _by_edge(name: str, values: Array, edges: int) -> Array:
    if not values.ndim or len(values) != edges or (name == "weight" and values.size != edges):
        raise DataError(f"{name} of edata has the shape {list(values.shape)} for {edges} edges; give one row an edge.")
    return numbers_in(name, values)


def _first(data: Any, *names: str) -> Any:
    return next((data[name] for name in names if name in data), None)


def _names(nodes: list[Any]) -> Names | None:
    if nodes == list(range(len(nodes))):
        return None
    whole = all(isinstance(node, (int, np.integer)) and not isinstance(node, bool) for node in nodes)
    if whole and all(-(2**63) <= node < 2**63 for node in nodes):
        return np.array(nodes, np.int64)
    texts = [str(node) for node in nodes]
    if len(set(texts)) < len(texts):
        twice = next(text for text, count in Counter(texts).items() if count > 1)
        raise DataError(f"two vertices of the graph are called {twice!r} as text; rename one (networkx.relabel_nodes).")
    return TextNames.of(texts)


def _edge_number(source: Any, target: Any, name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"weight is {name!r}, which is {value!r} for the edge ({source!r}, {target!r}); give numbers."
        ) from error


def _node_column(nodes: list[tuple[Any, Any]], name: str) -> Array:
    """Give an attribute of all nodes as float32 [vertices, numbers]."""
    lacking = next((node for node, data in nodes if name not in data), None)
    if lacking is not None:
        raise DataError(f"x is {name!r}, which the vertex {lacking!r} does not have; give it to all vertices.")
    try:
        values = np.array([data[name] for _, data in nodes], np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"x is {name!r}, which is not a number or a list of as many for all vertices.") from error
    return values.reshape(len(nodes), -1)


def _node_labels(nodes: list[tuple[Any, Any]], name: str) -> tuple[Array, list[str]]:
    values = [data.get(name) for _, data in nodes]
    present = [value for value in values if value is not None]
    if not present:
        raise DataError(f"y is {name!r}, which no vertex has; name an attribute of the vertices.")
    if any(isinstance(value, str) for value in present):
        classes = sorted({str(value) for value in present})
        position = {label: k for k, label in enumerate(classes)}
        return np.array([-1 if value is None else position[str(value)] for value in values], np.int64), classes
    if all(isinstance(value, (bool, int, np.integer)) for value in present):
        return np.array([-1 if value is None else int(value) for value in values], np.int64), []
    try:
        return np.array([np.nan if value is None else float(value) for value in values], np.float32), []
    except (TypeError, ValueError) as error:
        raise DataError(f"y is {name!r}, which is no number or text for all vertices ({error}).") from error
