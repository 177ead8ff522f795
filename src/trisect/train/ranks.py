"""Cut the data once, into the shards of all ranks, and let ranks agree on the cut that they read."""

from __future__ import annotations

from collections.abc import Sequence
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
from trisect.errors import LayoutError, MismatchError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.models.source import AnyModel, ModelSource
from trisect.ops.memory import free_bytes
from trisect.partition.order import choose_order
from trisect.partition.partition import Partition, order_digest
from trisect.partition.timeline import cut_timeline, deal, halo_rows, step_work
from trisect.plan.plan import make_plan
from trisect.shards.graph_files import Cut, write_graph_shards
from trisect.shards.timeline_files import TimelineCut
from trisect.shards.timeline_writer import write_timeline_shards
from trisect.train.assemble import outlined, preaggregates, with_read_edges, work_of_vertex
from trisect.train.blocks import keeps_aggregation, with_blocks
from trisect.train.checks import check_run
from trisect.train.device import check_device
from trisect.views.catalogue import by_columns
from trisect.views.trace import NONE, LayerTrace
from trisect.views.verbs import layer_name


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
    bound, model = outlined(maker, data, data, task, options)
    bound.warn()
    check_run(model, data, bound, layout, options)
    data = with_read_edges(data, model)
    if isinstance(data, Timeline):
        _cut_timeline(data, model, bound.steps("train").stop, layout, options, folder, free)
        return
    if layout.chunks > 1 or (layout.vertex > 1 and not bound.reads_pairs):
        bound.restrict(torch.zeros(0, dtype=torch.int64))
    choose = partial(_choose_spatial, model, layout, 1, aggregated=preaggregates(model))
    write_graph_shards(data, layout, model, folder, dtype=options.dtype, reorder=options.order == "auto", choose=choose)


def _cut_timeline(
    timeline: Timeline,
    model: AnyModel,
    training: int,
    layout: Layout,
    options: TrainOptions,
    folder: Path,
    free: int | None,
) -> None:
    free = free_bytes(torch.device("cpu")) if free is None else free
    layout = with_blocks(layout, model, timeline, training, options.dtype, free)
    order = choose_order(timeline) if options.order == "auto" else None
    timeline = timeline if order is None else timeline.reordered(order)
    aggregated = keeps_aggregation(model.stack, timeline, options.dtype, free // 4)
    partition, spatial = Partition.equal(timeline.vertices, layout.vertex), layout.spatial
    if layout.vertex > 1 and not by_columns(spatial):
        cut = cut_timeline(timeline, layout.vertex, method=layout.partition)
        rows = [cut.part(p)[1] - cut.part(p)[0] for p in range(layout.vertex)]
        if spatial == "auto":
            remote = int(halo_rows(timeline, cut.owner_by_vertex(), layout.vertex, range(training)).sum())
            spatial = _choose_spatial(model, layout, training, rows, remote, aggregated=aggregated, timeline=True)
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


def _choose_spatial(
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
    plan = make_plan(
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
    return layout.spatial if plan.across == NONE else plan.across


def agreed(cut: Cut | TimelineCut, mesh: Mesh) -> Cut | TimelineCut:
    """Check that hosts that cut for themselves have come to the same order of vertices, and agree on the same blocks,
    for which they may have had different memory in mind.
    """
    require_one_order(cut.order if isinstance(cut, Cut) else cut.timeline.order, mesh)
    if isinstance(cut, Cut):
        return cut
    plans = Transport(mesh, Ledger()).gather([len(cut.runs), cut.aggregated])
    blocks, aggregated = max(blocks for blocks, _ in plans), all(kept for _, kept in plans)
    runs = cut.runs
    if blocks != len(runs):
        runs = deal(step_work(cut.timeline, cut.vertex_work)[: cut.training], blocks, mesh.layout.time)
    return replace(cut, runs=runs, aggregated=aggregated)


def require_one_trace(traces: Sequence[LayerTrace], layers: Sequence[nn.Module], mesh: Mesh) -> None:
    """Raise on all ranks where a layer asks other verbs on one of them: rows would be taken for others."""
    asked = [[f"{call.verb} {call.width}" for call in trace.calls] for trace in traces]
    for rank, others in enumerate(Transport(mesh, Ledger()).gather(asked)):
        for number, (own, other) in enumerate(zip(asked, others, strict=True)):
            if own != other:
                here, there = (", ".join(words) or "nothing" for words in (own, other))
                raise MismatchError(
                    f"layer {number} ({layer_name(layers[number])}) asks {here} on rank {mesh.rank} and {there} on rank"
                    f" {rank}; forward must ask the same of the view on every rank, in the same order."
                )


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
