"""`Setup.of`: from a model, data, a task and a layout to a rank that can run, one of many or the only one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh
from trisect.config import TrainOptions
from trisect.data.records import Names
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.models.source import HandedModel, ModelSource, NamedModel, stage_of
from trisect.nn.temporal.dynamic import DynamicModel
from trisect.partition.order import choose_order
from trisect.plan.plan import make_plan
from trisect.plan.stages import layer_costs, stage_bounds
from trisect.shards.graph_files import Cut
from trisect.shards.timeline_files import TimelineCut
from trisect.tasks import SPLITS, BoundTask, Task
from trisect.train.assemble import (
    StageModules,
    feature_width,
    labels_of,
    make_decoder,
    name_modules,
    outlined,
    shard_of,
    sizes_of,
    uncut,
    with_read_edges,
)
from trisect.train.checks import check_run
from trisect.train.device import check_device
from trisect.train.program import Program
from trisect.train.ranks import agreed, require_one_trace
from trisect.views.trace import trace_of

_ONE_RANK = Layout()


@dataclass(frozen=True, eq=False)
class Setup:
    """All that the loop needs: a program, its task and the modules that it trains.

    Attributes:
        vertices: the user's vertex of each row, or None where they were not reordered.
        modules: `model` and, where there is one, `decoder`; the names of all parameters begin with these.
        steps: of the timeline; 1 for a static graph.
        layout: as it is run, with the number of blocks that was chosen.
        names: the user's vertex ids, where this process has all of the data and they are not 0, 1, ….
    """

    program: Program
    task: BoundTask
    modules: nn.ModuleDict
    vertices: Tensor | None
    steps: int
    timeline: bool
    layout: Layout = _ONE_RANK
    names: Names | None = None

    @classmethod
    def of(
        cls,
        maker: nn.Module | ModelSource,
        data: Graph | Timeline | Cut | TimelineCut,
        task: Task | str | Mapping[str, Any],
        options: TrainOptions,
        layout: Layout = _ONE_RANK,
        *,
        mesh: Mesh | None = None,
        local_ranks: int = 1,
    ) -> Setup:
        """Bind the task, make the layers of the rank's stage, and read its shard.

        Args:
            data: all of the data, which one rank holds as they are in memory; or a cut of them, of which each rank
                reads its shard.
            layout: of all ranks; without a mesh this is one rank, and the layout says in how many blocks a timeline is
                run, whatever else it says.
            mesh: the place of the rank among all.
            local_ranks: how many share the memory of this host.
        """
        device = check_device(options.device) if mesh is None else mesh.device
        if isinstance(data, (Graph, Timeline)):
            order = choose_order(data) if options.order == "auto" else None
            data = data if order is None else data.reordered(order)
            # snapshots and features of a timeline are brought to the device as they are read
            data = data.to(device) if isinstance(data, Graph) else data
        elif mesh is not None:
            data = agreed(data, mesh)
        labels = labels_of(data, device)
        bound, outline = outlined(maker, data, labels, task, options)
        if isinstance(data, (Graph, Timeline)):
            bound.warn()
            check_run(outline, data, bound, layout, options, device)
            data = with_read_edges(data, outline)
        if isinstance(data, Timeline):
            data = uncut(data, outline, bound.steps("train").stop, layout, options)
        if isinstance(data, TimelineCut):
            layout = replace(layout, blocks=len(data.runs))
        if not isinstance(data, Graph):  # one exchange was chosen when the data were cut
            layout = replace(layout, spatial=data.spatial)
        alone = Layout(blocks=layout.blocks, recompute=layout.recompute, pack=layout.pack)
        mesh = Mesh(alone, 0, device) if mesh is None else replace(mesh, layout=layout)
        stage, stages = mesh.stage_index, mesh.layout.layer
        traces = [trace_of(layer, timeline=isinstance(data, TimelineCut)) for layer in outline.stack]
        if mesh.layout.world > 1:
            require_one_trace(traces, outline.stack, mesh)
        bounds = stage_bounds(layer_costs(traces, aggregated=traces[0].preaggregates), stages)
        own, last = range(bounds[stage], bounds[stage + 1]), stage == stages - 1
        made = maker if isinstance(maker, (NamedModel, HandedModel)) else outline
        model = stage_of(made, feature_width(data), bound.channels, own, data.edge_channels, last=last)
        decoder = make_decoder(bound, model, options)
        head = model.head
        model.to(options.dtype)
        layers = {number: model.layers[number] for number in own}
        trained = model if stages == 1 else StageModules(layers, head if last else None)
        modules = name_modules(trained, decoder if last else None)
        modules.to(device=device, dtype=options.dtype)
        ledger = Ledger()
        shard, starts, sizes = shard_of(
            data, model, mesh, options.dtype, ledger, local_ranks, drops=options.steps.drops
        )
        plan = make_plan(
            model.stack,
            head,
            mesh.layout,
            bounds=bounds,
            rows=sizes_of(starts),
            fetches=bound.reads_pairs and mesh.layout.vertex > 1,
            extra=0 if decoder is None else sum(p.numel() for p in decoder.parameters() if p.requires_grad),
            dtype=options.dtype,
            batches=options.batches if options.step == "chunk" and mesh.layout.chunks > 1 else 1,
            **sizes,
        )
        order = labels.order
        program = Program(
            model,
            decoder,
            bound,
            options.seed,
            mesh=mesh,
            plan=plan,
            shard=shard,
            starts=starts,
            order=order,
            ledger=ledger,
            steps=options.steps,
        )
        # outputs of a task on pairs are those of all vertices
        vertices = order if plan.parts > 1 and bound.reads_pairs else shard.vertices
        steps = labels.steps if isinstance(labels, Timeline) else 1
        return cls(program, bound, modules, vertices, steps, plan.timeline, layout, labels.names)

    @property
    def conv_parameters(self) -> Iterable[str]:
        """Names, in `modules`, of the parameters of spatial layers."""
        model = self.program.model
        spatial = [
            parameter
            for layer, trace in zip(model.layers, self.program.plan.layers, strict=True)
            if isinstance(model, DynamicModel) or trace.spatial
            for parameter in layer.parameters()
        ]
        # a program may know them by other names: a static model on a timeline is wrapped where that is cut
        own = {id(parameter) for parameter in spatial}
        yield from (name for name, parameter in self.modules.named_parameters() if id(parameter) in own)

    @property
    def parameters(self) -> int:
        """Give how many numbers are trained here."""
        return sum(parameter.numel() for parameter in self.modules.parameters())

    def describe(self, parameters: int | None = None) -> str:
        """Say how large the model is (of several stages, all `parameters`), and which steps each split reads."""
        return describe_model(self.parameters if parameters is None else parameters, self.task, timeline=self.timeline)

    def to_user_order(self, rows: Tensor, dim: int = 0) -> Tensor:
        """Put the rows of an output into the user's vertex order."""
        if self.vertices is None:
            return rows
        return rows.index_select(dim, torch.argsort(self.vertices))


def describe_model(parameters: int, task: BoundTask, *, timeline: bool) -> str:
    """Return how many parameters a model has and, of a timeline, which steps each split reads."""
    text = f"{parameters:,} parameters"
    if timeline:
        runs = ((split, task.steps(split)) for split in SPLITS)
        text += "; " + ", ".join(f"{split} steps {run.start} to {run.stop - 1}" for split, run in runs if run)
    return f"{text}; {task.settings}" if task.settings else text
