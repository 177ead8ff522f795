"""What is refused before any rank starts: layouts, models and settings that do not fit the data or the task."""

from __future__ import annotations

import warnings
from bisect import bisect_right

import torch
from torch import nn

from trisect.config import TrainOptions
from trisect.data.records import types_text
from trisect.errors import ConfigError, DataError, LayoutError
from trisect.graph.graph import Graph
from trisect.graph.relations import find_relation
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.layout.steps import require_steps
from trisect.nn.conv.frompyg import FromPyG
from trisect.nn.conv.hetero_linear import HeteroLinearLayer
from trisect.nn.models.source import AnyModel
from trisect.nn.pyg.native import Form
from trisect.nn.temporal.dynamic import DynamicModel
from trisect.plan.plan import check_asked, check_history
from trisect.plan.stages import layer_costs, stage_bounds
from trisect.settings.nearest import unknown_value
from trisect.tasks import SPLITS, BoundTask
from trisect.tasks.decoders import Decoder
from trisect.train.assemble import feature_width, name_modules, relations_of
from trisect.train.optimizer import kept_of_each
from trisect.views.replayed import require_cuttable
from trisect.views.trace import reads_all_relations, trace_of
from trisect.views.verbs import layer_name

# of each dim of the parameters over which an optimizer is tried
_TRIED = 8


def check_run(
    model: AnyModel,
    data: Graph | Timeline,
    task: BoundTask,
    layout: Layout,
    options: TrainOptions,
    device: torch.device | str = "cpu",
) -> None:
    """Raise where the model, the layout or the monitored measure do not fit the data or the task.

    Args:
        task: bound to all vertices.
        device: where the task's labels are.
    """
    check_fit(model, data, task)
    check_optimizer(model, task, options)
    check_monitor(task, options, model.out_channels, data.vertices, device)
    require_steps(options.steps, timeline=isinstance(data, Timeline), vertices=data.vertices)
    training = task.steps("train").stop if isinstance(data, Timeline) else None
    if options.step == "chunk":
        _require_batches(layout, model, task, options)
    require_fit(layout, model, vertices=data.vertices, training=training, steps=options.step == "chunk")


def check_optimizer(model: AnyModel, task: BoundTask, options: TrainOptions) -> None:
    """Raise where the optimizer or the scheduler cannot be made, or a checkpoint could not hold its state."""
    decoder = task.decoder_outline(model.out_channels)
    parameters = dict(name_modules(model, decoder).named_parameters())
    # small ones of as many dims: it is stepped once, and weights may be larger than memory
    shapes = {name: tuple(min(side, _TRIED) for side in p.shape) for name, p in parameters.items()}
    if not callable(options.optimizer) or isinstance(options.optimizer, type):
        shapes = {str(shape): shape for shape in shapes.values()}  # a class knows parameters by their shapes alone
    sizes = {name: torch.empty(shape, dtype=options.dtype, device="meta") for name, shape in shapes.items()}
    kept_of_each(options, sizes)


def check_fit(model: AnyModel, data: Graph | Timeline, task: BoundTask) -> None:
    """Raise where the model does not fit the data or the task."""
    if isinstance(model, DynamicModel) and not isinstance(data, Timeline):
        raise DataError("a dynamic model needs a timeline, and the data are one graph; use a static model such as gcn.")
    width = feature_width(data)
    _check_types(model, data)
    if model.in_channels != width:
        raise ConfigError(f"the model reads {model.in_channels} features, and the data have {width}; make them equal.")
    head = model.head
    if head is not None and trace_of(head, timeline=True).spatial:
        raise ConfigError(f"head {head} reads neighbours; use one that reads none, or put it among the layers.")
    _check_edges(model, data)
    _check_pyg(model, timeline=isinstance(data, Timeline))
    decoded = task.decoder_outline(model.out_channels) is not None
    if not decoded and task.channels is not None and model.out_channels != task.channels:
        raise ConfigError(f"the model gives {model.out_channels} outputs, and the task needs {task.channels}.")


def _check_types(model: AnyModel, data: Graph | Timeline) -> None:
    """Raise where the first layer reads other types of vertices than the data have; say so where it reads none."""
    if isinstance(data, Timeline):
        return
    first, types = model.stack[0], data.vertex_types
    widths = [kind.features for kind in types]
    if isinstance(first, HeteroLinearLayer):
        if list(first.widths) != widths:
            have = f"features of {', '.join(map(str, widths))} channels a type" if types else "one type of vertices"
            raise ConfigError(f"layer 0, {first}, reads types of other widths, and the data have {have}.")
    elif types:
        warnings.warn(
            f"The data have {len(types)} types of vertices, and the first layer reads the features of all by one"
            f" weight; use rgcn with types: '{types_text(types)}', or begin with HeteroLinearLayer({widths}, …).",
            stacklevel=4,
        )


def _check_pyg(model: AnyModel, *, timeline: bool) -> None:
    """Raise where a convolution of PyG cannot be cut, or reads another matrix than the model prepares."""
    for layer in model.modules():
        if not isinstance(layer, FromPyG) or layer.bipartite:
            continue
        if not timeline:
            require_cuttable(layer)
        elif layer.form is not None and layer.form != Form(model.normalisation, model.self_loops):
            raise ConfigError(
                f"{layer} reads a symmetric normalisation with self-loops on a timeline, and the model's normalisation"
                f" is {model.normalisation}, self_loops {model.self_loops}; make them symmetric and true."
            )


def _check_edges(model: AnyModel, data: Graph | Timeline) -> None:
    """Raise where layers read other features of edges than the data have; say so where none are read."""
    related, every = relations_of(model, data), any(map(reads_all_relations, model.stack))
    if related and not data.relations:
        raise ConfigError(
            "the model reads relations of edges, and the data have none; give `relation` (trisect data ingest "
            "--relation COLUMN)."
        )
    if every and model.edge_channels != len(data.relations):
        raise ConfigError(f"the model reads {model.edge_channels} relations, and the data have {len(data.relations)}.")
    for relation in related:
        find_relation(relation, data.relations)
    if data.relations and not related and not model.edge_channels:
        warnings.warn(
            f"The data have {len(data.relations)} relations, and no layer of the model tells them apart; use rgcn, "
            "recurrent with spatial: rgcn, or HeteroLayer.",
            stacklevel=4,
        )
        return
    if model.edge_channels and data.edge_channels != model.edge_channels:
        have = f"have {data.edge_channels}" if data.edge_channels else "have none (give edge_x)"
        raise ConfigError(f"the model reads {model.edge_channels} features of an edge, and the data {have}.")
    if data.edge_channels and not model.edge_channels and not data.relations:
        warnings.warn(
            f"The data have {data.edge_channels} features an edge, and no layer of the model reads them; use gatv2, "
            "gine, recurrent with spatial: gatv2 or gine, or FromPyG of a convolution with edge_dim.",
            stacklevel=4,
        )


@torch.no_grad()
def check_monitor(
    task: BoundTask, options: TrainOptions, channels: int, vertices: int, device: torch.device | str = "cpu"
) -> None:
    """Raise a ConfigError where `train.monitor` or `train.target` names nothing that is measured, or `train.metrics`
    what the task measures.

    Args:
        task: bound to all vertices.
        channels: of the model's output; outputs of one step are measured as if they were all zero.
        device: where the task's labels are.
    """
    monitor = options.monitor or (f"val.{next(iter(options.metrics))}" if options.metrics else None)
    if monitor is not None:
        _check_measure("train.monitor", monitor, task, options, channels, vertices, device)
    for name in options.target or ():
        _check_measure("train.target", name, task, options, channels, vertices, device)


def _check_measure(
    field: str,
    monitor: str,
    task: BoundTask,
    options: TrainOptions,
    channels: int,
    vertices: int,
    device: torch.device | str,
) -> None:
    """Raise a ConfigError where a field names nothing that is measured."""
    split = monitor.partition(".")[0]
    if split not in SPLITS:
        raise ConfigError(f"{field} is {monitor!r}, but must look like {task.monitor}.")
    steps = task.steps(split)
    if not steps:
        raise ConfigError(f"{field} is {monitor!r}, but there are no steps of {split}; use another split.")
    # what a decoder reads may be narrow: the names of measures do not depend on it, and its weights may not fit
    channels = channels if task.decoder_outline(channels) is None else 1
    decoder = task.decoder(channels)
    if isinstance(decoder, Decoder):
        decoder.reset_parameters(options.seed, 0)
        decoder.to(device)
    zeros = torch.zeros(1, vertices, channels, device=device)
    measured = task.metrics(task.measure(decoder, zeros, steps.start, split))
    taken = next((name for name in options.metrics if name in measured), None)
    if taken is not None:
        raise ConfigError(f"train.metrics has {taken!r}, which the task measures itself; give it another name.")
    if options.metrics:
        next(task.scored(decoder, zeros, steps.start, split), None)
    names = [f"{split}.{key}" for key, value in measured.items() if isinstance(value, float)]
    names += [f"{split}.{name}" for name in options.metrics]
    if measured and monitor not in names:
        raise ConfigError(unknown_value(field, monitor, names))


def require_fit(
    layout: Layout, model: AnyModel, *, vertices: int, training: int | None = None, steps: bool = False
) -> None:
    """Raise a LayoutError for a layout that the model or the data cannot be cut by.

    Args:
        steps: whether chunks are steps, whose sums over rows are those of a batch.
        training: how many steps are trained on; None where the data are one graph.
    """
    if training is None:
        _require_graph(layout, vertices)
    else:
        _require_timeline(layout, model, vertices, training)
    if layout.vertex > 1:
        traces = [trace_of(layer, timeline=training is not None) for layer in model.stack]
        reading = [layer for layer in traces if layer.spatial]
        check_asked(reading, "spatial", layout.spatial, "vertex")
        if training is None and layout.recipe is not None:
            check_history(layout.spatial)
    layers = len(model.stack)
    if layout.layer > layers:
        raise LayoutError(f"layout.layer is {layout.layer}, and the model has {layers} layers; use fewer stages.")
    if layout.layer > 1:
        _require_untied(layout, model, timeline=training is not None)
    if layout.recompute and layout.recipe is not None and training is None:
        raise LayoutError(
            "layout.recompute is true, but chunks that read history cannot be computed again; set layout.chunks to 1 or"
            " layout.history to exact, or leave recompute out."
        )


def _require_batches(layout: Layout, model: AnyModel, task: BoundTask, options: TrainOptions) -> None:
    """Raise where steps of chunks do not go with the layout, the model or the task."""
    if layout.recompute:
        raise LayoutError(
            "layout.recompute is true, and train.step is chunk, whose steps keep the activations of their own rows"
            " alone; leave recompute out."
        )
    if task.reads_pairs:
        raise ConfigError(
            f"train.step is chunk, and {type(task).__name__.removeprefix('Bound')} scores pairs of vertices of all"
            " chunks; use epoch."
        )
    for number, layer in enumerate(model.stack):
        calls = trace_of(layer, timeline=False).calls
        if any(call.verb == "scatter" for call in calls):
            raise LayoutError(
                f"layer {number}, {layer}, scatters to its neighbours (g.scatter), which steps for chunks cannot;"
                " use train.step: epoch."
            )
    if layout.layer > 1 and layout.chunks > options.batches:
        _check_sums(model)


def _check_sums(model: AnyModel) -> None:
    """Raise a LayoutError where a layer asks for sums over the rows of a batch that stages do chunk by chunk."""
    for number, layer in enumerate(model.stack):
        if any(call.verb == "sum" for call in trace_of(layer, timeline=False).calls):
            raise LayoutError(
                f"layer {number}, {layer}, sums over all rows (g.sum), and under layout.layer a batch of several chunks"
                " goes chunk by chunk; set train.batches to layout.chunks, or train.step to epoch."
            )


def _require_untied(layout: Layout, model: AnyModel, *, timeline: bool) -> None:
    """Raise a LayoutError where layers of different stages share a trained parameter, which would train apart."""
    traces = [trace_of(layer, timeline=timeline) for layer in model.stack]
    bounds = stage_bounds(layer_costs(traces, aggregated=traces[0].preaggregates), layout.layer)
    layers: list[tuple[int, nn.Module]] = list(enumerate(model.stack))
    if isinstance(model, DynamicModel) and model.head is not None:
        layers.append((len(model.stack), model.head))
    first: dict[int, tuple[int, nn.Module, int]] = {}
    for number, layer in layers:
        stage = min(bisect_right(bounds, number), layout.layer) - 1
        for name, parameter in layer.named_parameters():
            if not parameter.requires_grad:
                continue
            other, owner, held = first.setdefault(id(parameter), (number, layer, stage))
            if held != stage:
                raise LayoutError(
                    f"layout.layer is {layout.layer}, which puts layer {other} ({layer_name(owner)}) into stage {held}"
                    f" and layer {number} ({layer_name(layer)}) into stage {stage}, and both have the same parameter"
                    f" {name!r}; use fewer stages, so that both are in one, or cut by vertex."
                )


def is_cut(layout: Layout) -> bool:
    """Say whether several processes, or several chunks, do the work; if not, one process does it alone."""
    return layout.world > 1 or layout.chunks > 1


def _require_graph(layout: Layout, vertices: int) -> None:
    for name, usual in (("time", 1), ("blocks", 1), ("temporal", "auto")):
        value = getattr(layout, name)
        if value != usual:
            raise LayoutError(
                f"layout.{name} is {value}, but the data are one graph, which has no steps; leave {name} out."
            )
    if layout.vertex * layout.chunks > vertices:
        raise LayoutError(
            f"layout.vertex × layout.chunks is {layout.vertex} × {layout.chunks}, more than the graph's {vertices} "
            "vertices; use fewer parts or chunks."
        )


def _require_timeline(layout: Layout, model: AnyModel, vertices: int, training: int) -> None:
    if layout.time > training:
        raise LayoutError(
            f"layout.time is {layout.time}, but the timeline has {training} training steps; use at most {training} "
            "ranks along time, or a shorter period."
        )
    if isinstance(layout.blocks, int) and layout.blocks > training:
        raise LayoutError(
            f"layout.blocks is {layout.blocks}, but the timeline has {training} training steps; use fewer blocks, or "
            "auto."
        )
    if layout.vertex > vertices:
        raise LayoutError(
            f"layout.vertex is {layout.vertex}, more than the timeline's {vertices} vertices; use fewer parts."
        )
    layers = [trace_of(layer, timeline=True) for layer in model.stack]
    check_asked([layer for layer in layers if layer.state is not None], "temporal", layout.temporal, "time")
