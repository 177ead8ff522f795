"""From a model, data and a task to a program that can run: order, features, adjacency, decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from trisect.errors import ConfigError, DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.base import Model
from trisect.nn.dynamic import DynamicModel
from trisect.partition.order import choose_order
from trisect.runtime.stream import SnapshotStream
from trisect.train.blocks import with_blocks
from trisect.train.kept import free_bytes, keep_first_aggregation
from trisect.train.options import TrainOptions
from trisect.train.programs import Program, StaticProgram, TimelineProgram
from trisect.train.supported import require_fit, require_timeline_fit
from trisect.train.tasks import BoundTask, Place, Task, make_task
from trisect.train.tasks.decoders import Decoder
from trisect.train.timeline_program import one_rank

AnyModel = Model | DynamicModel
ModelMaker = Callable[[int, int | None], AnyModel]
_WHOLE = Layout()


@dataclass(frozen=True, eq=False)
class Setup:
    """All that the loop needs.

    Attributes:
        vertices: the user's vertex of each row, or None where they were not reordered.
        modules: `model` and, where there is one, `decoder`; the names of all parameters begin with these.
        steps: of the timeline; 1 for a static graph.
    """

    program: Program
    task: BoundTask
    modules: nn.ModuleDict
    vertices: Tensor | None
    steps: int
    timeline: bool

    @classmethod
    def of(
        cls,
        model: nn.Module | ModelMaker,
        data: Graph | Timeline,
        task: Task | str | Mapping[str, Any],
        options: TrainOptions,
        layout: Layout = _WHOLE,
    ) -> Setup:
        """Reorder, bind the task, make the model, prepare the adjacency.

        Args:
            layout: says in how many blocks a timeline is run; this is one rank whatever else it says.
        """
        device = check_device(options.device)
        chosen = make_task(task)
        order = choose_order(data) if options.order == "auto" else None
        data = (data if order is None else data.reordered(order)).to(device)
        vertices = data.order
        bound = chosen.bind(data, Place(options.seed, vertices))
        x = data.features().to(options.dtype)
        made = model if isinstance(model, (Model, DynamicModel)) else _make(model, x.shape[-1], bound.channels)
        check_fit(made, data, x, bound)
        decoder = bound.decoder(made.out_channels)
        if isinstance(decoder, Decoder):
            decoder.reset_parameters(options.seed, len(made.layers) + 1)
        modules = nn.ModuleDict({"model": made} if decoder is None else {"model": made, "decoder": decoder})
        modules.to(device=device, dtype=options.dtype)
        program = _in_blocks(made, decoder, bound, options, data, x, layout)
        if program is None:
            program = _program(made, decoder, bound, options.seed, vertices, data, x)
        timeline = isinstance(data, Timeline)
        return cls(program, bound, modules, vertices, data.steps if isinstance(data, Timeline) else 1, timeline)

    @property
    def conv_parameters(self) -> Iterable[str]:
        """Names, in `modules`, of the parameters of spatial layers."""
        model = self.program.model
        spatial = [
            parameter
            for layer in model.layers
            if isinstance(model, DynamicModel) or getattr(layer, "spatial", False)
            for parameter in layer.parameters()
        ]
        # a program may know them by other names: a static model on a timeline is wrapped where that is cut
        own = {id(parameter) for parameter in spatial}
        yield from (name for name, parameter in self.modules.named_parameters() if id(parameter) in own)

    def to_user_order(self, rows: Tensor, dim: int = 0) -> Tensor:
        """Rows of an output in the user's vertex order."""
        if self.vertices is None:
            return rows
        return rows.index_select(dim, torch.argsort(self.vertices))


def check_device(name: str) -> torch.device:
    """The device of that name, or a ConfigError where it does not exist."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"train.device is {name!r}, which is no device; use cpu or cuda:0.") from None
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise ConfigError(f"train.device is {name!r}, and this machine has {count} CUDA devices; use cpu.")
    elif device.type != "cpu":
        raise ConfigError(f"train.device is {name!r}; use cpu or cuda.")
    return device


def _make(maker: nn.Module | ModelMaker, in_channels: int, out_channels: int | None) -> AnyModel:
    made = None if isinstance(maker, nn.Module) else maker(in_channels, out_channels)
    if not isinstance(made, (Model, DynamicModel)):
        raise ConfigError(
            f"the model is a {type(maker if made is None else made).__name__}; give a trisect.nn Model or "
            "DynamicModel, or a function of (in_channels, out_channels) that makes one."
        )
    return made


def check_fit(model: AnyModel, data: Graph | Timeline, x: Tensor, task: BoundTask) -> None:
    """Raise where the model does not fit the data or the task."""
    if isinstance(model, DynamicModel) and not isinstance(data, Timeline):
        raise DataError("a dynamic model needs a timeline, and the data are one graph; use a static model such as gcn.")
    if model.in_channels != x.shape[-1]:
        raise ConfigError(f"the model reads {model.in_channels} features, and the data have {x.shape[-1]}.")
    decoded = task.decoder(model.out_channels) is not None
    if not decoded and task.channels is not None and model.out_channels != task.channels:
        raise ConfigError(f"the model gives {model.out_channels} outputs, and the task needs {task.channels}.")


def _in_blocks(
    model: AnyModel,
    decoder: nn.Module | None,
    task: BoundTask,
    options: TrainOptions,
    data: Graph | Timeline,
    x: Tensor,
    layout: Layout,
) -> Program | None:
    """A program that runs a timeline block by block, where the layout or the free memory asks for it."""
    if layout.blocks == 1:
        return None
    if isinstance(data, Graph):
        require_fit(layout, layers=len(model.layers), vertices=data.vertices)
        return None
    training, free = task.steps("train").stop, free_bytes(data.device)
    layout = Layout(blocks=layout.blocks)
    dynamic = require_timeline_fit(layout, model, training=training, vertices=data.vertices)
    layout = with_blocks(layout, dynamic, data, training, options.dtype, free)
    if layout.blocks == 1:
        return None
    data = replace(data, x=x)  # degrees, where there are no features, are known by now
    return one_rank(dynamic, decoder, task, options.seed, data, layout, options.dtype, free // 4)


def _program(
    model: AnyModel,
    decoder: nn.Module | None,
    task: BoundTask,
    seed: int,
    vertices: Tensor | None,
    data: Graph | Timeline,
    x: Tensor,
) -> Program:
    budget = free_bytes(x.device) // 4
    values = torch.float64 if x.dtype == torch.float64 else torch.float32
    if isinstance(data, Graph):
        adjacency = data.normalised(model.normalisation, self_loops=model.self_loops, dtype=values)
        keep = x.numel() * x.element_size() <= budget
        return StaticProgram(model, decoder, task, seed, vertices, x, adjacency, keep=keep)  # type: ignore[arg-type]
    snapshots = SnapshotStream(
        data, model.normalisation, self_loops=model.self_loops, dtype=values, device=x.device, keep_bytes=budget
    )
    aggregated = keep_first_aggregation(model, x, snapshots, budget) if isinstance(model, DynamicModel) else None
    program = TimelineProgram(model, decoder, task, seed, vertices, x, snapshots, aggregated)
    program.ledger = snapshots.ledger
    return program
