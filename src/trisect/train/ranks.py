"""A run on several ranks: cut the data once, then each rank trains its share and rank 0 writes the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trisect.errors import LayoutError
from trisect.graph.graph import Graph
from trisect.graph.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.base import Layer, Model
from trisect.partition.timeline import Method
from trisect.runtime.history import History, recipe
from trisect.runtime.mesh import Mesh
from trisect.runtime.neighbours import Gather
from trisect.runtime.static import is_known
from trisect.train.agreed import require_one_order
from trisect.train.checkpoint import Shard, write_shard
from trisect.train.cut_program import CutProgram, stage_bounds
from trisect.train.monitor import check_monitor
from trisect.train.options import TrainOptions
from trisect.train.run_directory import RunDirectory, RunRecorder
from trisect.train.setup import ModelMaker, Setup, check_device
from trisect.train.shares import Cut, read_features, read_share, write_shares
from trisect.train.supported import require_fit
from trisect.train.tasks import Place, make_task
from trisect.train.tasks.decoders import Decoder
from trisect.train.timeline_ranks import cut_timeline_data, timeline_rank_setup
from trisect.train.timeline_shares import TimelineCut


def history_of(layout: Layout, given: str | Mapping[str, Any]) -> History | None:
    """The recipe of that name or with these parts; None where nothing is stale: one chunk, or `exact`."""
    found = recipe(given)
    return None if layout.chunks == 1 else found


def cut_data(
    graph: Graph | Timeline,
    maker: ModelMaker,
    task: Any,
    layout: Layout,
    options: TrainOptions,
    folder: Path,
    method: Method = "metis",
) -> None:
    """Check that the layout fits, and write the shares of all ranks; `method` cuts the vertices of a timeline."""
    check_device(options.device)
    if isinstance(graph, Timeline):
        cut_timeline_data(graph, maker, task, layout, options, folder, method=method)
        return
    bound = make_task(task).bind(graph, Place(options.seed, graph.order))
    model = maker(graph.features().shape[1], bound.channels)
    if not isinstance(model, Model):
        raise LayoutError("a dynamic model needs a timeline, and the data are one graph; use a static model.")
    require_fit(layout, layers=len(model.stack), vertices=graph.vertices)
    check_monitor(bound, options, model.out_channels, graph.vertices)
    bound.restrict(torch.zeros(0, dtype=torch.int64))
    write_shares(
        graph,
        layout,
        model.normalisation,
        self_loops=model.self_loops,
        folder=folder,
        reorder=options.order == "auto",
    )


def rank_setup(
    cut: Cut | TimelineCut,
    maker: ModelMaker,
    task: Any,
    mesh: Mesh,
    options: TrainOptions,
    history: History | None,
    local_ranks: int = 1,
) -> Setup:
    """This rank's share, ready to train. Its modules are those of its stage, under the names of the whole model.

    Args:
        local_ranks: how many share the memory of this host.
    """
    if isinstance(cut, TimelineCut):
        return timeline_rank_setup(cut, maker, task, mesh, options, local_ranks)
    require_one_order(cut.order, mesh)
    labels = cut.labels()
    bound = make_task(task).bind(labels, Place(options.seed, labels.order))
    model = maker(cut.features, bound.channels)
    if not isinstance(model, Model):
        raise LayoutError("a dynamic model needs a timeline, and the data are one graph; use a static model.")
    decoder = bound.decoder(model.out_channels)
    if isinstance(decoder, Decoder):
        decoder.reset_parameters(options.seed, len(model.layers) + 1)
    model.to(options.dtype)
    bounds = stage_bounds(layer_costs(model.stack), mesh.layout.layer)
    own = range(bounds[mesh.stage], bounds[mesh.stage + 1])
    last = mesh.stage == mesh.layout.layer - 1
    modules = nn.ModuleDict({"model": _Stage({number: model.stack[number] for number in own})})
    if decoder is not None:
        decoder.to(options.dtype)
        if last:
            modules["decoder"] = decoder
    program = CutProgram(
        model,
        decoder if last else None,
        bound,
        options.seed,
        mesh=mesh,
        bounds=bounds,
        share=read_share(cut, mesh.way),
        features=partial(read_features, cut, mesh.way, options.dtype),
        dtype=options.dtype,
        positions=cut.rows(mesh.way),
        order=cut.order,
        remote=cut.remote,
        history=history,
    )
    return Setup(program, bound, modules, cut.order[cut.rows(mesh.way)], 1, False)


def layer_costs(layers: Sequence[Layer]) -> list[float]:
    """What each layer costs against the others: products of a row with the weights, and the rows that it reads.

    Twenty neighbours a row are assumed. An element of a neighbour takes as long as about ten products (measured with
    float32, hidden 100, one thread); a first layer whose aggregation is known reads none.
    """
    read = [layer.spatial and not (number == 0 and is_known(layer)) for number, layer in enumerate(layers)]
    return [
        layer.in_channels * layer.out_channels + (200.0 * layer.message_channels if reads else 0.0)
        for layer, reads in zip(layers, read, strict=True)
    ]


class _Stage(nn.Module):
    """The layers of one stage, named by their number in the model."""

    def __init__(self, layers: Mapping[int, Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): layer for number, layer in layers.items()})


class RankRecorder(RunRecorder):
    """Rank 0 writes metrics and the manifest; every rank its events and its shard of a checkpoint.

    Parameters are the same on all ways and moments of a stage: the first of both writes them.
    """

    def __init__(
        self,
        directory: RunDirectory,
        mesh: Mesh,
        gather: Gather,
        on_epoch: Callable[[Mapping[str, Any]], None] = lambda record: None,
    ) -> None:
        super().__init__(directory, rank=mesh.rank, on_epoch=on_epoch)
        self._run, self._mesh, self._gather = directory, mesh, gather

    def checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, best: bool) -> None:
        """All shards, then the manifest."""
        epoch = int(meta["epoch"])
        checkpoints = self._run.checkpoints
        draft = str(checkpoints.draft(epoch)) if self._mesh.rank == 0 else None
        draft = self._gather(draft)[0]
        writes = self._mesh.way == 0 and self._mesh.moment == 0
        own = {k: v for k, v in tensors.items() if writes or k.startswith("program.")}
        shards: list[Shard] = self._gather(write_shard(Path(str(draft)), self._mesh.rank, own))
        if self._mesh.rank == 0:
            checkpoints.commit(Path(str(draft)), shards, meta, epoch=epoch, best=best)
        self._gather(None)
