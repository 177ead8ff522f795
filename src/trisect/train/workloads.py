"""From a model, data and a task to a `Workload`: of data that are here, or only described."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trisect.config import TrainOptions
from trisect.errors import ConfigError, unknown
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.nn.models.source import AnyModel, ModelSource, outline_of
from trisect.ops.memory import free_bytes
from trisect.partition import cut_graph, quality
from trisect.partition.cut import boundary_of
from trisect.partition.metis import cut_by_order
from trisect.partition.order import choose_order
from trisect.partition.timeline import cut_timeline, halo_rows, step_work
from trisect.plan.parts import Parts, described_parts, effective_degree
from trisect.plan.workload import Workload
from trisect.shards.timeline_files import is_symmetric
from trisect.tasks import BoundTask, LinkPrediction
from trisect.tasks.node import NodeTargets
from trisect.train.assemble import feature_width, outlined, preaggregates, work_of_vertex
from trisect.train.blocks import keeps_aggregation
from trisect.train.optimizer import numbers_kept

# Graphs of more entries are not cut to plan: rows of other parts are estimated from an order that costs one look.
MOST_ENTRIES = 6_000_000
# Nor are graphs cut into more parts than this, which takes a partitioner minutes.
MOST_PARTS = 256
# Of a graph of which nothing is said, a partitioner leaves about this share of the neighbours that chance would.
LOCALITY = 0.3


def workload_of(maker: ModelSource, data: Graph | Timeline, task: Any, options: TrainOptions) -> Workload:
    """Give the workload of a model on data that are here."""
    bound, model = outlined(maker, data, data, task, options)
    if isinstance(data, Timeline):
        return _of_timeline(model, data, bound, options)
    return _of_graph(model, data, bound, options)


def common(model: AnyModel, bound: BoundTask, options: TrainOptions) -> dict[str, Any]:
    """Return what a workload has of its model, task and options, whatever the data."""
    decoder: nn.Module | None = bound.decoder_outline(model.out_channels)
    return {
        "layers": tuple(model.stack),
        "head": model.head,
        "extra": 0 if decoder is None else sum(p.numel() for p in decoder.parameters() if p.requires_grad),
        "copies": numbers_kept(options),
        "dtype": options.dtype,
        "step": options.steps,
        "fetches": bound.reads_pairs,
        "judged": _judged_share(bound),
        **_pairs_of(bound, decoder, model.out_channels),
    }


def _judged_share(bound: BoundTask) -> float:
    """Return the share of the vertices that the largest split of a task on single vertices has."""
    targets: NodeTargets | None = getattr(bound, "targets", None)
    if not isinstance(targets, NodeTargets):
        return 1.0
    return max((float(mask.float().mean()) for mask in targets.masks.values()), default=1.0)


def _pairs_of(bound: BoundTask, decoder: nn.Module | None, channels: int) -> dict[str, Any]:
    """The pairs that a loss scores at a step, and those that measures do: at once, and kept for the whole run."""
    trained = bound.scored_pairs("train", training=True)
    if not trained:
        return {}
    judged = [count for split in bound.final for count in bound.scored_pairs(split, training=False)]
    # sampled pairs are drawn once and kept; those that exist are there anyway
    # a decoder that remembers pairs has another inside
    hidden = getattr(getattr(decoder, "decoder", decoder), "hidden", None)
    return {
        "pairs": sum(trained) / len(trained),
        "pair_channels": int(hidden) if isinstance(hidden, int) else channels,
        "judged_pairs": (max(judged, default=0), sum(judged)),
        "remembered": bound.remembered_bytes,
    }


def _of_graph(model: AnyModel, graph: Graph, bound: BoundTask, options: TrainOptions) -> Workload:
    adjacency = graph.adjacency
    entries = adjacency.entries + (graph.vertices if model.self_loops else 0)
    # where matrices are symmetric, gradients cross by the lists of the rows themselves; bytes are the same
    symmetric = model.normalisation != "row" and adjacency.is_symmetric()
    return Workload(
        vertices=graph.vertices,
        entries=(entries,),
        features=feature_width(graph),
        events=adjacency.entries,
        parts_of=_GraphCutter(graph, reorder=options.order == "auto"),
        aggregated=preaggregates(model),
        symmetric=symmetric,
        **common(model, bound, options),
    )


class _GraphCutter:
    """Cuts a graph as a run would, or estimates the cut of a large one."""

    def __init__(self, graph: Graph, *, reorder: bool) -> None:
        self._graph, self._reorder, self._ordered = graph, reorder, False
        self._degree: float | None = None

    def __call__(self, parts: int) -> Parts:
        vertices, entries = self._graph.vertices, self._graph.adjacency.entries
        if parts == 1:
            return Parts((vertices,), (0,), boundary=0.0)
        if entries > MOST_ENTRIES or parts > MOST_PARTS:
            return self._estimated(parts)
        if not self._ordered:
            order = choose_order(self._graph) if self._reorder else None
            self._graph = self._graph if order is None else self._graph.reordered(order)
            self._ordered = True
        adjacency = self._graph.adjacency
        partition = cut_graph(adjacency, parts)
        owner = partition.owner_by_vertex()
        measured = quality(adjacency, owner, parts)
        rows = tuple(last - first for first, last in map(partition.part, range(parts)))
        boundary = float(boundary_of(adjacency, owner).double().mean())
        return Parts(rows, (int(measured.volume),), measured.edge_imbalance, boundary=boundary)

    def _estimated(self, parts: int) -> Parts:
        """By the halo of intervals of the vertices as they stand, a bound from above that costs one look at all."""
        if self._degree is None:
            few = min(8, self._graph.vertices)
            volume = quality(self._graph.adjacency, cut_by_order(self._graph.adjacency, few), few).volume
            self._degree = effective_degree(volume / self._graph.vertices, few)
        return described_parts(self._graph.vertices, 1, parts, self._degree)


def _of_timeline(model: AnyModel, timeline: Timeline, bound: BoundTask, options: TrainOptions) -> Workload:
    free = free_bytes(torch.device("cpu"))
    aggregated = keeps_aggregation(model.stack, timeline, options.dtype, free // 4)
    work = step_work(timeline, work_of_vertex(model, aggregated=aggregated))
    return Workload(
        vertices=timeline.vertices,
        entries=tuple(step_work(timeline, 1.0 if model.self_loops else 0.0)),
        distinct=_distinct(timeline, self_loops=model.self_loops),
        overlaid=_overlaid(timeline.smoothing.window),
        features=feature_width(timeline),
        events=int(timeline.src.numel()),
        parts_of=partial(_timeline_parts, timeline),
        training=bound.steps("train").stop,
        loss_from=bound.steps("train").start,
        work=tuple(work),
        timeline=True,
        aggregated=aggregated,
        fixed=timeline.x is not None and timeline.x.dim() == 2,
        symmetric=is_symmetric(timeline, model),
        **common(model, bound, options),
    )


def _distinct(timeline: Timeline, *, self_loops: bool) -> float:
    """The share of entries that is left where an edge that comes again is one entry, by the step in the middle."""
    step = timeline.steps // 2
    counted = step_work(timeline, 1.0 if self_loops else 0.0)[step]
    if not 0 < counted <= MOST_ENTRIES:
        return 1.0
    return timeline.snapshot(step, "none", self_loops=self_loops).entries / counted


def _overlaid(window: int) -> float:
    """Two windows of so many steps, one a step later than the other: what both have counts once."""
    return (window + 1) / (2 * window)


def _timeline_parts(timeline: Timeline, parts: int) -> Parts:
    """Cut a timeline as a run would; of a large one, take rows of other parts from chance and some locality."""
    if parts == 1:
        return Parts((timeline.vertices,), (0,) * timeline.steps, boundary=0.0)
    work = step_work(timeline, 0.0)
    if sum(work) > MOST_ENTRIES or parts > MOST_PARTS:
        degree = LOCALITY * sum(work) / max(1, timeline.steps * timeline.vertices)
        return described_parts(timeline.vertices, timeline.steps, parts, degree)
    partition = cut_timeline(timeline, parts)
    remote = halo_rows(timeline, partition.owner_by_vertex(), parts)
    rows = tuple(last - first for first, last in map(partition.part, range(parts)))
    totals: Tensor = remote.sum(1)
    heaviest = max(rows) * parts / timeline.vertices
    return Parts(rows, tuple(int(total) for total in totals), heaviest)


# Data that are described


@dataclass(frozen=True)
class DescribedData:
    """A graph or a timeline of which only the sizes are known.

    Attributes:
        vertices, edges: how many; of a timeline, edges of all steps together.
        steps: of a timeline; 1: one graph.
        features, classes: of a vertex.
        halo: rows of other parts that all parts read, for each vertex: at eight parts, or {parts: rows}.
        undirected: whether each edge stands for both directions.
        length: steps that an edge lives, where snapshots are smoothed.
        train: the share of steps that are trained on.
        fixed: whether features are the same in all steps.
        relations: how many types of edges there are; 0: one, which is no relation.
    """

    vertices: int
    edges: int
    steps: int = 1
    features: int = 2
    classes: int = 2
    halo: float | dict[int, float] | None = None
    undirected: bool = True
    length: int = 1
    train: float = 0.7
    fixed: bool = True
    relations: int = 0

    @classmethod
    def of_section(cls, data: Mapping[str, Any], length: int = 1) -> DescribedData:
        """Read the section `data` of a configuration that names no source."""
        counts = ("vertices", "edges", "steps", "features", "classes", "relations")
        names = (*counts, "halo", "undirected", "train", "fixed")
        for key in data:
            if key not in names:
                raise ConfigError(unknown("key of data that are described:", str(key), names))
        for key in counts:
            value = data.get(key, 1)
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"data.{key} is {data.get(key)!r}; it must be a whole number of at least 1.")
        halo = data.get("halo")
        if isinstance(halo, Mapping):
            halo = {int(parts): float(rows) for parts, rows in halo.items()}
        if halo is not None and not isinstance(halo, (int, float, dict)):
            raise ConfigError(f"data.halo is {halo!r}; give rows of other parts for each vertex, such as 2.6.")
        whole = {key: int(data[key]) for key in counts if key in data}
        return cls(
            **whole,
            halo=halo,
            undirected=bool(data.get("undirected", True)),
            fixed=bool(data.get("fixed", True)),
            length=length,
            train=float(data.get("train", 0.7)),
        )

    @property
    def entries(self) -> tuple[int, ...]:
        """Entries of the prepared matrix of each step."""
        each = self.edges * (2 if self.undirected else 1) // self.steps * min(self.length, self.steps)
        return (each + self.vertices,) * self.steps

    def degree(self) -> float:
        """Give the effective degree of the halo."""
        if self.halo is None:
            return LOCALITY * (self.entries[0] / self.vertices)
        halo = self.halo if isinstance(self.halo, dict) else {8: float(self.halo)}
        parts = max(halo)
        return effective_degree(halo[parts], parts)

    def parts(self, count: int) -> Parts:
        """Say how the vertices would fall into so many parts."""
        known = self.halo.get(count) if isinstance(self.halo, dict) else None
        return described_parts(self.vertices, self.steps, count, self.degree(), known)


def workload_of_description(
    maker: ModelSource, data: DescribedData, options: TrainOptions, *, pairs: bool = False
) -> Workload:
    """Give the workload of a model on data that are described.

    Args:
        pairs: whether the task reads pairs of vertices, so that the model gives embeddings.
    """
    model = outline_of(maker, data.features, None if pairs else data.classes, data.relations)
    timeline = data.steps > 1
    training = max(1, int(data.train * data.steps)) if timeline else 1
    # as for data that are here: kept where all steps fit a quarter of a few GiB, of which nothing is known
    return Workload(
        layers=tuple(model.stack),
        head=model.head,
        vertices=data.vertices,
        entries=data.entries,
        overlaid=_overlaid(data.length),
        features=data.features,
        events=data.edges,
        parts_of=data.parts,
        training=training,
        work=data.entries,
        timeline=timeline,
        aggregated=preaggregates(model, timeline=timeline),
        fixed=data.fixed,
        symmetric=data.undirected and model.normalisation != "row",
        fetches=pairs,
        # those that exist and as many that are drawn, scored by the default decoder
        pairs=(4.0 if data.undirected else 2.0) * data.edges / data.steps if pairs else 0.0,
        pair_channels=LinkPrediction.hidden if pairs else 0,
        copies=numbers_kept(options),
        described=True,
        dtype=options.dtype,
    )
