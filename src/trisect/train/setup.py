"""From a model, data and a task to a program that can run: order, features, adjacency, decoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from trisect.config import TrainOptions
from trisect.data.records import Names
from trisect.errors import ConfigError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.base import Model
from trisect.nn.models.source import AnyModel, ModelSource, full_model
from trisect.nn.temporal.dynamic import DynamicModel
from trisect.ops.memory import free_bytes
from trisect.partition.order import choose_order
from trisect.tasks import SPLITS, BoundTask, Task, TaskContext, make_task
from trisect.train.assemble import make_decoder, name_modules, one_process, with_read_edges
from trisect.train.blocks import with_blocks
from trisect.train.checks import check_fit, check_monitor, require_fit
from trisect.train.device import check_device
from trisect.train.program import Program

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
        model: nn.Module | ModelSource,
        data: Graph | Timeline,
        task: Task | str | Mapping[str, Any],
        options: TrainOptions,
        layout: Layout = _ONE_RANK,
    ) -> Setup:
        """Reorder, bind the task, make the model, prepare the adjacency.

        Args:
            layout: says in how many blocks a timeline is run; this is one rank whatever else it says.
        """
        device = check_device(options.device)
        chosen = make_task(task)
        order = choose_order(data) if options.order == "auto" else None
        data = data if order is None else data.reordered(order)
        if isinstance(data, Timeline):
            # snapshots and features are brought to the device as they are read; a task reads no features
            labels: Graph | Timeline = replace(data, x=None).to(device)
        else:
            data = labels = data.to(device)
        vertices = labels.order
        bound = chosen.bind(labels, TaskContext(options.seed, vertices))
        bound.warn()
        x = data.features().to(options.dtype)
        made = model if isinstance(model, (Model, DynamicModel)) else None
        made = _make(model, x.shape[-1], bound.channels, data.edge_channels) if made is None else made
        check_fit(made, data, bound)
        data = with_read_edges(data, made)
        check_monitor(bound, options, made.out_channels, data.vertices, device)
        decoder = make_decoder(bound, made, options)
        modules = name_modules(made, decoder)
        modules.to(device=device, dtype=options.dtype)
        layout = _settle_blocks(layout, made, bound, options, data, device)
        program = one_process(made, decoder, bound, options, data, x, layout, device)
        timeline = isinstance(data, Timeline)
        steps = data.steps if isinstance(data, Timeline) else 1
        return cls(program, bound, modules, vertices, steps, timeline, layout, data.names)

    @property
    def conv_parameters(self) -> Iterable[str]:
        """Names, in `modules`, of the parameters of spatial layers."""
        model = self.program.model
        spatial = [
            parameter
            for layer, trace in zip(model.layers, self.program.facts.layers, strict=True)
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


def _make(maker: nn.Module | ModelSource, in_channels: int, out_channels: int | None, edge_channels: int) -> AnyModel:
    made = None if isinstance(maker, nn.Module) else full_model(maker, in_channels, out_channels, edge_channels)
    if not isinstance(made, (Model, DynamicModel)):
        raise ConfigError(
            f"the model is a {type(maker if made is None else made).__name__}; give a trisect.nn Model or "
            "DynamicModel, or a function of (in_channels, out_channels) that makes one."
        )
    return made


def _settle_blocks(
    layout: Layout,
    model: AnyModel,
    task: BoundTask,
    options: TrainOptions,
    data: Graph | Timeline,
    device: torch.device,
) -> Layout:
    """Give the layout of this one process, with as many blocks as it or the free memory asks for."""
    training = task.steps("train").stop if isinstance(data, Timeline) else None
    require_fit(layout, model, vertices=data.vertices, training=training)
    if not isinstance(data, Timeline) or training is None:
        return layout
    return with_blocks(layout, model.stack, data, training, options.dtype, free_bytes(device))
