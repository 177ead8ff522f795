"""`fit`: a model, a graph and a task in one call; `Run`: what it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trisect.config import TrainOptions, parse_layout
from trisect.data.describe import notes
from trisect.data.formats.hetero import has_relations
from trisect.data.formats.pyg import timeline_from_pyg
from trisect.data.records import types_text
from trisect.errors import ConfigError, DataError, LayoutError, unknown
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn import DynamicLayer, DynamicModel, Layer, Model
from trisect.nn import options as model_options
from trisect.nn.models.source import AnyModel, ModelMaker, NamedModel, full_model
from trisect.settings.synonyms import with_our_names
from trisect.tasks import Task, make_task
from trisect.train.assemble import context_of, feature_width, name_modules
from trisect.train.device import check_device
from trisect.train.fit_config import config_of
from trisect.train.job import Job
from trisect.train.loop import Result
from trisect.train.outputs.run import Run
from trisect.train.planning import agreed_layout
from trisect.train.processes.listening import Listener, NoListener
from trisect.train.processes.start import run_job
from trisect.train.recorders import Recorder
from trisect.train.run.run_directory import RunDirectory
from trisect.train.run.trackers import require_trackers
from trisect.train.setup import Setup

ModelLike = str | Model | DynamicModel | Sequence[Layer] | Sequence[DynamicLayer]


def fit(
    model: ModelLike,
    graph: Any,
    task: str | Mapping[str, Any] | Task = "node-classification",
    layout: str | Mapping[str, Any] | Layout = "",
    *,
    out: str | Path | None = None,
    resume: bool = False,
    recorder: Recorder | None = None,
    listener: Listener | None = None,
    **options: Any,
) -> Run:
    """Train a model on a graph or a timeline, as `trisect.fit` does, which has the arguments in full; shows nothing and
    writes no report.

    Args:
        listener: is told sentences for the user, and epochs as they end.
    """
    chosen, options = layout_of(layout), with_our_names(options, "the call")
    names = [field.name for field in fields(TrainOptions)]
    own = {key: options.pop(key) for key in names if key in options}
    # without a run directory nobody reads checkpoints, unless a recorder asks for them
    training = TrainOptions(**own) if out is not None else TrainOptions(**{"checkpoint_every": None, **own})
    data = as_data(graph)
    maker = model_maker(model, options, training.seed, data)
    chosen = training.steps.laid_out(chosen)
    job = Job("fit", maker, make_task(task), training, chosen)
    if resume and out is None:
        raise ConfigError("resume is True, and out is not given; say in which run directory the run is.")
    if training.track is not None and out is None:
        raise ConfigError(f"track is {training.track!r}, and out is not given; say in which run directory the run is.")
    require_trackers(training.track)
    if out is not None and not resume:
        RunDirectory.refuse_used(out)
    told = NoListener() if listener is None else listener
    told.say(describe_data(data))
    if chosen.auto:
        chosen, said = agreed_layout(maker, lambda: data, task, training, None, told.say)
        told.say(said)
        chosen = training.steps.laid_out(chosen)
        job = replace(job, layout=chosen)
    if out is not None:
        config = config_of(maker, data, job.task, training, chosen)
        job = replace(job, config=config, run=Path(out), resume=resume)
    outcome = run_job(job, lambda: data, told, recorder=recorder)
    if outcome.setup is not None:
        setup = outcome.setup
        result = Result(**outcome.result, modules=setup.modules, program=setup.program)
        return Run(result, setup, outcome.summary, setup.layout, graph=data)
    modules = _trained_modules(job, data, outcome.parameters)
    result = Result(**outcome.result, modules=modules, program=None)

    def setup_here() -> Setup:
        setup = Setup.of(modules["model"], data, job.task, training)
        setup.modules.load_state_dict(outcome.parameters)
        return setup

    return Run(result, setup_here, outcome.summary, Layout(**outcome.summary["layout"]), graph=data)


def describe_data(data: Graph | Timeline) -> str:
    """Give the sizes of the data in words, and what else a run should say of them, a line each."""
    steps = f", {data.steps:,} steps" if isinstance(data, Timeline) else ""
    edges = data.total_events if isinstance(data, Timeline) else data.edges
    features = "no features" if data.x is None else f"{data.x.shape[-1]:,} features"
    related = [f"relations: {', '.join(data.relations)}"] if data.relations else []
    return "\n".join((f"{data.vertices:,} vertices, {edges:,} edges{steps}, {features}", *related, *notes(data)))


def _trained_modules(job: Job, data: Graph | Timeline, parameters: Mapping[str, Tensor]) -> nn.ModuleDict:
    """Make the model and the decoder of a job here, with the parameters that its ranks have trained."""
    bound = job.task.bind(data, context_of(job.options, data.order))
    model = full_model(job.model, feature_width(data), bound.channels, data.edge_channels)
    decoder = bound.decoder(model.out_channels)
    modules = name_modules(model, decoder)
    modules.to(device=check_device(job.options.device), dtype=job.options.dtype).load_state_dict(parameters)
    return modules


def model_maker(
    model: ModelLike, options: Mapping[str, Any], seed: int, data: Graph | Timeline | None = None
) -> AnyModel | ModelMaker:
    """Make what `Setup.of` takes from a name and options, a model, or a list of layers.

    Args:
        data: whose types of vertices a model by name reads, where it tells types apart.
    """
    own = model_options(model) if isinstance(model, str) else {}
    for name in options:
        if name not in own:
            kind = f"option of training and of model {model}" if isinstance(model, str) else "training option"
            raise ConfigError(unknown(kind, name, (*(field.name for field in fields(TrainOptions)), *own)))
    if isinstance(model, str):
        types = data.vertex_types if isinstance(data, Graph) else ()
        given = {"types": types_text(types)} if types and "types" in own else {}
        return NamedModel(model, {**given, **options}, seed)
    if isinstance(model, Model):
        return model
    layers = list(model) if isinstance(model, Sequence) else []
    if layers and all(isinstance(layer, DynamicLayer) for layer in layers):
        return DynamicModel(layers)
    if layers and all(isinstance(layer, Layer) for layer in layers):
        return Model(layers)
    for number, layer in enumerate(layers):
        if not isinstance(layer, (Layer, DynamicLayer)):
            pyg = "; wrap it: trisect.nn.FromPyG(conv)" if hasattr(layer, "propagate") else ""
            kind = f"layer {number} of the model is a {type(layer).__name__}, which is no layer of trisect.nn"
            raise ConfigError(f"{kind}{pyg or '; write it as one (docs/own.md)'}.")
    raise ConfigError(
        f"the model is a {type(model).__name__}; give a name, a trisect.nn model, or a list of trisect.nn layers."
    )


def as_data(graph: Any) -> Graph | Timeline:
    """Turn what users have into a `Graph` or a `Timeline`."""
    if isinstance(graph, (Graph, Timeline)):
        return graph
    if isinstance(graph, (list, tuple)) or (hasattr(graph, "src") and hasattr(graph, "t")):
        return Timeline.from_record(timeline_from_pyg(graph))
    if hasattr(graph, "edge_index") or has_relations(graph):
        return Graph.from_pyg(graph)
    tail = ". A file is read by Graph.from_table or Timeline.from_table" if isinstance(graph, (str, Path)) else ""
    raise DataError(
        f"graph is a {type(graph).__name__}; give a Graph, a Timeline, or an object of PyG with edge_index{tail}."
    )


def layout_of(layout: str | Mapping[str, Any] | Layout) -> Layout:
    """Return a layout from any form of it that users may give."""
    if isinstance(layout, Layout):
        return layout
    if isinstance(layout, Mapping):
        return Layout(**layout)
    if not isinstance(layout, str):
        raise LayoutError(f"layout is a {type(layout).__name__}; give a text such as 'vertex=2,layer=2', or a Layout.")
    return parse_layout(layout) if layout else Layout()
