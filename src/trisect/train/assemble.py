"""From a model, a task and what is cut of the data to a program: the facts of the layout, the shard, the modules."""

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
from trisect.graph.adjacency import Adjacency
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.base import Layer
from trisect.nn.models.source import AnyModel
from trisect.nn.temporal.dynamic import DynamicModel
from trisect.ops.memory import free_bytes
from trisect.partition.halo import PartGraph, features_at_once
from trisect.partition.order import choose_order
from trisect.partition.partition import Partition
from trisect.partition.timeline import cut_timeline, deal, halo_rows, step_work
from trisect.plan.plan import make_plan
from trisect.shards.graph_files import Cut, read_adjacency, read_aggregated, read_features, read_part_graph
from trisect.shards.graph_shard import GraphShard, single_part
from trisect.shards.shard import Shard
from trisect.shards.timeline_files import TimelineCut
from trisect.shards.timeline_writer import write_timeline_shards
from trisect.shards.whole_timeline import whole_timeline
from trisect.tasks import BoundTask
from trisect.tasks.decoders import Decoder
from trisect.train.blocks import keeps_aggregation, with_blocks
from trisect.train.program import Program
from trisect.views.catalogue import by_columns
from trisect.views.plan import Plan
from trisect.views.trace import NONE, trace_of


def cut_timeline_shards(
    timeline: Timeline,
    model: AnyModel,
    bound: BoundTask,
    layout: Layout,
    options: TrainOptions,
    folder: Path,
    free: int | None,
) -> None:
    """Cut a timeline for the ranks of a layout, and write what each reads of it to `folder`.

    Args:
        free: the bytes of memory that are free, by which the number of blocks is chosen; None: those of this host.
    """
    training = bound.steps("train").stop
    free = free_bytes(torch.device("cpu")) if free is None else free
    layout = with_blocks(layout, model.stack, timeline, training, options.dtype, free)
    order = choose_order(timeline) if options.order == "auto" else None
    timeline = timeline if order is None else timeline.reordered(order)
    aggregated = keeps_aggregation(model.stack, timeline, options.dtype, free // 4)
    partition, spatial = Partition.equal(timeline.vertices, layout.vertex), layout.spatial
    if layout.vertex > 1 and not by_columns(spatial):
        cut = cut_timeline(timeline, layout.vertex, method=layout.partition)
        rows = [cut.part(p)[1] - cut.part(p)[0] for p in range(layout.vertex)]
        if spatial == "auto":
            remote = int(halo_rows(timeline, cut.owner_by_vertex(), layout.vertex, range(training)).sum())
            spatial = choose_spatial(model, layout, training, rows, remote, aggregated=aggregated, timeline=True)
        if not by_columns(spatial):
            partition, timeline = cut, timeline.reordered(cut.order)
    vertex_work = work_of_vertex(model, aggregated=aggregated)
    runs = deal(step_work(timeline, vertex_work)[:training], layout.block_count, layout.time)
    write_timeline_shards(
        timeline,
        partition,
        runs,
        model,
        folder,
        aggregated=aggregated,
        spatial=spatial,
        dtype=options.dtype,
        vertex_work=vertex_work,
    )


def choose_spatial(
    model: AnyModel,
    layout: Layout,
    steps: int,
    rows: Sequence[int],
    remote: int,
    *,
    aggregated: bool,
    timeline: bool = False,
) -> str:
    """Choose how rows cross parts by the bytes that do, from what a cut of the vertices would make ranks read."""
    facts = make_plan(
        model.stack,
        None,
        replace(layout, time=1, layer=1, spatial="auto"),
        bounds=(0, len(model.stack)),
        rows=rows,
        remote=(-(-remote // steps),),
        aggregated=aggregated,
        timeline=timeline,
        stale=layout.recipe is not None,
    )
    return layout.spatial if facts.across == NONE else facts.across


def one_process(
    model: AnyModel,
    decoder: nn.Module | None,
    task: BoundTask,
    options: TrainOptions,
    data: Graph | Timeline,
    x: Tensor,
    layout: Layout,
    device: torch.device,
) -> Program:
    """Make the program of one process: the full model on all of the data, a timeline in the layout's blocks.

    Args:
        data: a graph on the device; a timeline in host memory, or there.
    """
    budget, ledger, dtype = free_bytes(device) // 4, Ledger(), x.dtype
    layout = Layout(blocks=layout.blocks, recompute=layout.recompute, pack=layout.pack)
    bounds = (0, len(model.stack))
    make = partial(facts_for, model, task, decoder, layout, bounds, dtype, rows=(data.vertices,))
    shard: Shard
    if isinstance(data, Graph):
        values = torch.float64 if dtype == torch.float64 else torch.float32
        adjacency = data.normalised(model.normalisation, self_loops=model.self_loops, dtype=values)
        aggregated = preaggregates(model) and x.numel() * x.element_size() <= budget
        shard = GraphShard(single_part(adjacency), lambda: x, data.order)
        if aggregated:
            shard.keep_aggregated()
        facts = make(aggregated=aggregated)
    else:
        timeline = replace(data, x=x)  # degrees, where there are no features, are made by now
        training = task.steps("train").stop
        aggregated = keeps_aggregation(model.stack, timeline, dtype, budget)
        shard = whole_timeline(timeline, model, dtype, budget, ledger, aggregated=aggregated, device=device)
        facts = make(
            runs=deal(step_work(timeline)[:training], layout.block_count, 1),
            timeline=True,
            aggregated=aggregated,
            fixed=x.dim() == 2,
        )
    mesh = Mesh(layout, 0, device)
    return Program(
        model,
        decoder,
        task,
        options.seed,
        mesh=mesh,
        facts=facts,
        shard=shard,
        starts=(0, data.vertices),
        order=data.order,
        ledger=ledger,
    )


def facts_for(
    model: AnyModel,
    task: BoundTask,
    decoder: nn.Module | None,
    layout: Layout,
    bounds: Sequence[int],
    dtype: torch.dtype,
    **sizes: Any,
) -> Plan:
    """Give the facts of a model and its task under a layout; `sizes` are the data's, as `make_plan` has them."""
    head: Layer | None = model.head if isinstance(model, DynamicModel) else None
    extra = 0 if decoder is None else sum(p.numel() for p in decoder.parameters() if p.requires_grad)
    fetches = task.reads_pairs and layout.vertex > 1
    return make_plan(model.stack, head, layout, bounds=bounds, extra=extra, fetches=fetches, dtype=dtype, **sizes)


def graph_shard(cut: Cut, mesh: Mesh, dtype: torch.dtype, *, aggregated: bool) -> GraphShard:
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


def agreed(cut: TimelineCut, mesh: Mesh) -> TimelineCut:
    """Agree on the same blocks on all ranks: hosts that cut for themselves may have had different memory in mind."""
    plans = Transport(mesh, Ledger()).gather([len(cut.runs), cut.aggregated])
    blocks, aggregated = max(blocks for blocks, _ in plans), all(kept for _, kept in plans)
    runs = cut.runs
    if blocks != len(runs):
        runs = deal(step_work(cut.timeline, cut.vertex_work)[: cut.training], blocks, mesh.layout.time)
    return replace(cut, runs=runs, aggregated=aggregated)


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


def feature_width(data: Graph | Timeline) -> int:
    """Give how many features a vertex has; two, its degrees, where a timeline brings none."""
    if isinstance(data, Timeline):
        return 2 if data.x is None else data.x.shape[-1]
    return data.features().shape[1]


def with_read_edges(data: Graph | Timeline, model: AnyModel) -> Graph | Timeline:
    """Give the data without the features of edges where no layer reads them, so that nobody carries them about."""
    return data if model.edge_channels or data.edge_x is None else replace(data, edge_x=None)


def work_of_vertex(model: AnyModel, *, aggregated: bool) -> float:
    """Estimate what a vertex costs in a step, in events: products with weights against rows that are gathered.

    Measured (CD-GCN, two layers of 16, forward and backward): a weight takes half the time of a gathered value.
    """
    head = model.head if isinstance(model, DynamicModel) else None
    weights = 0 if head is None else sum(parameter.numel() for parameter in head.parameters())
    for layer in model.stack:
        # a weight that evolves is made once a step, not once a vertex
        evolves = trace_of(layer, timeline=True).state == "weight"
        size = layer.in_channels * layer.out_channels
        weights += size if evolves else sum(parameter.numel() for parameter in layer.parameters())
    gathered = sum(layer.in_channels for layer in model.stack[1 if aggregated else 0 :])
    return max(1.0, weights / (2.0 * max(1, gathered)))


class StageModules(nn.Module):
    """The layers of one stage, named by their number in the model, and the head where the stage is the last."""

    def __init__(self, layers: Mapping[int, nn.Module], head: Layer | None) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): layer for number, layer in layers.items()})
        if head is not None:
            self.head = head
