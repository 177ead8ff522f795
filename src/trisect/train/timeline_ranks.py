"""A timeline on several ranks: cut the data once, then each rank trains its steps and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from trisect.graph.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.base import Layer
from trisect.nn.dynamic import DynamicLayer, DynamicModel
from trisect.partition.order import choose_order
from trisect.partition.timeline import Method, cut_timeline, deal, step_work
from trisect.runtime.exchange import Exchange
from trisect.runtime.ledger import Ledger
from trisect.runtime.mesh import Mesh
from trisect.train.agreed import require_one_order
from trisect.train.blocks import keeps_aggregation, with_blocks
from trisect.train.cut_program import stage_bounds
from trisect.train.kept import free_bytes
from trisect.train.monitor import check_monitor
from trisect.train.options import TrainOptions
from trisect.train.setup import AnyModel, ModelMaker, Setup
from trisect.train.supported import require_timeline_fit
from trisect.train.tasks import Place, make_task
from trisect.train.tasks.decoders import Decoder
from trisect.train.timeline_program import TimelineCutProgram
from trisect.train.timeline_shares import TimelineCut, read_timeline_part, write_timeline_shares


def cut_timeline_data(
    timeline: Timeline,
    maker: AnyModel | ModelMaker,
    task: Any,
    layout: Layout,
    options: TrainOptions,
    folder: Path,
    *,
    method: Method = "metis",
    free: int | None = None,
) -> None:
    """Check that the layout fits, and write the shares of all ranks.

    Args:
        free: bytes that all ranks of a host may take together; None: what is free here.
    """
    bound = make_task(task).bind(timeline, Place(options.seed, timeline.order))
    width = 2 if timeline.x is None else timeline.x.shape[-1]
    made = maker if isinstance(maker, nn.Module) else maker(width, bound.channels)
    training = bound.steps("train").stop
    model = require_timeline_fit(layout, made, training=training, vertices=timeline.vertices)
    check_monitor(bound, options, model.out_channels, timeline.vertices)
    free = free_bytes(torch.device("cpu")) if free is None else free
    layout = with_blocks(layout, model, timeline, training, options.dtype, free)
    order = choose_order(timeline) if options.order == "auto" else None
    timeline = timeline if order is None else timeline.reordered(order)
    partition = cut_timeline(timeline, layout.vertex, method=method)
    timeline = timeline if layout.vertex == 1 else timeline.reordered(partition.order)
    aggregated = keeps_aggregation(model, timeline, options.dtype, free // 4)
    vertex_work = work_of_vertex(model, aggregated=aggregated)
    runs = deal(step_work(timeline, vertex_work)[:training], layout.blocks, layout.time)
    write_timeline_shares(
        timeline,
        partition,
        runs,
        model,
        folder,
        aggregated=aggregated,
        dtype=options.dtype,
        vertex_work=vertex_work,
    )


def timeline_rank_setup(
    cut: TimelineCut, maker: AnyModel | ModelMaker, task: Any, mesh: Mesh, options: TrainOptions, local_ranks: int = 1
) -> Setup:
    """This rank's share, ready to train. Its modules are those of its stage, under the names of the whole model."""
    require_one_order(cut.timeline.order, mesh)
    cut = _agreed(cut, mesh)
    mesh = replace(mesh, layout=replace(mesh.layout, blocks=len(cut.runs)))
    timeline, layout = cut.timeline, mesh.layout
    bound = make_task(task).bind(timeline, Place(options.seed, timeline.order))
    made = maker if isinstance(maker, nn.Module) else maker(cut.features, bound.channels)
    model = require_timeline_fit(layout, made, training=cut.training, vertices=timeline.vertices)
    decoder = bound.decoder(model.out_channels)
    if isinstance(decoder, Decoder):
        decoder.reset_parameters(options.seed, len(model.layers) + 1)
    made.to(options.dtype)
    bounds = stage_bounds([dynamic_cost(layer) for layer in model.stack], layout.layer)
    own = range(bounds[mesh.stage], bounds[mesh.stage + 1])
    last = mesh.stage == layout.layer - 1
    every = cast("nn.ModuleList", made.layers)
    layers = {number: every[number] for number in own}
    modules = nn.ModuleDict({"model": Stage(layers, getattr(made, "head", None) if last else None)})
    if decoder is not None:
        decoder.to(options.dtype)
        if last:
            modules["decoder"] = decoder
    ledger = Ledger()
    budget = free_bytes(mesh.device) // 4 // local_ranks
    part = read_timeline_part(cut, mesh.way, model, options.dtype, budget, ledger)
    program = TimelineCutProgram(
        model,
        decoder,
        bound,
        options.seed,
        mesh=mesh,
        bounds=bounds,
        part=part,
        starts=cut.starts,
        halo=cut.halo,
        aggregated=cut.aggregated,
        fixed=cut.fixed,
        dtype=options.dtype,
        ledger=ledger,
    )
    # outputs of a task on pairs are those of all vertices
    vertices = timeline.order if bound.whole else part.vertices
    return Setup(program, bound, modules, vertices, timeline.steps, True)


def _agreed(cut: TimelineCut, mesh: Mesh) -> TimelineCut:
    """The same blocks on all ranks: hosts that cut for themselves may have had different memory in mind."""
    found = Exchange(mesh, Ledger()).gather((len(cut.runs), cut.aggregated))
    blocks, aggregated = max(blocks for blocks, _ in found), all(kept for _, kept in found)
    runs = cut.runs
    if blocks != len(runs):
        runs = deal(step_work(cut.timeline, cut.vertex_work)[: cut.training], blocks, mesh.layout.time)
    return replace(cut, runs=runs, aggregated=aggregated)


def work_of_vertex(model: DynamicModel, *, aggregated: bool) -> float:
    """What a vertex costs in a step, in events: products with the weights against rows that are gathered.

    Measured (CD-GCN, two layers of 16, forward and backward): a weight takes half the time of a gathered value.
    """
    weights = 0 if model.head is None else sum(parameter.numel() for parameter in model.head.parameters())
    for layer in model.stack:
        # a weight that evolves is made once a step, not once a vertex
        evolves, size = layer.state_kind == "weight", layer.in_channels * layer.out_channels
        weights += size if evolves else sum(parameter.numel() for parameter in layer.parameters())
    gathered = sum(layer.in_channels for layer in model.stack[1 if aggregated else 0 :])
    return max(1.0, weights / (2.0 * max(1, gathered)))


def dynamic_cost(layer: DynamicLayer) -> float:
    """What a layer costs against others: products of a row with its weights, and the rows that it reads."""
    return float(sum(parameter.numel() for parameter in layer.parameters())) + 20.0 * layer.in_channels


class Stage(nn.Module):
    """The layers of one stage, named by their number in the model, and the head where the stage is the last."""

    def __init__(self, layers: Mapping[int, nn.Module], head: Layer | None) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): layer for number, layer in layers.items()})
        if head is not None:
            self.head = head
