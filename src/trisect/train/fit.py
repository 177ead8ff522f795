"""`fit`: a model, a graph and a task in one call, without files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from trisect import __version__
from trisect.config import parse_layout
from trisect.config.schema import LayoutConfig
from trisect.data.pyg import timeline_from_pyg
from trisect.errors import ConfigError, DataError, unknown
from trisect.graph.graph import Graph
from trisect.graph.timeline import Timeline
from trisect.layout import Layout
from trisect.nn import DynamicLayer, DynamicModel, Layer, Model, build
from trisect.nn import options as model_options
from trisect.nn.registry import DYNAMIC
from trisect.train.fit_ranks import Job, train_on_ranks
from trisect.train.loop import NoRecorder, Recorder, Result, Trainer
from trisect.train.options import TrainOptions
from trisect.train.predict import embed, predict
from trisect.train.setup import AnyModel, ModelMaker, Setup, check_device, check_fit
from trisect.train.supported import is_cut
from trisect.train.tasks import Place, Task, make_task

ModelLike = str | Model | DynamicModel | Sequence[Layer] | Sequence[DynamicLayer]


class Run:
    """A finished run; the model holds the parameters of the best epoch.

    Attributes:
        result: everything that was measured.
    """

    def __init__(self, result: Result, setup: Setup | Callable[[], Setup], layout: Layout | None = None) -> None:
        self.result = result
        self.layout = Layout() if layout is None else layout
        self._setup = setup

    @cached_property
    def setup(self) -> Setup:
        """The model on its data in this process, for further outputs."""
        return self._setup if isinstance(self._setup, Setup) else self._setup()

    @property
    def summary(self) -> dict[str, Any]:
        """What summary.json of a run directory has, as far as a call knows it."""
        result = self.result
        return {
            "version": __version__,
            "layout": asdict(self.layout),
            "world": self.layout.world,
            "epochs": result.epochs,
            "stopped_early": result.stopped_early,
            "seconds_per_epoch": result.seconds_per_epoch,
            "loss": result.loss,
            "metrics": result.metrics,
            "monitor": result.monitor,
            "best_epoch": result.best_epoch,
            "communication": result.communication,
            "transfer": result.transfer,
            "memory": result.memory,
            "staleness": result.staleness,
        }

    @property
    def loss(self) -> list[float]:
        """The training loss of each epoch."""
        return self.result.loss

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """`train`, `val`, `test` → measures, at the best epoch."""
        return self.result.metrics

    @property
    def model(self) -> AnyModel:
        """The trained model."""
        return cast("AnyModel", self.result.modules["model"])

    @property
    def decoder(self) -> nn.Module | None:
        """The trained part after it, where the task has one."""
        return dict(self.result.modules.items()).get("decoder")

    def predict(self, steps: range | None = None) -> dict[str, Tensor]:
        """The task's outputs in the user's vertex order: [vertices, …], on a timeline [steps, vertices, …]."""
        return {name: self._shaped(value) for name, value in predict(self.setup, steps).items()}

    def embeddings(self, steps: range | None = None) -> Tensor:
        """[vertices, channels], on a timeline [steps, vertices, channels]."""
        return self._shaped(embed(self.setup, steps))

    @torch.no_grad()
    def score(self, src: Any, dst: Any, step: int = -1) -> Tensor:
        """Of pairs of the user's vertices, what the decoder gives for them from the embeddings of a step:
        [pairs, outputs]. Only for tasks on pairs.
        """
        from trisect.train.tasks.decoders import PairDecoder

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
    timeout: float = 300.0,
    **options: Any,
) -> Run:
    """Train a model.

        >>> graph = trisect.Graph.generate("community", vertices=20_000)                      # doctest: +SKIP
        >>> run = trisect.fit("gcnii", graph, "node-classification", epochs=50, layers=16)    # doctest: +SKIP
        >>> run.metrics["test"]["accuracy"]                                                   # doctest: +SKIP

    Args:
        model: a name (`gcn`, `gcnii`, `cd-gcn`, …), a `trisect.nn` model, or a list of layers.
        graph: a `Graph`, a `Timeline`, or PyG's `Data`, `TemporalData` or list of `Data`.
        task: a name, {name: …, options}, or a `Task`.
        layout: such as `vertex=2,layer=2`, or a `Layout`. Where it cuts, the ranks are processes that are started here
            (no guard around the main module is needed), or under torchrun the world that is found. The model ends up
            with the trained parameters all the same.
        recorder: told of each epoch; under a layout of nothing else.
        timeout: seconds that a rank waits for another before the run is ended.
        **options: of training (`TrainOptions`), and of the model where it is given by name.

    Parameters of a model given by name, and all randomness, are a function of `seed`; torch's global random state is
    neither read nor changed.
    """
    chosen, history = _layout(layout)
    known = {field.name for field in fields(TrainOptions)}
    training = TrainOptions(**{key: value for key, value in options.items() if key in known})
    rest = {key: value for key, value in options.items() if key not in known}
    maker = model_maker(model, rest, training.seed)
    data = as_data(graph)
    told = NoRecorder() if recorder is None else recorder
    if not is_cut(chosen):
        setup = Setup.of(maker, data, task, training, chosen)
        return Run(Trainer(setup, training, told).run(), setup, chosen)
    device = check_device(training.device)
    bound = make_task(task).bind(data, Place(training.seed, data.order))
    made = maker if isinstance(maker, (Model, DynamicModel)) else maker(data.features().shape[-1], bound.channels)
    check_fit(made, data, data.features(), bound)
    job = Job(_Given(made), make_task(task), chosen, history, training, timeout)
    plain, tensors = train_on_ranks(job, data, told)
    decoder = bound.decoder(made.out_channels)
    modules = nn.ModuleDict({"model": made} if decoder is None else {"model": made, "decoder": decoder})
    modules.to(device=device, dtype=training.dtype).load_state_dict(tensors)
    result = Result(**plain, modules=modules, program=None)

    def setup_here() -> Setup:
        setup = Setup.of(made, data, task, training)
        setup.modules.load_state_dict(tensors)
        return setup

    return Run(result, setup_here, chosen)


@dataclass(frozen=True, eq=False)
class _Given:
    """The caller's model, as a maker."""

    model: AnyModel

    def __call__(self, in_channels: int, out_channels: int | None) -> AnyModel:
        return self.model


def model_maker(model: ModelLike, options: Mapping[str, Any], seed: int) -> AnyModel | ModelMaker:
    """What `Setup.of` takes, from a name and options, a model, or a list of layers."""
    if isinstance(model, str):
        return _NamedModel(model, dict(options), seed)
    if options:
        known = sorted(field.name for field in fields(TrainOptions))
        raise ConfigError(unknown("training option", next(iter(options)), known))
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


@dataclass(frozen=True)
class _NamedModel:
    name: str
    options: dict[str, Any]
    seed: int

    def __call__(self, in_channels: int, out_channels: int | None) -> AnyModel:
        """Without out_channels the model gives embeddings as wide as its hidden layers."""
        given = dict(self.options)
        if out_channels is None:
            known = model_options(self.name)
            out_channels = given.get("hidden", known["hidden"].default)
            if self.name in DYNAMIC:
                given["head"] = False  # the decoder reads embeddings
        # layers draw parameters when they are made, before they are drawn again from the seed
        with torch.random.fork_rng(devices=[]):
            return build(self.name, in_channels, out_channels, seed=self.seed, **given)


def as_data(graph: Any) -> Graph | Timeline:
    """A `Graph` or a `Timeline` from what users have."""
    if isinstance(graph, (Graph, Timeline)):
        return graph
    if isinstance(graph, (list, tuple)) or (hasattr(graph, "src") and hasattr(graph, "t")):
        return Timeline.from_record(timeline_from_pyg(graph))
    if hasattr(graph, "edge_index"):
        return Graph.from_pyg(graph)
    raise DataError(
        f"graph is a {type(graph).__name__}; give a Graph, a Timeline, or an object of PyG with edge_index."
    )


def _layout(given: str | Layout) -> tuple[Layout, dict[str, Any]]:
    """The layout, and the parts of its history recipe."""
    if isinstance(given, Layout):
        layout, config = given, LayoutConfig()
    else:
        config = LayoutConfig() if not given or given == "auto" else parse_layout(given)
        layout = config.to_layout()
    return layout, config.history.plain()
