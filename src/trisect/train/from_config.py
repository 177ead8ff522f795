"""A configuration → data → model → training in this process → the files of a run directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trisect.config import Config
from trisect.data.describe import notes
from trisect.data.generate import GENERATORS
from trisect.data.load import check, load
from trisect.data.records import Names, Record, TimelineRecord
from trisect.errors import ConfigError, DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline import Timeline
from trisect.layout import Layout
from trisect.nn import options as model_options
from trisect.settings.nearest import unknown_setting
from trisect.tasks import SPLITS, make_task
from trisect.train.device import check_device
from trisect.train.estimate import estimate_memory
from trisect.train.job import named_model
from trisect.train.loop import Trainer
from trisect.train.outputs.predict import load_parameters, trained_parameters
from trisect.train.processes.listening import Listener, NoListener
from trisect.train.ranks import cut_data
from trisect.train.run.run_directory import RunDirectory, RunRecorder
from trisect.train.run.summary import summarise
from trisect.train.setup import Setup
from trisect.train.supported import require_fit

Say = Callable[[str], None]
_NOBODY = NoListener()


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run that could start now: every setting checked, data read, model built.

    Attributes:
        config: with every option filled in.
        record: the data as they were read, in the user's vertex order and with the user's ids.
    """

    config: Config
    record: Record
    setup: Setup

    def describe(self) -> str:
        """What is about to run, in a few lines."""
        data, model = self.config.data, self.config.model
        return "\n".join(
            (
                f"{data.name or data.generate or data.path}: {describe_record(self.record)}",
                f"{model.name}: {model.layers} layers of {model.hidden}, {describe_setup(self.setup)}",
            )
        )


def prepare(config: Config) -> Prepared:
    """Everything that can go wrong before training goes wrong here; nothing is written.

    Args:
        config: with every option filled in (`resolve`).
    """
    check_device(config.train.device)
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    record = load_record(config)
    setup = build_setup(config, record)
    return Prepared(config, record, setup)


def run(
    prepared: Prepared,
    directory: RunDirectory,
    *,
    resume: bool = False,
    listener: Listener = _NOBODY,
) -> dict[str, Any]:
    """Train, write every file of the run directory but the report, and return the summary."""
    checkpoint, setup = None, prepared.setup
    if resume:
        checkpoint = directory.checkpoints.latest(listener.say)
        listener.say(directory.describe_start(checkpoint))
        directory.continue_from(checkpoint)
    directory.write_plan(setup.program.plan())
    recorder = RunRecorder(directory, on_epoch=listener.epoch)
    try:
        trainer = Trainer(setup, prepared.config.train, recorder)
        if checkpoint is not None:
            trainer.load(checkpoint.tensors, checkpoint.meta)
        result = trainer.run()
    finally:
        recorder.close()
    summary = summarise(
        result,
        setup.layout,
        parameters=setup.parameters,
        memory_bytes=estimate_memory(setup, prepared.record.vertices, setup.layout),
        seconds=[record["seconds"] for record in directory.metrics()],
    )
    directory.write_summary(summary)
    return summary


def restore(directory: RunDirectory, data_dir: str | Path | None = None, say: Say = lambda sentence: None) -> Prepared:
    """The run's data and its model with the parameters of the best epoch, for further outputs."""
    parameters = trained_parameters(directory, say)
    prepared = prepare(resolve(directory.config, data_dir))
    load_parameters(prepared.setup, parameters, directory)
    return prepared


def resolve(config: Config, data_dir: str | Path | None = None) -> Config:
    """The configuration with every option of generator, model and task filled in; unknown ones are refused."""
    data = config.data.model_dump(exclude_none=True)
    check(_source(config))
    if config.data.generate is not None:
        arguments = GENERATORS[config.data.generate].arguments
        data = {**{name: argument.default for name, argument in arguments.items()}, **data}
    if config.data.path is not None:
        data["path"] = str(Path(config.data.path).expanduser().absolute())
    if config.data.name is not None and data_dir is not None:
        data["directory"] = str(Path(data_dir).expanduser().absolute())
    defaults = {name: option.default for name, option in model_options(config.model.name).items()}
    for key in config.model.options:
        if key not in defaults:
            raise ConfigError(unknown_setting("model", key, defaults))
    model = {**defaults, **config.model.model_dump(exclude_none=True)}
    task = make_task(config.task.model_dump())
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in task.options().items()}
    plain = {**config.resolved(), "data": data, "model": model, "task": {"name": config.task.name, **options}}
    return Config.model_validate(plain)


def load_record(config: Config) -> Record:
    """The data as plain arrays, in the user's vertex order."""
    return load(_source(config), data_dir=config.data.directory)


def _source(config: Config) -> dict[str, Any]:
    """The section `data` as `data.load` takes it."""
    return config.data.model_dump(exclude_none=True, exclude={"directory"})


def data_of(config: Config, record: Record) -> Graph | Timeline:
    """The data as models read them."""
    smoothing = config.data.smoothing
    record = replace(record, edge_x=None)  # no layer reads it yet, and merging parallel edges takes a sort
    if not isinstance(record, TimelineRecord):
        if smoothing is not None:
            raise ConfigError("data.smoothing is for timelines, and the data are one graph; leave it out.")
        return Graph.from_record(record)
    window = smoothing.length if smoothing is not None and smoothing.kind != "none" else 1
    for name, length in (("data.smoothing.length", window), ("model.window", config.model.options.get("window", 1))):
        if length > record.steps:
            raise DataError(f"{name} is {length}, but the timeline has {record.steps} steps; use a shorter period.")
    return Timeline.from_record(record, smoothing=None if smoothing is None else smoothing.model_dump())


def build_setup(config: Config, record: Record) -> Setup:
    """The model on its data, ready to train in one process."""
    data = data_of(config, record)
    layout = config.layout
    # what several ranks do in blocks one process need not
    alone = layout if layout.world == 1 else Layout()
    setup = Setup.of(named_model(config), data, config.task.model_dump(), config.train, alone)
    training = setup.task.steps("train").stop if isinstance(data, Timeline) else None
    require_fit(layout, setup.program.model, vertices=data.vertices, training=training)
    return setup


class DataCut:
    """Cuts the data of a resolved configuration into a folder, and knows afterwards how its rows are called.

    Attributes:
        names: the user's vertex ids, or None where they are 0, 1, ….
        vertices, steps: how many.
    """

    def __init__(self, config: Config, layout: Layout, say: Say = lambda sentence: None) -> None:
        self._config, self._layout, self._say = config, layout, say
        self.names: Names | None = None
        self.vertices, self.steps, self.timeline = 0, 1, False

    def __call__(self, folder: Path) -> None:
        """Read the data, check that the layout fits them and the model, and write the shards of all ranks."""
        config, record = self._config, load_record(self._config)
        self._say(describe_record(record))
        self.names, self.vertices = record.names, record.vertices
        if isinstance(record, TimelineRecord):
            self.steps, self.timeline = record.steps, True
        data, task = data_of(config, record), config.task.model_dump()
        cut_data(data, named_model(config), task, self._layout, config.train, folder)


def describe_record(record: Record) -> str:
    """The sizes of the data in words, and what else a run should say of them, a line each."""
    steps = f", {record.steps:,} steps" if isinstance(record, TimelineRecord) else ""
    features = "no features" if record.x is None else f"{record.x.shape[-1]:,} features"
    return "\n".join((f"{record.vertices:,} vertices, {len(record.src):,} edges{steps}, {features}", *notes(record)))


def describe_setup(setup: Setup) -> str:
    """The size of the model, and which steps each split reads, in words."""
    text = f"{setup.parameters:,} parameters"
    if setup.timeline:
        runs = ((split, setup.task.steps(split)) for split in SPLITS)
        text += "; " + ", ".join(f"{split} steps {run.start} to {run.stop - 1}" for split, run in runs if run)
    return text
