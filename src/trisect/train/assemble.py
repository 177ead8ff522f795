"""Pieces of a rank, from data that are in memory or cut: the bound task, the shard and its sizes, the modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh
from trisect.comm.rows import Shape
from trisect.comm.transport import Transport
from trisect.config import TrainOptions
from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.base import Layer, Model
from trisect.nn.models.source import AnyModel, ModelSource, outline_of
from trisect.ops.memory import free_bytes
from trisect.partition.halo import PartGraph, features_at_once
from trisect.partition.timeline import deal, step_work
from trisect.shards.graph_files import Cut, read_adjacency, read_aggregated, read_features, read_part_graph, read_sums
from trisect.shards.graph_shard import GraphShard, single_part
from trisect.shards.shard import Shard
from trisect.shards.timeline_files import TimelineCut, is_symmetric, read_timeline_part
from trisect.tasks import BoundTask, TaskContext, make_task
from trisect.tasks.decoders import Decoder
from trisect.tasks.row_loss import make_loss
from trisect.train.blocks import keeps_aggregation, with_blocks
from trisect.views.trace import trace_of

AnyData = Graph | Timeline | Cut | TimelineCut


def labels_of(data: AnyData, device: torch.device) -> Graph | Timeline:
    """Return the data that a task is bound to, on a device; a task reads no features of a timeline."""
    data = data.labels() if isinstance(data, Cut) else data.timeline if isinstance(data, TimelineCut) else data
    return (replace(data, x=None) if isinstance(data, Timeline) else data).to(device)


def context_of(options: TrainOptions, order: Tensor | None) -> TaskContext:
    """Return what a task must know of the settings."""
    return TaskContext(options.seed, order, make_loss(options.loss))


def outlined(
    maker: nn.Module | ModelSource, data: AnyData, labels: Graph | Timeline, task: Any, options: TrainOptions
) -> tuple[BoundTask, AnyModel]:
    """Bind the task to the labels; return it, and the model for its widths and declarations."""
    bound = make_task(task).bind(labels, context_of(options, labels.order))
    if options.loss is not None and not bound.takes_loss:
        raise ConfigError(f"train.loss is given, and task {make_task(task).name} has a loss of its own; leave it out.")
    own = isinstance(maker, nn.Module) and not isinstance(maker, Model)
    made = maker if own else outline_of(maker, feature_width(data), bound.channels, data.edge_channels)
    if not isinstance(made, Model):
        raise ConfigError(
            f"the model is a {type(made).__name__}; give a trisect.nn Model or DynamicModel, or a function of "
            "(in_channels, out_channels) that makes one."
        )
    return bound, made


def uncut(timeline: Timeline, model: AnyModel, training: int, layout: Layout, options: TrainOptions) -> TimelineCut:
    """Return a timeline that one process holds in memory as a cut of one part, in the layout's blocks."""
    free = free_bytes(torch.device(options.device))
    layout = with_blocks(layout, model, timeline, training, options.dtype, free)
    x = timeline.features().to(options.dtype)  # degrees, where there are no features, are made by now
    timeline = replace(timeline, x=x)
    return TimelineCut(
        folder=Path(),
        timeline=timeline,
        training=training,
        runs=deal(step_work(timeline)[:training], layout.block_count, 1),
        starts=(0, timeline.vertices),
        features=x.shape[-1],
        fixed=x.dim() == 2,
        aggregated=keeps_aggregation(model.stack, timeline, options.dtype, free // 4),
        halo=torch.zeros(training, 1, dtype=torch.int64),
        spatial=layout.spatial,
        edge_channels=timeline.edge_channels,
    )


def shard_of(
    data: Graph | Cut | TimelineCut,
    model: AnyModel,
    mesh: Mesh,
    dtype: torch.dtype,
    ledger: Ledger,
    local_ranks: int,
    *,
    drops: bool = False,
) -> tuple[Shard, tuple[int, ...], dict[str, Any]]:
    """Return the shard of a rank, where parts begin, and the sizes of the data as `make_plan` has them.

    Args:
        ledger: counts the snapshots that are brought to the device.
        local_ranks: how many share the memory of this host, of which a quarter may be kept between epochs.
        drops: whether steps leave edges out, so that the first sum over neighbours differs.
    """
    budget = free_bytes(mesh.device) // 4 // local_ranks
    if isinstance(data, TimelineCut):
        return (
            read_timeline_part(data, mesh.part_index, model, dtype, budget, ledger, mesh.device),
            data.starts,
            {
                "runs": data.runs,
                "remote": data.remote,
                "timeline": True,
                "aggregated": data.aggregated,
                "fixed": data.fixed,
                # the matrices of one process are planned with their transposes, as those of one graph are
                "symmetric": mesh.layout.world * mesh.layout.chunks > 1 and is_symmetric(data.timeline, model),
            },
        )
    aggregated = preaggregates(model) and not drops
    if isinstance(data, Cut):
        sizes: dict[str, Any] = {
            "chunk_rows": data.chunk_rows,
            "remote": (sum(data.remote),),
            "symmetric": data.symmetric,
            "stale": mesh.layout.recipe is not None,
        }
        shard = _part_of_graph(data, mesh, dtype, aggregated=aggregated and mesh.stage_index == 0)
        starts = (*(data.rows(part).start for part in range(data.parts)), data.vertices)
        return shard, starts, {**sizes, "aggregated": aggregated}
    x = data.features().to(dtype)
    aggregated = aggregated and x.numel() * x.element_size() <= budget
    values = torch.float64 if dtype == torch.float64 else torch.float32
    adjacency = data.normalised(model.normalisation, self_loops=model.self_loops, dtype=values)
    shard = GraphShard(single_part(adjacency), lambda: x, data.order, relations=data.relations)
    if aggregated:
        shard.keep_aggregated()
    return shard, (0, data.vertices), {"aggregated": aggregated}


def _part_of_graph(cut: Cut, mesh: Mesh, dtype: torch.dtype, *, aggregated: bool) -> GraphShard:
    """Read the shard of a rank; the features of the halo cross once, as they are, and are not kept."""
    device = mesh.device
    part_graph = read_part_graph(cut, mesh.part_index)
    own, halo = cut.order[cut.rows(mesh.part_index)], cut.order[part_graph.halo]
    part_graph = part_graph.to(device)
    adjacency: Callable[[], Adjacency] = partial(read_adjacency, cut)
    if device.type != "cpu":  # where it is mapped
        adjacency = cache(lambda: read_adjacency(cut).to(device))
    shard = GraphShard(
        part_graph,
        lambda: read_features(cut, mesh.part_index, dtype).to(device),
        own.to(device),
        halo.to(device),
        adjacency,
        cut.relations,
        lambda: read_sums(cut, mesh.part_index).to(device),
    )
    if aggregated and cut.by_columns:
        shard.keep(read_aggregated(cut, mesh.part_index, dtype).to(device))
    elif aggregated and mesh.layout.vertex > 1:
        columns = max(cut.rows(part).stop - cut.rows(part).start + cut.remote[part] for part in range(cut.parts))
        at_once = features_at_once(columns, cut.features, dtype.itemsize)
        shard.keep_aggregated(partial(_with_halo, part_graph, mesh), at_once)
    elif aggregated:
        shard.keep_aggregated()
    return shard


def _with_halo(part_graph: PartGraph, mesh: Mesh, x: Tensor) -> Tensor:
    """Append the halo's features to our own: [own rows, features] → [columns, features]."""
    counts = [owned[-1][1] - owned[0][0] for owned in part_graph.receive]
    outgoing = [x.index_select(0, torch.cat(chunks)) for chunks in part_graph.send]
    shapes = [Shape(count, x.shape[1], x.dtype) for count in counts]
    received = Transport(mesh, Ledger()).begin_swap(outgoing, shapes, "features", 0, once=True).wait()
    return torch.cat([x, *(rows for rows, count in zip(received, counts, strict=True) if count)])


def make_decoder(task: BoundTask, model: AnyModel, options: TrainOptions) -> nn.Module | None:
    """Make the task's trained part, whose start the seed draws; None where the task trains nothing."""
    decoder = task.decoder(model.out_channels)
    if isinstance(decoder, Decoder):
        decoder.reset_parameters(options.seed, len(model.layers) + 1)
    return decoder


def name_modules(model: nn.Module, decoder: nn.Module | None) -> nn.ModuleDict:
    """Name what is trained: `model` and, where the task has one, `decoder`."""
    return nn.ModuleDict({"model": model} if decoder is None else {"model": model, "decoder": decoder})


def preaggregates(model: AnyModel, *, timeline: bool = False) -> bool:
    """Say whether the first layer asks no more of its neighbours than Â·x of the features, which is made once."""
    return trace_of(model.stack[0], timeline=timeline).preaggregates


def sizes_of(starts: Sequence[int]) -> list[int]:
    """Give how many rows each part has."""
    return [stop - start for start, stop in pairwise(starts)]


def feature_width(data: AnyData) -> int:
    """Return the number of features of a vertex; two, its degrees, where a timeline brings none."""
    if isinstance(data, (Cut, TimelineCut)):
        return data.features
    if isinstance(data, Timeline):
        return 2 if data.x is None else data.x.shape[-1]
    return data.features().shape[1]


def with_read_edges(data: Graph | Timeline, model: AnyModel) -> Graph | Timeline:
    """Return the data without the features or relations of edges where no layer reads them."""
    read = data.edge_x is None or model.edge_channels or (data.relations and relations_of(model, data))
    return data if read else replace(data, edge_x=None, relations=())


def relations_of(model: AnyModel, data: Graph | Timeline) -> list[str | int | tuple[str, ...]]:
    """Return the relations of edges that layers tell apart, by name or number."""
    traces = (trace_of(layer, timeline=isinstance(data, Timeline)) for layer in model.stack)
    return list(dict.fromkeys(relation for trace in traces for relation in trace.related))


def work_of_vertex(model: AnyModel, *, aggregated: bool) -> float:
    """Estimate what a vertex costs in a step, in events: products with weights against rows that are gathered.

    Measured (CD-GCN, two layers of 16, forward and backward): a weight takes half the time of a gathered value.
    """
    head = model.head
    weights = 0 if head is None else sum(parameter.numel() for parameter in head.parameters())
    for layer in model.stack:
        # a weight that evolves is made once a step, not once a vertex
        evolves = trace_of(layer, timeline=True).state == "weight"
        size = layer.in_channels * layer.out_channels
        weights += size if evolves else sum(parameter.numel() for parameter in layer.parameters())
    gathered: int = sum(layer.in_channels for layer in model.stack[1 if aggregated else 0 :])
    return max(1.0, weights / (2.0 * max(1, gathered)))


class StageModules(nn.Module):
    """The layers of one stage, named by their number in the model, and the head where the stage is the last."""

    def __init__(self, layers: Mapping[int, nn.Module], head: Layer | None) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): layer for number, layer in layers.items()})
        if head is not None:
            self.head = head
