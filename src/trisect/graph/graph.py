"""`Graph`: one static graph with features, labels and splits, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from trisect.data.formats.hetero import has_relations, static_from_hetero
from trisect.data.formats.npy import check_record
from trisect.data.formats.objects import static_from_dgl, static_from_networkx, static_from_scipy
from trisect.data.formats.pyg import static_from_pyg
from trisect.data.generators.generate import generate
from trisect.data.ingest.ingest import Table, read_table
from trisect.data.ingest.loops import warn_of_loops
from trisect.data.records import Names, StaticRecord, VertexType
from trisect.errors import DataError
from trisect.graph.adjacency import Adjacency
from trisect.graph.assemble import Edges, assemble
from trisect.graph.build import Normalisation, adjacency_from_edges, normalise
from trisect.graph.check import (
    check_class_names,
    check_flag,
    check_names,
    feature_array,
    index_array,
    label_array,
    order_array,
    positions_of,
    row_weights,
    rows_of,
    split_masks,
)
from trisect.graph.edge_features import (
    Merge,
    edge_feature_array,
    merge_parallel,
    permuted_features,
    with_entry_features,
)
from trisect.graph.relations import find_relation, related_edges, relation_of


@dataclass(frozen=True, eq=False)
class Graph:
    """One graph with its features, labels and splits.

    Attributes:
        adjacency: the raw matrix [vertices, vertices], not normalised.
        x: float32 [vertices, features], or None.
        y: int64 [vertices] classes (-1: none), float32 [vertices] or [vertices, outputs] (NaN: none), or None.
        splits: `train`, `val`, `test` → bool [vertices].
        names: the user's vertex ids, in the user's order, or None where they are 0..n-1.
        order: int64 [vertices]: the user's vertex at each position, or None where they are the same.
        edge_x: float32 [entries of adjacency, features], in the order of its entries, or None.
        class_names: what class k of y is called, or None where classes are numbers.
        y_weight: float32 [vertices], how much each vertex counts in the loss, or None.
        relations: what the relations of edges are called; then edge_x are the weights of an entry in each of them.
        vertex_types: where there are several types of vertices, each in the user's order; x has their form (see
            `trisect.nn.HeteroLinearLayer`).
    """

    adjacency: Adjacency
    x: Tensor | None = None
    y: Tensor | None = None
    splits: dict[str, Tensor] = field(default_factory=dict)
    names: Names | None = None
    order: Tensor | None = None
    edge_x: Tensor | None = None
    class_names: Sequence[str] | None = field(default=None, compare=False)
    y_weight: Tensor | None = None
    relations: tuple[str, ...] = ()
    vertex_types: tuple[VertexType, ...] = ()

    @classmethod
    def from_edges(
        cls,
        src: Any,
        dst: Any,
        weight: Any = None,
        *,
        vertices: int | None = None,
        undirected: bool = False,
        x: Any = None,
        y: Any = None,
        splits: Mapping[str, Any] | None = None,
        split: int = 0,
        names: Names | None = None,
        edge_x: Any = None,
        merge: Merge = "mean",
        class_names: Sequence[str] | None = None,
        y_weight: Any = None,
        relation: Any = None,
        relations: Sequence[str] | None = None,
        vertex_types: Sequence[VertexType] = (),
    ) -> Graph:
        """From edges src → dst and arrays of numpy or torch, all checked.

        Args:
            vertices: by default the number of rows of x or y, or the largest id plus one.
            undirected: each edge stands for both directions.
            splits: `train`, `val`, `test` → bool [vertices] or [vertices, splits].
            split: which of several splits.
            edge_x: [edges, features], the features of edges.
            merge: what the features of parallel edges become: their `sum`, their `mean`, those of the `last`, or how
                many edges there are (`count`). Weights of parallel edges are added up.
            class_names: what class 0, 1, … of y is called, for the report.
            y_weight: [vertices], how much each vertex counts in the loss.
            relation: [edges], of each edge the name of its relation, or its number.
            relations: what relation 0, 1, … is called; of names, which there are and in which order.
            vertex_types: see the attributes.
        """
        for array in (x, y):
            if vertices is None and array is not None:
                vertices = rows_of(array)
        undirected = check_flag("undirected", undirected)
        adjacency = adjacency_from_edges(src, dst, weight, vertices, undirected=undirected)
        count = adjacency.rows
        features = None if x is None else feature_array("x", x, (count,))
        labels = None if y is None else label_array("y", y)
        if labels is not None and (labels.dim() not in (1, 2) or labels.shape[0] != count):
            raise DataError(f"y has the shape {list(labels.shape)} for {count} vertices; give one label a vertex.")
        masks = split_masks({} if splits is None else splits, count, split, _labelled(labels))
        check_names(names, count)
        check_class_names("class_names", class_names, labels)
        attributes: Tensor | None = None
        called: tuple[str, ...] = ()
        if relation is not None:
            edge_x, called = related_edges(relation, relations, rows_of(src) or 0, weight, edge_x)
            merge = "relations"
        if edge_x is not None:
            source, target = index_array("src", src), index_array("dst", dst)
            attributes = edge_feature_array(edge_x, source.numel())
            attributes = merge_parallel(attributes, source, target, count, both=undirected, merge=merge)
        more: dict[str, Any] = {"class_names": class_names, "relations": called, "vertex_types": tuple(vertex_types)}
        more["y_weight"] = None if y_weight is None else row_weights(y_weight, count)
        return cls(adjacency, features, labels, masks, names, edge_x=attributes, **more)

    @classmethod
    def from_record(cls, record: StaticRecord, split: int = 0, merge: Merge = "mean") -> Graph:
        """From what a reader or a generator hands on; `split` picks one of several; `merge` is that of `from_edges`."""
        check_record(record)
        return cls.from_edges(
            record.src,
            record.dst,
            record.weight,
            vertices=record.vertices,
            undirected=record.undirected,
            x=record.x,
            y=record.y,
            splits=record.splits,
            split=split,
            names=record.names,
            edge_x=record.edge_x,
            merge=merge,
            class_names=record.class_names,
            y_weight=record.y_weight,
            relation=record.relation,
            relations=record.relations,
            vertex_types=record.vertex_types,
        )

    @classmethod
    def from_table(
        cls, frame: Any, src: str | None = None, dst: str | None = None, *, merge: Merge = "mean", **columns: Any
    ) -> Graph:
        """From a table of edges: of pandas, polars or Arrow, a mapping of names to arrays, or a file.

        Args:
            src: the column of the sources' ids; by default the first.
            dst: the column of the targets' ids; by default the second.
            merge: as in `from_edges`.
            **columns: `weight`, `edge_features`, `vertices` (a table of vertices), `id`, `label_column`, `features`,
                `on_missing`, `undirected` and the other fields of `trisect.data.ingest.ingest.Table`.
        """
        record = read_table(frame, Table.of(src=src, dst=dst, **columns))
        if not isinstance(record, StaticRecord):
            raise DataError(f"time is {columns.get('time')!r}, and a graph has no times; use Timeline.from_table.")
        if "self_loops" not in columns:
            warn_of_loops(record.meta["notes"])
        return cls.from_record(record, merge=merge)

    @classmethod
    def from_pyg(cls, data: Any, split: int = 0, merge: Merge = "mean", *, target: str | None = None) -> Graph:
        """From a PyG `Data` (x, edge_index or adj_t, edge_weight, edge_attr, y, y_weight, train_mask, …), or a
        `HeteroData`.

        Args:
            target: of a `HeteroData`, the type of vertices whose y and masks are read; see
                `data.formats.hetero.static_from_hetero`, which says how types are numbered.
        """
        if has_relations(data):
            return cls.from_record(static_from_hetero(data, target), split, merge)
        if target is not None:
            raise DataError(
                f"target is {target!r}, but a {type(data).__name__} has one type of vertices; leave it out."
            )
        return cls.from_record(static_from_pyg(data), split, merge)

    @classmethod
    def from_scipy(cls, matrix: Any, **more: Any) -> Graph:
        """From a sparse matrix of SciPy, whose entry (i, j) is the edge i → j; `more` as in `from_edges`."""
        record = static_from_scipy(matrix)
        return cls.from_edges(record.src, record.dst, record.weight, **{"vertices": record.vertices, **more})

    @classmethod
    def from_networkx(cls, graph: Any, **attributes: Any) -> Graph:
        """From a graph of NetworkX; `weight`, `x` and `y` name attributes (see `data.objects.static_from_networkx`)."""
        return cls.from_record(static_from_networkx(graph, **attributes))

    @classmethod
    def from_dgl(cls, graph: Any, split: int = 0, merge: Merge = "mean") -> Graph:
        """From a homogeneous graph of DGL (see `data.objects.static_from_dgl`)."""
        return cls.from_record(static_from_dgl(graph), split, merge)

    @classmethod
    def generate(cls, name: str, **options: Any) -> Graph:
        """From a generator of static graphs (`community`, `rmat`, `citation`); see `data.generators`."""
        record = generate(name, **options)
        if not isinstance(record, StaticRecord):
            raise DataError(f"The generator {name!r} makes timelines; use Timeline.generate.")
        return cls.from_record(record)

    @property
    def vertices(self) -> int:
        """Give the number of vertices."""
        return self.adjacency.rows

    @property
    def edges(self) -> int:
        """How many directed edges there are, duplicates counted once."""
        return self.adjacency.entries

    @property
    def edge_channels(self) -> int:
        """Give the number of features of an edge; 0 where there are none."""
        return 0 if self.edge_x is None else self.edge_x.shape[1]

    def relation(self, name: str | int | tuple[str, ...]) -> Adjacency:
        """Return the matrix of one relation, [vertices, vertices]; its values are the weights of edges."""
        union = self.adjacency.with_features(self.edge_x if self.relations else None)
        return relation_of(union, find_relation(name, self.relations))

    @property
    def device(self) -> torch.device:
        """Give the device on which the arrays live."""
        return self.adjacency.device

    def features(self) -> Tensor:
        """x; without it log(1 + in-degree) and log(1 + out-degree), float32 [vertices, 2]."""
        if self.x is not None:
            return self.x
        turned = self.adjacency.transpose()
        degrees = [self.adjacency.ends - self.adjacency.starts, turned.ends - turned.starts]
        return torch.log1p(torch.stack(degrees, 1).float())

    def normalised(self, kind: Normalisation, *, self_loops: bool, dtype: torch.dtype = torch.float32) -> Adjacency:
        """The matrix that a model reads (see `graph.build.normalise`), with its edges' features."""
        raw = self.adjacency.to(dtype)
        if raw.values is None and dtype != torch.float32 and kind != "none":
            raw = raw.with_values(torch.ones(raw.indices.numel(), dtype=dtype, device=raw.device))
        prepared = normalise(raw, kind, self_loops)
        if self.edge_x is None:
            return prepared
        if prepared.entries == raw.entries:  # no loop was added
            return prepared.with_features(self.edge_x.to(dtype))
        row, column = raw.coordinates()
        merge: Merge = "relations" if self.relations else "last"
        return with_entry_features(prepared, self.edge_x, column, row, merge, dtype=dtype)

    def reordered(self, order: Tensor) -> Graph:
        """The same graph with its vertices in another order: position i holds the vertex that is now at order[i]."""
        order = order_array(order, self.vertices).to(self.device)
        return replace(
            self,
            adjacency=permuted(self.adjacency, order),
            x=None if self.x is None else self.x[order],
            y=None if self.y is None else self.y[order],
            y_weight=None if self.y_weight is None else self.y_weight[order],
            splits={name: mask[order] for name, mask in self.splits.items()},
            order=order if self.order is None else self.order[order],
            edge_x=None if self.edge_x is None else permuted_features(self.edge_x, self.adjacency, order),
        )

    def to_user_order(self, rows: Tensor, dim: int = 0) -> Tensor:
        """Rows in this graph's order → rows in the user's order."""
        return rows if self.order is None else rows.index_select(dim, positions_of(self.order))

    def to(self, device: torch.device | str) -> Graph:
        """The same graph on another device."""
        if torch.device(device) == self.device:
            return self
        return replace(
            self,
            adjacency=self.adjacency.to(device),
            x=None if self.x is None else self.x.to(device),
            y=None if self.y is None else self.y.to(device),
            y_weight=None if self.y_weight is None else self.y_weight.to(device),
            splits={name: mask.to(device) for name, mask in self.splits.items()},
            order=None if self.order is None else self.order.to(device),
            edge_x=None if self.edge_x is None else self.edge_x.to(device),
        )

    def __repr__(self) -> str:
        width = None if self.x is None else self.x.shape[1]
        kinds = f", relations={list(self.relations)}" if self.relations else ""
        text = f"{self.vertices} vertices, {self.edges} edges, features={width}, splits={sorted(self.splits)}{kinds}"
        return f"Graph({text})"


def permuted(adjacency: Adjacency, order: Tensor) -> Adjacency:
    """Rows and columns of a square matrix in another order (int64 [rows], checked by the caller)."""
    position = positions_of(order).to(torch.int32)
    matrix = adjacency.compact()
    target = torch.repeat_interleave(position, matrix.ends - matrix.starts)
    edges = Edges(position[matrix.indices], target, matrix.values)
    return Adjacency.from_csr(*assemble(edges, matrix.rows, matrix.columns, matrix.dtype), matrix.columns).vouched()


def _labelled(y: Tensor | None) -> Tensor | None:
    if y is None:
        return None
    labelled = ~y.isnan() if y.is_floating_point() else y >= 0
    return labelled if labelled.dim() == 1 else labelled.any(1)
