"""`Run`: a finished run in Python, as `fit` gives it and as `load` reads it from its directory."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

import numpy as np
import torch
from torch import Tensor, nn

from trisect.config import Config, TrainOptions
from trisect.config.names import CUSTOM
from trisect.data.ids import IdIndex, read_ids
from trisect.data.later import OnLate
from trisect.data.records import Names
from trisect.errors import ConfigError, DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.models.source import AnyModel
from trisect.tasks import Task, make_task
from trisect.tasks.decoders import PairDecoder
from trisect.tasks.edge_classification import EdgeClassification
from trisect.tasks.link_prediction import LinkPrediction
from trisect.tasks.outputs_only import OutputsOnly
from trisect.train.from_config import ConfiguredData, resolve
from trisect.train.job import named_model
from trisect.train.loop import Result
from trisect.train.outputs.calibration import NOT_FITTED, Calibration, calibrate
from trisect.train.outputs.links import HeldEmbeddings, Linked, LinkScorer, Per, not_probabilities, require_top_k
from trisect.train.outputs.new_data import PredictedData, Say
from trisect.train.outputs.predict import embed, load_parameters, predict, trained_parameters
from trisect.train.outputs.to_pyg import to_pyg
from trisect.train.run.run_directory import RunDirectory
from trisect.train.setup import Setup


class Run:
    """A finished run; the model holds the parameters of the best epoch.

    Attributes:
        result: everything that was measured, where this process trained; None where the run was loaded.
        summary: what summary.json of a run directory has.
        layout: as it was run.
        directory: the run directory, where there is one.
    """

    def __init__(
        self,
        result: Result | None,
        setup: Setup | Callable[[], Setup],
        summary: dict[str, Any],
        layout: Layout,
        *,
        graph: Graph | Timeline | Callable[[], Graph | Timeline],
        directory: RunDirectory | None = None,
        config: Config | None = None,
        calibration: Calibration | None = None,
        class_names: Sequence[str] | None = None,
        continues: bool = True,
    ) -> None:
        self.result, self.summary, self.layout, self.directory = result, summary, layout, directory
        self._setup, self._graph, self._config, self._calibration = setup, graph, config, calibration
        self._class_names, self._continues = class_names, continues
        self._held: tuple[Any, LinkScorer] | None = None
        self._told = False

    def __reduce__(self) -> NoReturn:
        folder = "folder" if self.directory is None else repr(str(self.directory.path))
        written = "write it with trisect.fit(…, out=folder), and " if self.directory is None else ""
        raise TypeError(
            "a Run is neither pickled nor copied, since it holds a model on its data in this process;"
            f" {written}read it where it is needed with trisect.load({folder})."
        )

    @cached_property
    def setup(self) -> Setup:
        """Give the model on its data in this process, for further outputs."""
        return self._setup if isinstance(self._setup, Setup) else self._setup()

    @cached_property
    def graph(self) -> Graph | Timeline:
        """The data that it was trained on, in the user's vertex order; after `on`, the data that it was given."""
        return self._graph if isinstance(self._graph, (Graph, Timeline)) else self._graph()

    @cached_property
    def class_names(self) -> list[str] | None:
        """Names of the classes that the task predicts, in the order of probabilities; None where they are numbers."""
        names = self._class_names
        if names is None and isinstance(getattr(self.setup.task, "task", None), EdgeClassification):
            names = getattr(self.graph, "edge_class_names", None)
        elif names is None:
            names = self.graph.class_names
        return None if names is None else list(names)

    @property
    def loss(self) -> list[float]:
        """Give the training loss of each epoch."""
        return list(self.summary["loss"]) if self.result is None else self.result.loss

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Give `train`, `val`, `test` → measures, at the best epoch."""
        return dict(self.summary["metrics"]) if self.result is None else self.result.metrics

    @property
    def _modules(self) -> nn.ModuleDict:
        return self.setup.modules if self.result is None else self.result.modules

    @property
    def model(self) -> AnyModel:
        """Give the model with the parameters of the best epoch."""
        return cast("AnyModel", self._modules["model"])

    @property
    def decoder(self) -> nn.Module | None:
        """Give the trained part after the model, where the task has one."""
        return dict(self._modules.items()).get("decoder")

    @property
    def names(self) -> Names | None:
        """Give the user's vertex ids; None where they are 0, 1, …."""
        return self.setup.names

    def predict(self, steps: range | None = None) -> dict[str, Any]:
        """Return the task's outputs in the user's vertex order: [vertices, …], on a timeline [steps, vertices, …].

        They are tensors. Where the classes have names, `class_name` has the name of each `class`, as an array of text.
        """
        outputs = predict(self.setup, self._within(steps))
        return self._with_names({name: self._shaped(value) for name, value in outputs.items()})

    def _with_names(self, columns: dict[str, Tensor]) -> dict[str, Any]:
        """Return columns with `class_name` beside `class`, where the classes have names."""
        if "class" not in columns or self.class_names is None:
            return dict(columns)
        number = columns["class"].numpy()
        # a class without a name is called by its number
        more = [str(k) for k in range(len(self.class_names), int(number.max(initial=-1)) + 1)]
        return {**columns, "class_name": np.asarray(self.class_names + more)[number]}

    def embeddings(self, steps: range | None = None) -> Tensor:
        """Give the embeddings: [vertices, channels], on a timeline [steps, vertices, channels]."""
        return self._shaped(embed(self.setup, self._within(steps)))

    def _within(self, steps: range | None) -> range | None:
        """Refuse steps that the data do not have."""
        if steps is None or (isinstance(steps, range) and steps and min(steps) >= 0 and max(steps) < self.setup.steps):
            return steps
        raise ConfigError(f"steps is {steps!r}; give a range within range({self.setup.steps}), which are all steps.")

    # Pairs

    @torch.no_grad()
    def score(self, src: Any, dst: Any, step: int = -1) -> Tensor:
        """Of pairs of the user's vertices, what the decoder gives for them from the embeddings of a step:
        [pairs, outputs]. Only for tasks on pairs.

        The embeddings of the step that was asked for last are kept: further calls run no pass.

        Args:
            src: the user's ids of the sources; numbers 0, 1, … where the data have none.
            dst: those of the targets.
        """
        return self._scorer(step).score(self._vertices(src, "src"), self._vertices(dst, "dst"))

    def links(self, src: Any, dst: Any, step: int = -1) -> dict[str, Any]:
        """Return `score`, `probability` and `calibrated` [pairs] of pairs; of edge classes `class`, `class_name` where
        they have names, and the probability of each.

        `calibrated` is false, and a warning says why, at steps that lie too far from those that probabilities were
        fitted to: scores rank links there, but are not probabilities.
        """
        scorer = self._calibrated(step)
        return self._with_names(scorer.columns(scorer.score(self._vertices(src, "src"), self._vertices(dst, "dst"))))

    def _calibrated(self, step: int) -> LinkScorer:
        """Return the scorer of a step with the calibration; warn where that does not hold at the step."""
        scorer, calibration = self._scorer(step), self.calibration
        if calibration is None:
            return scorer
        if not calibration.is_fitted and not self._told:
            self._told = True
            warnings.warn(NOT_FITTED, stacklevel=3)
        step, counts = self._step(step), self._timeline.event_counts().numpy()
        distance = calibration.distance(step, counts, continues=self._continues)
        if distance is not None:
            warnings.warn(not_probabilities({step: distance}), stacklevel=3)
        return replace(scorer, calibration=calibration, calibrated=distance is None)

    def top_k(self, k: int, per: Per = "all", step: int = -1, *, known: bool = False) -> dict[str, Any]:
        """Return the k best pairs, of all or of each `source`: `src`, `dst` (the user's ids), `score`, `probability`,
        `calibrated` (see `links`).

        Args:
            known: whether pairs that are linked at the step itself may be among them.
        """
        if not isinstance(self._task, LinkPrediction):
            raise ConfigError(f"top_k needs a run of link-prediction, and this one's task is {self._task.name}.")
        require_top_k(k)
        if per not in ("all", "source"):
            raise ConfigError(f"per is {per!r}; it must be all or source.")
        scorer = self._calibrated(step)
        linked = Linked.of_timeline(self._timeline).at(self._step(step))
        src, dst, scores = scorer.top_k(k, per, None if known else linked)
        return {"src": self._ids(src), "dst": self._ids(dst), **scorer.columns(scores[:, None])}

    @cached_property
    def calibration(self) -> Calibration | None:
        """Give how scores become probabilities, fitted to the validation pairs; None for other tasks than links."""
        if not isinstance(self._task, LinkPrediction):
            return None
        if self._calibration is not None:
            return self._calibration
        kept = None if self.directory is None else Calibration.read(self.directory.path)
        if kept is None:
            kept = Calibration(**calibrate(self.setup, lambda own: [own]))
            if self.directory is not None:
                kept.write(self.directory.path)
        return kept

    def _scorer(self, step: int) -> LinkScorer:
        if not isinstance(self.decoder, PairDecoder):
            raise ConfigError("scores of pairs need a task on pairs: link-prediction or edge-classification.")
        step = self._step(step)
        key = step, self._versions()
        if self._held is None or self._held[0] != key:
            z = embed(self.setup, range(step, step + 1))[0]
            memory = Linked.of_timeline(self._timeline).memory(self._task, step)
            self._held = key, LinkScorer(self.decoder.cpu(), HeldEmbeddings(z), memory)
        return self._held[1]

    def _step(self, step: Any) -> int:
        """Return the number of a step, which may count from the end; refuse one that the data do not have."""
        steps = range(self.setup.steps)
        try:
            return steps[operator.index(step)]
        except (IndexError, TypeError):
            raise ConfigError(
                f"step is {step!r}; give a whole number within range({len(steps)}), which are all steps, or a negative"
                " one, which counts from the end."
            ) from None

    @cached_property
    def _tensors(self) -> tuple[Tensor, ...]:
        data = (value for value in vars(self.graph).values() if isinstance(value, Tensor))
        return (*self.model.parameters(), *self.model.buffers(), *data)

    def _versions(self) -> tuple[tuple[int, int], ...]:
        """Return what changes with every change of the parameters or the data in place."""
        # tensors that were made in inference mode have no version, and cannot be changed in place outside of it
        return tuple((tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version) for tensor in self._tensors)

    @property
    def _task(self) -> Task:
        task = getattr(self.setup.task, "task", None)
        if not isinstance(task, Task):
            raise ConfigError(f"{type(self.setup.task).__name__} does not say which task it is; give it `task`.")
        return task

    @property
    def _timeline(self) -> Timeline:
        return cast("Timeline", getattr(self.setup.task, "timeline", None))

    @cached_property
    def _index(self) -> IdIndex:
        return IdIndex(self._timeline.names, self._timeline.vertices)

    def _vertices(self, ids: Any, name: str) -> Tensor:
        if ids is None or isinstance(ids, (str, bytes, int, float)):
            raise DataError(f"{name} is {ids!r}; give a list of ids, such as [{ids!r}].")
        own = read_ids(ids)
        where = self._index.positions(own)
        if (where < 0).any():
            strange = own[int((where < 0).argmax())]
            raise DataError(f"{name} has the id {strange}, which is no vertex of the run's data; leave it out.")
        return torch.from_numpy(where)

    def _ids(self, vertices: Tensor) -> Any:
        names = self._timeline.names
        return vertices if names is None else names[vertices.numpy()]

    # Other data

    def on(self, data: Any, vertices: Any = None, *, on_late: OnLate = "refuse", say: Say = print) -> Run:
        """Give the run on other data, in this process: nothing is trained, and outputs are those of the new data.

        Args:
            data: of a loaded run a table of rows that came later, which is joined to the run's data, or a graph
                directory, which stands alone; of every run a `Graph` or a `Timeline`, which stands alone.
            vertices: beside a table, one of vertices that are new or have changed, as for `trisect predict`.
            on_late: beside a table, what becomes of rows that are not later: `refuse`, or `drop`.
            say: is told what was left out or guessed.
        """
        count = getattr(self.setup.task, "classes", getattr(self.setup.task, "outputs", 1))
        calibration = self.calibration  # of the validation pairs, which other data do not have
        continues = False
        if isinstance(data, (Graph, Timeline)):
            read: Graph | Timeline = data
        elif self._config is None or self._config.data.object is not None:
            raise ConfigError(
                "the run was not loaded from a directory that knows its columns; give on() a Graph or a Timeline."
            )
        else:
            predicted = PredictedData(self._config, data, vertices, on_late=on_late, say=say)
            read, continues = predicted(), predicted.continues
        setup = Setup.of(self.model, read, OutputsOnly(self._task, count), self._options())
        if self.decoder is not None:  # the model is this run's own
            setup.modules["decoder"].load_state_dict(self.decoder.state_dict())
        return Run(
            None,
            setup,
            self.summary,
            self.layout,
            graph=read,
            config=self._config,
            calibration=calibration,
            class_names=self.class_names,
            continues=continues,
        )

    def _options(self) -> TrainOptions:
        if self._config is not None:
            return self._config.train.for_outputs()
        like = next(self.model.parameters())
        return TrainOptions(precision=str(like.dtype).removeprefix("torch."), device=str(like.device))  # type: ignore[arg-type]

    # Other programs

    def export(self, path: str | Path | None = None, form: Literal["state_dict", "pyg"] = "state_dict") -> Any:
        """Give what was trained to other programs.

        Args:
            path: where the parameters are written as safetensors, beside being returned; None: nowhere.
            form: `state_dict`, a plain dictionary of tensors by name (`model.…`, `decoder.…`); or `pyg`, a module of
                PyG's convolutions that gives the model's outputs as module(x, edge_index), in evaluation.
        """
        if form == "pyg":
            module = to_pyg(self.model)
            if path is not None:
                _save(module.state_dict(), path)
            return module
        if form != "state_dict":
            raise ConfigError(f"form is {form!r}; it must be state_dict or pyg.")
        tensors = {name: value.detach().cpu().clone() for name, value in self._modules.state_dict().items()}
        if path is not None:
            _save(tensors, path)
        return tensors

    def save(self, path: str | Path) -> None:
        """Write the parameters as safetensors."""
        self.export(path)

    def _shaped(self, value: Tensor) -> Tensor:
        return value if self.setup.timeline else value[0]

    def __repr__(self) -> str:
        shown = {
            split: {name: round(value, 4) for name, value in measures.items() if isinstance(value, float)}
            for split, measures in self.metrics.items()
        }
        best = self.summary.get("best_epoch")
        return f"Run(epochs={self.summary.get('epochs')}, best_epoch={best}, metrics={shown})"


def load(
    path: str | Path,
    data: Graph | Timeline | None = None,
    model: AnyModel | None = None,
    *,
    data_dir: str | Path | None = None,
) -> Run:
    """Read a finished run from its directory, for outputs in this process.

        >>> run = trisect.load("runs/deep-1")                       # doctest: +SKIP
        >>> run.metrics["test"], run.predict()["class"]             # doctest: +SKIP

    The data are read when an output or the model is first asked for.

    Args:
        data: the `Graph` or `Timeline` that `fit` was given, where the run was made by it.
        model: the model that `fit` was given, where it was no name; it takes the trained parameters.
        data_dir: where named data sets lie.
    """
    directory = RunDirectory.reopen(path)
    summary = directory.summary()
    if summary is None:
        raise ConfigError(f"The run in {path} has not ended (it has no summary.json); let it finish, or resume it.")
    config = directory.config
    handed = {"data": config.data.object is not None, "model": config.model.name == CUSTOM}
    for kind, argument in (("data", data), ("model", model)):
        if handed[kind] and argument is None:
            raise ConfigError(f"The run in {path} was given its {kind} by fit; give it to load as well ({kind}=…).")
    config = config if data is not None else resolve(config, data_dir)

    @cache
    def read() -> Graph | Timeline:
        return ConfiguredData(config)() if data is None else data

    def setup() -> Setup:
        maker = named_model(config) if model is None else model
        made = Setup.of(maker, read(), make_task(config.task.model_dump()), config.train.for_outputs())
        load_parameters(made, trained_parameters(directory), directory)
        return made

    return Run(None, setup, summary, Layout(**summary["layout"]), graph=read, directory=directory, config=config)


def _save(tensors: dict[str, Tensor], path: str | Path) -> None:
    from safetensors.torch import save_file

    save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, str(path))
