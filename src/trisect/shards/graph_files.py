"""A static graph cut into shards on disk, so that each rank reads its own and nothing else.

One process cuts; the ranks map the arrays of their part. A folder holds `cut.json`, the labels of all vertices (small),
and for each part its block of the adjacency, its features and its halo lists. Rows stand in partition order everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.graph.build import MatrixForm, normalise, row_sums
from trisect.graph.graph import Graph
from trisect.layout import Layout
from trisect.ops.spmm.aggregate import aggregate
from trisect.partition import PartGraph, cut_graph, part_graph_of, quality
from trisect.partition.order import choose_order
from trisect.partition.partition import Partition
from trisect.settings.writing import to_json
from trisect.shards.arrays import load_array, save_array
from trisect.shards.timeline_files import TimelineCut, is_timeline_cut, read_timeline_cut
from trisect.views import catalogue

_META, _FEATURES, _AGGREGATED, _SUMS = "cut.json", "x.npy", "aggregated.npy", "sums.npy"


@dataclass(frozen=True, eq=False)
class Cut:
    """What all ranks know of a cut graph.

    Attributes:
        starts: of the partition's chunks.
        order: the user's vertex at each position.
        y, y_weight, splits: labels, their weights and masks of all vertices, in partition order.
        features: their number.
        remote: rows that each part reads from others.
        symmetric: whether the matrix is its own transpose.
        quality: of the parts, as the summary shows it.
        spatial: by which exchange rows cross parts; where that sums up whole columns (`by_columns`),
            parts are equal in size, and the full matrix is on disk.
        edge_channels: how many features an edge has that layers read.
        relations: what the relations of edges are called, whose weights these features are.
    """

    folder: Path
    parts: int
    chunks: int
    starts: tuple[int, ...]
    order: Tensor
    y: Tensor | None
    splits: dict[str, Tensor]
    features: int
    remote: tuple[int, ...]
    symmetric: bool
    quality: dict[str, Any]
    spatial: str = "auto"
    edge_channels: int = 0
    y_weight: Tensor | None = None
    relations: tuple[str, ...] = ()

    @property
    def by_columns(self) -> bool:
        """Say whether a rank sums up neighbours for all rows, with the full matrix."""
        return catalogue.by_columns(self.spatial)

    @property
    def vertices(self) -> int:
        """Give the number of vertices."""
        return self.order.numel()

    def labels(self) -> Graph:
        """A graph with the labels alone, to bind a task to."""
        nothing = torch.zeros(1, dtype=torch.int64).expand(self.vertices)
        empty = Adjacency(nothing, nothing, torch.zeros(0, dtype=torch.int32), None, self.vertices)
        return Graph(empty, None, self.y, self.splits, None, self.order, y_weight=self.y_weight)

    @property
    def chunk_rows(self) -> list[list[int]]:
        """Of each part, where its chunks begin and the last ends, counted from its first row."""
        bounds = [self.starts[part * self.chunks : (part + 1) * self.chunks + 1] for part in range(self.parts)]
        return [[start - starts[0] for start in starts] for starts in bounds]

    def rows(self, part: int) -> slice:
        """The positions of a part."""
        return slice(self.starts[part * self.chunks], self.starts[(part + 1) * self.chunks])


def write_graph_shards(
    graph: Graph,
    layout: Layout,
    form: MatrixForm,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    reorder: bool = True,
    choose: Callable[[Sequence[int], int], str] = lambda rows, remote: "halo",
) -> None:
    """Cut the graph into layout.vertex parts of layout.chunks chunks each, and write them.

    Args:
        form: how the matrix is prepared.
        choose: for `layout.spatial: auto`, names an exchange from the rows of each part and the rows that all parts
            read of others.
    """
    order = choose_order(graph) if reorder else None
    graph = graph if order is None else graph.reordered(order)
    spatial, partition = layout.spatial, Partition.equal(graph.vertices, layout.vertex)
    if not catalogue.by_columns(spatial):
        cut = cut_graph(graph.adjacency, layout.vertex, layout.chunks, method=layout.partition)
        if spatial == "auto" and layout.vertex > 1:
            volume = quality(graph.adjacency, cut.owner_by_vertex(), layout.vertex).volume
            spatial = choose([last - first for first, last in map(cut.part, range(layout.vertex))], volume)
        partition = partition if catalogue.by_columns(spatial) else cut
    columns = catalogue.by_columns(spatial)
    graph = graph.reordered(partition.order)
    values = torch.float64 if dtype == torch.float64 else torch.float32
    adjacency = graph.normalised(form.normalisation, self_loops=form.self_loops, dtype=values)
    features = graph.features()
    sums = None
    if partition.chunks > 1 and form.normalisation == "symmetric":  # steps may leave edges out
        sums = row_sums(normalise(graph.adjacency.to(values), "none", form.self_loops))
    remote = []
    for part in range(layout.vertex):
        rows = slice(*partition.part(part))
        target = folder / f"part-{part}"
        target.mkdir(parents=True)
        if columns:
            remote.append(0)
            save_array(
                target / _AGGREGATED, aggregate(features.to(values), adjacency.rows_between(rows.start, rows.stop))
            )
        else:
            part_graph = part_graph_of(adjacency, partition, part)
            remote.append(part_graph.halo.numel())
            _write_part_graph(part_graph, target)
            if sums is not None:
                save_array(target / _SUMS, torch.cat([sums[rows], sums[part_graph.halo]]))
        save_array(target / _FEATURES, features[rows])
    if columns:
        _write_matrix(adjacency, folder)
    for name, tensor in (("y", graph.y), ("y_weight", graph.y_weight), ("order", graph.order)):
        if tensor is not None:
            save_array(folder / f"{name}.npy", tensor)
    for name, mask in graph.splits.items():
        save_array(folder / f"split-{name}.npy", mask)
    meta = {
        "parts": layout.vertex,
        "chunks": partition.chunks,
        "starts": partition.starts,
        "features": features.shape[1],
        "splits": sorted(graph.splits),
        "remote": remote,
        "symmetric": adjacency.is_symmetric(),
        "quality": _quality(graph.adjacency, partition),
        "spatial": spatial,
        "edge_channels": graph.edge_channels,
        "relations": graph.relations,
    }
    (folder / _META).write_text(to_json(meta))


def read_cut(folder: Path) -> Cut | TimelineCut:
    """Read what all ranks know of cut data."""
    if is_timeline_cut(folder):
        return read_timeline_cut(folder)
    meta = json.loads((folder / _META).read_text())
    y, y_weight = folder / "y.npy", folder / "y_weight.npy"
    return Cut(
        folder=folder,
        parts=meta["parts"],
        chunks=meta["chunks"],
        starts=tuple(meta["starts"]),
        order=load_array(folder / "order.npy"),
        y=load_array(y) if y.exists() else None,
        splits={name: load_array(folder / f"split-{name}.npy") for name in meta["splits"]},
        features=meta["features"],
        remote=tuple(meta["remote"]),
        symmetric=meta["symmetric"],
        quality=meta["quality"],
        spatial=meta["spatial"],
        edge_channels=meta["edge_channels"],
        y_weight=load_array(y_weight) if y_weight.exists() else None,
        relations=tuple(meta["relations"]),
    )


def read_features(cut: Cut, part: int, dtype: torch.dtype) -> Tensor:
    """The features of one part, [rows, features]."""
    return load_array(cut.folder / f"part-{part}" / _FEATURES).to(dtype)


def read_aggregated(cut: Cut, part: int, dtype: torch.dtype) -> Tensor:
    """Â·x of one part's rows, [rows, features], as it was made when the data were cut by columns."""
    return load_array(cut.folder / f"part-{part}" / _AGGREGATED).to(dtype)


def read_sums(cut: Cut, part: int) -> Tensor:
    """The row sums of one part's own and halo rows, float64 [columns]."""
    return load_array(cut.folder / f"part-{part}" / _SUMS)


def read_adjacency(cut: Cut) -> Adjacency:
    """The matrix of all rows, mapped."""
    arrays = {name: load_array(cut.folder / f"{name}.npy") for name in ("pointers", "indices")}
    values = cut.folder / "values.npy"
    return Adjacency.from_csr(
        arrays["pointers"], arrays["indices"], load_array(values) if values.exists() else None, cut.vertices
    )


def read_part_graph(cut: Cut, part: int) -> PartGraph:
    """Read the rows of one part with its halo lists; where rows are redistributed by columns, its rows alone."""
    if cut.by_columns:
        own, none = cut.rows(part), torch.empty(0, dtype=torch.int64)
        nobody = tuple(((0, 0),) for _ in range(cut.parts))
        block = read_adjacency(cut).rows_between(own.start, own.stop)
        return PartGraph(
            part, block, none, nobody, tuple((none,) for _ in range(cut.parts)), (0, block.rows), cut.symmetric
        )
    folder = cut.folder / f"part-{part}"
    arrays = {path.stem: load_array(path) for path in folder.glob("*.npy") if path.name not in (_FEATURES, _SUMS)}
    rows = arrays["pointers"].numel() - 1
    values = arrays.get("values")
    matrix = Adjacency.from_csr(arrays["pointers"], arrays["indices"], values, rows + arrays["halo"].numel())
    matrix = matrix.with_features(arrays.get("edge_x"))
    receive = arrays["receive"].reshape(cut.parts, cut.chunks, 2).tolist()
    counts = arrays["send_counts"].tolist()
    lists = torch.split(arrays["send"], counts)
    send = tuple(tuple(lists[q * cut.chunks : (q + 1) * cut.chunks]) for q in range(cut.parts))
    first = cut.rows(part).start
    bounds = cut.starts[part * cut.chunks : (part + 1) * cut.chunks + 1]
    return PartGraph(
        part=part,
        adjacency=matrix,
        halo=arrays["halo"],
        receive=tuple(tuple((low, high) for low, high in chunks) for chunks in receive),
        send=send,
        chunk_rows=tuple(bound - first for bound in bounds),
        symmetric=cut.symmetric,
    )


def _write_part_graph(part_graph: PartGraph, folder: Path) -> None:
    _write_matrix(part_graph.adjacency, folder)
    save_array(folder / "halo.npy", part_graph.halo)
    save_array(folder / "receive.npy", torch.tensor(part_graph.receive, dtype=torch.int64))
    lists = [rows for chunks in part_graph.send for rows in chunks]
    save_array(folder / "send.npy", torch.cat(lists))
    save_array(folder / "send_counts.npy", torch.tensor([rows.numel() for rows in lists]))


def _write_matrix(matrix: Adjacency, folder: Path) -> None:
    save_array(folder / "pointers.npy", torch.cat([matrix.starts, matrix.ends[-1:]]))
    save_array(folder / "indices.npy", matrix.indices)
    if matrix.values is not None:
        save_array(folder / "values.npy", matrix.values)
    if matrix.features is not None:
        save_array(folder / "edge_x.npy", matrix.features)


def _quality(adjacency: Adjacency, partition: Partition) -> dict[str, Any]:
    """Give how good the parts and the chunks are, each where there are several; a graph has no runs of steps."""
    figures: dict[str, Any] = {"parts": None, "chunks": None, "runs": None}
    for name, count, per in (("parts", partition.parts, partition.chunks), ("chunks", len(partition.starts) - 1, 1)):
        if count > 1:
            sizes = torch.tensor(partition.starts).diff().reshape(-1, per).sum(1)
            assignment = torch.repeat_interleave(torch.arange(count), sizes)
            figures[name] = {"rows": sizes.tolist(), **asdict(quality(adjacency, assignment, count))}
    return figures
