"""A run on several ranks: cut the data once, and make of a cut what one rank runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh
from trisect.comm.transport import Transport
from trisect.config import TrainOptions
from trisect.errors import LayoutError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.models.source import ModelSource, outline_of, stage_of
from trisect.ops.memory import free_bytes
from trisect.partition.partition import order_digest
from trisect.plan.stages import layer_costs, stage_bounds
from trisect.shards.graph_files import Cut, write_graph_shards
from trisect.shards.shard import Shard
from trisect.shards.timeline_files import TimelineCut, is_symmetric, read_timeline_part
from trisect.tasks import TaskContext, make_task
from trisect.train.assemble import (
    StageModules,
    agreed,
    choose_spatial,
    cut_timeline_shards,
    facts_for,
    feature_width,
    graph_shard,
    make_decoder,
    preaggregates,
    sizes_of,
    with_read_edges,
)
from trisect.train.checks import check_fit, check_monitor, require_fit
from trisect.train.device import check_device
from trisect.train.program import Program
from trisect.train.setup import Setup
from trisect.views.trace import trace_of


def cut_data(
    data: Graph | Timeline,
    maker: ModelSource,
    task: Any,
    layout: Layout,
    options: TrainOptions,
    folder: Path,
    *,
    free: int | None = None,
) -> None:
    """Check that the layout fits, and write the shards of all ranks.

    Args:
        free: bytes that all ranks of a host may take together; None: what is free here.
    """
    check_device(options.device)
    bound = make_task(task).bind(data, TaskContext(options.seed, data.order))
    bound.warn()
    model = outline_of(maker, feature_width(data), bound.channels, data.edge_channels)
    check_fit(model, data, bound)
    data = with_read_edges(data, model)
    training = bound.steps("train").stop if isinstance(data, Timeline) else None
    require_fit(layout, model, vertices=data.vertices, training=training)
    check_monitor(bound, options, model.out_channels, data.vertices)
    if isinstance(data, Timeline):
        cut_timeline_shards(data, model, bound, layout, options, folder, free)
        return
    if layout.chunks > 1 or (layout.vertex > 1 and not bound.reads_pairs):
        bound.restrict(torch.zeros(0, dtype=torch.int64))
    choose = partial(choose_spatial, model, layout, 1, aggregated=preaggregates(model))
    write_graph_shards(data, layout, model, folder, dtype=options.dtype, reorder=options.order == "auto", choose=choose)


def rank_setup(
    cut: Cut | TimelineCut,
    maker: ModelSource,
    task: Any,
    mesh: Mesh,
    options: TrainOptions,
    local_ranks: int = 1,
) -> Setup:
    """Make one rank's part of a run: the layers of its stage, under their names in the model, on its shard.

    Args:
        local_ranks: how many share the memory of this host.
    """
    labels: Graph | Timeline
    if isinstance(cut, TimelineCut):
        require_one_order(cut.timeline.order, mesh)
        # a task reads no features
        cut, labels = agreed(cut, mesh), replace(cut.timeline, x=None).to(mesh.device)
        layout = replace(mesh.layout, blocks=len(cut.runs))
    else:
        require_one_order(cut.order, mesh)
        labels, layout = cut.labels().to(mesh.device), mesh.layout
    # one exchange was chosen when the data were cut
    mesh = replace(mesh, layout=replace(layout, spatial=cut.spatial))
    bound = make_task(task).bind(labels, TaskContext(options.seed, labels.order))
    outline = outline_of(maker, cut.features, bound.channels, cut.edge_channels)
    traces = [trace_of(layer, timeline=isinstance(cut, TimelineCut)) for layer in outline.stack]
    bounds = stage_bounds(layer_costs(traces, aggregated=traces[0].preaggregates), mesh.layout.layer)
    own = range(bounds[mesh.stage_index], bounds[mesh.stage_index + 1])
    last = mesh.stage_index == mesh.layout.layer - 1
    model = stage_of(maker, cut.features, bound.channels, own, cut.edge_channels, last=last)
    decoder = make_decoder(bound, model, options)
    model.to(options.dtype)
    head = getattr(model, "head", None)
    modules = nn.ModuleDict({"model": StageModules({k: model.layers[k] for k in own}, head if last else None)})
    if decoder is not None:
        decoder.to(options.dtype)
        if last:
            modules["decoder"] = decoder
    modules.to(mesh.device)
    ledger = Ledger()
    make = partial(facts_for, outline, bound, decoder, mesh.layout, bounds, options.dtype)
    shard: Shard
    if isinstance(cut, TimelineCut):
        budget = free_bytes(mesh.device) // 4 // local_ranks
        shard = read_timeline_part(cut, mesh.part_index, model, options.dtype, budget, ledger, mesh.device)
        facts = make(
            runs=cut.runs,
            rows=sizes_of(cut.starts),
            remote=cut.remote,
            timeline=True,
            aggregated=cut.aggregated,
            fixed=cut.fixed,
            symmetric=is_symmetric(cut.timeline, model),
        )
        starts, order = cut.starts, cut.timeline.order
    else:
        aggregated = preaggregates(outline)
        starts = (*(cut.rows(part).start for part in range(cut.parts)), cut.vertices)
        facts = make(
            rows=sizes_of(starts),
            chunk_rows=cut.chunk_rows,
            remote=(sum(cut.remote),),
            aggregated=aggregated,
            symmetric=cut.symmetric,
            stale=mesh.layout.recipe is not None,
        )
        shard = graph_shard(cut, mesh, options.dtype, aggregated=aggregated and mesh.stage_index == 0)
        order = cut.order
    program = Program(
        model,
        decoder,
        bound,
        options.seed,
        mesh=mesh,
        facts=facts,
        shard=shard,
        starts=starts,
        order=order,
        ledger=ledger,
    )
    # outputs of a task on pairs are those of all vertices
    vertices = order if bound.reads_pairs and facts.parts > 1 else shard.vertices
    vertices = None if vertices is None else vertices.to(mesh.device)
    steps = labels.steps if isinstance(labels, Timeline) else 1
    return Setup(program, bound, modules, vertices, steps, facts.timeline, mesh.layout)


def require_one_order(order: Tensor | None, mesh: Mesh) -> None:
    """Raise on all ranks where they have vertices in different orders: each row that crosses would be another's.

    Args:
        order: the user's vertex at each position; None where it is the user's.
    """
    digests = Transport(mesh, Ledger()).gather(None if order is None else order_digest(order))
    others = [str(rank) for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise LayoutError(
            f"The graph was cut in another way on the host of rank {', '.join(others)} than on that of rank 0, which"
            " has other libraries or data; install the same releases on all hosts."
        )
