"""`fit`: a model, a graph and a task in one call, without files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from trisect.config import TrainOptions, parse_layout
from trisect.data.formats.pyg import timeline_from_pyg
from trisect.errors import ConfigError, DataError, unknown
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn import DynamicLayer, DynamicModel, Layer, Model
from trisect.nn import options as model_options
from trisect.nn.models.source import AnyModel, ModelMaker, NamedModel, full_model
from trisect.tasks import Task, TaskContext, make_task
from trisect.train.assemble import feature_width, name_modules
from trisect.train.device import check_device
from trisect.train.job import Job
from trisect.train.loop import NoRecorder, Recorder, Result
from trisect.train.outputs.predict import embed, predict
from trisect.train.planning import choose_layout
from trisect.train.processes.listening import NoListener
from trisect.train.processes.start import run_job
from trisect.train.setup import Setup

ModelLike = str | Model | DynamicModel | Sequence[Layer] | Sequence[DynamicLayer]


class Run:
    """A finished run; the model holds the parameters of the best epoch.

    Attributes:
        result: everything that was measured.
        summary: what summary.json of a run directory has.
        layout: as it was run.
    """

    def __init__(
        self, result: Result, setup: Setup | Callable[[], Setup], summary: dict[str, Any], layout: Layout
    ) -> None:
        self.result, self.summary, self.layout = result, summary, layout
        self._setup = setup

    @cached_property
    def setup(self) -> Setup:
        """Give the model on its data in this process, for further outputs."""
        return self._setup if isinstance(self._setup, Setup) else self._setup()

    @property
    def loss(self) -> list[float]:
        """Give the training loss of each epoch."""
        return self.result.loss

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Give `train`, `val`, `test` → measures, at the best epoch."""
        return self.result.metrics

    @property
    def model(self) -> AnyModel:
        """Give the trained model."""
        return cast("AnyModel", self.result.modules["model"])

    @property
    def decoder(self) -> nn.Module | None:
        """Give the trained part after the model, where the task has one."""
        return dict(self.result.modules.items()).get("decoder")

    def predict(self, steps: range | None = None) -> dict[str, Tensor]:
        """Give the task's outputs in the user's vertex order: [vertices, …], on a timeline [steps, vertices, …]."""
        return {name: self._shaped(value) for name, value in predict(self.setup, steps).items()}

    def embeddings(self, steps: range | None = None) -> Tensor:
        """Give the embeddings: [vertices, channels], on a timeline [steps, vertices, channels]."""
        return self._shaped(embed(self.setup, steps))

    @torch.no_grad()
    def score(self, src: Any, dst: Any, step: int = -1) -> Tensor:
        """Of pairs of the user's vertices, what the decoder gives for them from the embeddings of a step:
        [pairs, outputs]. Only for tasks on pairs.
        """
        from trisect.tasks.decoders import PairDecoder

        if not isinstance(self.decoder, PairDecoder):
            raise ConfigError("scores of pairs need a task on pairs: link-prediction or edge-classification.")
        step = range(self.setup.steps)[step]
        z = embed(self.setup, range(step, step + 1))[0]
        rows = [torch.as_tensor(ends, dtype=torch.int64) for ends in (src, dst)]
        scores: Tensor = self.decoder.cpu()(z, *rows)
        return scores

    def save(self, path: str | Path) -> None:
        """Write the parameters as safetensors."""
        from safetensors.torch import save_file

        tensors = {name: value.detach().cpu().contiguous() for name, value in self.result.modules.state_dict().items()}
        save_file(tensors, str(path))

    def _shaped(self, value: Tensor) -> Tensor:
        return value if self.setup.timeline else value[0]

    def __repr__(self) -> str:
        shown = {
            split: {name: round(value, 4) for name, value in measures.items() if isinstance(value, float)}
            for split, measures in self.metrics.items()
        }
        return f"Run(epochs={self.result.epochs}, best_epoch={self.result.best_epoch}, metrics={shown})"


def fit(
    model: ModelLike,
    graph: Any,
    task: str | Mapping[str, Any] | Task = "node-classification",
    layout: str | Layout = "",
    *,
    recorder: Recorder | None = None,
    **options: Any,
) -> Run:
    """Train a model on a graph or a timeline, in one process or under a layout.

        >>> graph = trisect.Graph.generate("community", vertices=20_000)                      # doctest: +SKIP
        >>> run = trisect.fit("gcnii", graph, "node-classification", epochs=50, layers=16)    # doctest: +SKIP
        >>> run.metrics["test"]["accuracy"]                                                   # doctest: +SKIP

    Args:
        model: a name (`gcn`, `gcnii`, `cd-gcn`, …), a `trisect.nn` model, or a list of layers.
        graph: a `Graph`, a `Timeline`, or PyG's `Data`, `TemporalData` or list of `Data`.
        task: a name, {name: …, options}, or a `Task`.
        layout: such as `vertex=2,layer=2`, a `Layout`, or `auto`: what the planner picks. Where it cuts, the ranks are
            processes that are started here
            (no guard around the main module is needed), or under torchrun the world that is found. The model ends up
            with the trained parameters all the same.
        recorder: receives epochs, events and checkpoints in one process; only epochs when the layout uses several.
        **options: of training (`TrainOptions`), and of the model where it is given by name.

    Parameters of a model given by name, and all randomness, are a function of `seed`; torch's global random state is
    neither read nor changed.
    """
    chosen = _layout(layout)
    names = [field.name for field in fields(TrainOptions)]
    own = {key: options.pop(key) for key in names if key in options}
    # nobody reads checkpoints here unless a recorder asks for them
    training = TrainOptions(**{"checkpoint_every": None, **own})
    maker = model_maker(model, options, training.seed)
    data = as_data(graph)
    if chosen.auto:
        chosen, _ = choose_layout(maker, data, task, training)
    job = Job("fit", maker, make_task(task), training, chosen)
    told = NoRecorder() if recorder is None else recorder
    outcome = run_job(job, lambda: data, _Told(told), recorder=told)
    if outcome.setup is not None:
        setup = outcome.setup
        result = Result(**outcome.result, modules=setup.modules, program=setup.program)
        return Run(result, setup, outcome.summary, setup.layout)
    modules = _trained_modules(job, data, outcome.parameters)
    result = Result(**outcome.result, modules=modules, program=None)

    def setup_here() -> Setup:
        setup = Setup.of(modules["model"], data, job.task, training)
        setup.modules.load_state_dict(outcome.parameters)
        return setup

    return Run(result, setup_here, outcome.summary, Layout(**outcome.summary["layout"]))


def _trained_modules(job: Job, data: Graph | Timeline, parameters: Mapping[str, Tensor]) -> nn.ModuleDict:
    """Make the model and the decoder of a job here, with the parameters that its ranks have trained."""
    bound = job.task.bind(data, TaskContext(job.options.seed, data.order))
    model = full_model(job.model, feature_width(data), bound.channels)
    decoder = bound.decoder(model.out_channels)
    modules = name_modules(model, decoder)
    modules.to(device=check_device(job.options.device), dtype=job.options.dtype).load_state_dict(parameters)
    return modules


class _Told(NoListener):
    """Hands epochs on to a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def epoch(self, record: Mapping[str, Any]) -> None:
        self._recorder.epoch(record)


def model_maker(model: ModelLike, options: Mapping[str, Any], seed: int) -> AnyModel | ModelMaker:
    """Make what `Setup.of` takes from a name and options, a model, or a list of layers."""
    own = model_options(model) if isinstance(model, str) else {}
    for name in options:
        if name not in own:
            kind = f"option of training and of model {model}" if isinstance(model, str) else "training option"
            raise ConfigError(unknown(kind, name, (*(field.name for field in fields(TrainOptions)), *own)))
    if isinstance(model, str):
        return NamedModel(model, dict(options), seed)
    if isinstance(model, (Model, DynamicModel)):
        return model
    layers = list(model) if isinstance(model, Sequence) else []
    if layers and all(isinstance(layer, DynamicLayer) for layer in layers):
        return DynamicModel(layers)  # type: ignore[arg-type]
    if layers and all(isinstance(layer, Layer) for layer in layers):
        return Model(layers)  # type: ignore[arg-type]
    raise ConfigError(
        f"the model is a {type(model).__name__}; give a name, a trisect.nn model, or a list of trisect.nn layers."
    )


def as_data(graph: Any) -> Graph | Timeline:
    """Turn what users have into a `Graph` or a `Timeline`."""
    if isinstance(graph, (Graph, Timeline)):
        return graph
    if isinstance(graph, (list, tuple)) or (hasattr(graph, "src") and hasattr(graph, "t")):
        return Timeline.from_record(timeline_from_pyg(graph))
    if hasattr(graph, "edge_index"):
        return Graph.from_pyg(graph)
    raise DataError(
        f"graph is a {type(graph).__name__}; give a Graph, a Timeline, or an object of PyG with edge_index."
    )


def _layout(layout: str | Layout) -> Layout:
    if isinstance(layout, Layout):
        return layout
    return parse_layout(layout) if layout else Layout()
