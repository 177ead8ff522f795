"""A configuration → data → model → training → the files of a run directory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from trisect import __version__
from trisect.config import Config
from trisect.config.nearest import unknown_setting, unknown_value
from trisect.data.generate import GENERATORS
from trisect.data.load import check, load
from trisect.data.records import Record, TimelineRecord
from trisect.errors import ConfigError, DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline import Timeline
from trisect.layout import Layout
from trisect.nn import options as model_options
from trisect.runtime.history import recipe
from trisect.train.estimate import estimate_memory
from trisect.train.fit import model_maker
from trisect.train.loop import NoRecorder, Result, Trainer
from trisect.train.options import TrainOptions
from trisect.train.predict import load_parameters, trained_parameters
from trisect.train.programs import Program
from trisect.train.run_directory import RunDirectory, RunRecorder
from trisect.train.setup import Setup, check_device
from trisect.train.supported import is_cut, require_fit, require_timeline_fit
from trisect.train.tasks import SPLITS, make_task
from trisect.train.together import RankProgram

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run that could start now: every setting checked, data read, model built.

    Attributes:
        config: with every option filled in.
        record: the data as they were read, in the user's vertex order and with the user's ids.
    """

    config: Config
    layout: Layout
    record: Record
    setup: Setup
    options: TrainOptions

    def describe(self) -> str:
        """What is about to run, in a few lines."""
        data, model = self.config.data, self.config.model
        return "\n".join(
            (
                f"{data.name or data.generate or data.path}: {describe_record(self.record)}",
                f"{model.name}: {model.layers} layers of {model.hidden}, {describe_setup(self.setup)}",
            )
        )


def prepare(config: Config, data_dir: str | Path | None = None) -> Prepared:
    """Everything that can go wrong before training goes wrong here; nothing is written."""
    config = resolve(config, data_dir)
    layout = check_layout(config)
    check_device(config.train.device)
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    record = load_record(config)
    setup = build_setup(config, record)
    return Prepared(config, settled_layout(layout, setup.program), record, setup, train_options(config))


def run(
    prepared: Prepared,
    directory: RunDirectory,
    *,
    resume: bool = False,
    say: Say = lambda sentence: None,
    on_epoch: Callable[[Mapping[str, Any]], None] = lambda record: None,
) -> dict[str, Any]:
    """Train, write every file of the run directory but the report, and return the summary."""
    trainer_state = None
    if resume:
        checkpoint = directory.checkpoints.latest(say)
        if checkpoint is None:
            say(f"There is no checkpoint in {directory.path} yet; starting from the first epoch.")
        else:
            say(f"Continuing after epoch {checkpoint.epoch}.")
            trainer_state = (checkpoint.tensors, checkpoint.meta)
        directory.continue_from(checkpoint)
    recorder = RunRecorder(directory, on_epoch=on_epoch)
    try:
        trainer = Trainer(prepared.setup, prepared.options, recorder)
        if trainer_state is not None:
            trainer.load(*trainer_state)
        result = trainer.run()
    finally:
        recorder.close()
    summary = summarise(prepared, result, directory.metrics())
    directory.write_summary(summary)
    return summary


def restore(directory: RunDirectory, data_dir: str | Path | None = None, say: Say = lambda sentence: None) -> Prepared:
    """The run's data and its model with the parameters of the best epoch, for further outputs."""
    parameters = trained_parameters(directory, say)
    prepared = prepare(directory.config, data_dir)
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
    known = {name: option.default for name, option in model_options(config.model.name).items()}
    for key in config.model.options:
        if key not in known:
            raise ConfigError(unknown_setting("model", key, known))
    model = {**known, **config.model.model_dump(exclude_none=True)}
    task = make_task(config.task.model_dump())
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in task.options().items()}
    plain = config.resolved()
    if config.layout.chunks > 1 and not config.layout.auto:
        plain["layout"]["history"] = _resolved_history(config.layout.history.plain())
    return Config.model_validate({**plain, "data": data, "model": model, "task": {"name": config.task.name, **options}})


def _resolved_history(given: dict[str, Any]) -> dict[str, Any]:
    """The recipe with every part filled in."""
    found = recipe(given)
    return given if found is None else {"preset": given["preset"], **found.parts()}


def check_layout(config: Config) -> Layout:
    """The layout to run; `auto` is the one that this version has."""
    return config.layout.to_layout()


def load_record(config: Config) -> Record:
    """The data as plain arrays, in the user's vertex order."""
    return load(_source(config), data_dir=config.data.directory)


def _source(config: Config) -> dict[str, Any]:
    """The section `data` as `data.load` takes it."""
    return config.data.model_dump(exclude_none=True, exclude={"directory"})


def data_of(config: Config, record: Record) -> Graph | Timeline:
    """The data as models read them."""
    smoothing = config.data.smoothing
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
    model = config.model.model_dump(exclude_none=True)
    maker = model_maker(model.pop("name"), model, config.train.seed)
    options, layout = train_options(config), config.layout.to_layout()
    # what several ranks do in blocks one process need not
    setup = Setup.of(maker, data, config.task.model_dump(), options, layout if layout.world == 1 else Layout())
    made = setup.modules["model"]
    if isinstance(data, Timeline):
        if is_cut(layout) or layout.blocks != 1:
            require_timeline_fit(layout, made, training=setup.task.steps("train").stop, vertices=data.vertices)
    else:
        require_fit(layout, layers=len(setup.program.model.layers), vertices=data.vertices)
    if options.monitor is not None:
        _check_monitor(setup, options, options.monitor)
    return setup


def settled_layout(layout: Layout, program: Program) -> Layout:
    """The layout as it is run: with the number of blocks that was chosen."""
    if isinstance(program, RankProgram):
        return program.mesh.layout
    return replace(layout, blocks=1)


def _check_monitor(setup: Setup, options: TrainOptions, monitor: str) -> None:
    """Measure once, so that a measure that the task does not have is noticed now and not after the first epochs."""
    split = monitor.partition(".")[0]
    if split not in SPLITS:
        raise ConfigError(f"train.monitor is {monitor!r}, but must look like {setup.task.monitor}.")
    measured = Trainer(setup, options, NoRecorder()).evaluate((split,), epoch=0)[split]
    known = [f"{split}.{key}" for key, value in measured.items() if isinstance(value, float)]
    if measured and monitor not in known:
        raise ConfigError(unknown_value("train.monitor", monitor, known))


def train_options(config: Config) -> TrainOptions:
    """The section `train` as the loop takes it."""
    known = {field.name for field in fields(TrainOptions)}
    return TrainOptions(**{key: value for key, value in config.train.model_dump().items() if key in known})


def describe_record(record: Record) -> str:
    """The sizes of the data in words."""
    steps = f", {record.steps:,} steps" if isinstance(record, TimelineRecord) else ""
    features = "no features" if record.x is None else f"{record.x.shape[-1]:,} features"
    return f"{record.vertices:,} vertices, {len(record.src):,} edges{steps}, {features}"


def describe_setup(setup: Setup) -> str:
    """The size of the model, and which steps each split reads, in words."""
    text = f"{count_parameters(setup):,} parameters"
    if setup.timeline:
        runs = ((split, setup.task.steps(split)) for split in SPLITS)
        text += "; " + ", ".join(f"{split} steps {run.start} to {run.stop - 1}" for split, run in runs if run)
    return text


def count_parameters(setup: Setup) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in setup.modules.parameters())


def seconds_per_epoch(records: list[dict[str, Any]]) -> dict[str, float]:
    """best and median over the lines of metrics.jsonl."""
    seconds = [record["seconds"] for record in records if math.isfinite(record["seconds"])]
    return {"best": min(seconds), "median": statistics.median(seconds)}


def summarise(prepared: Prepared, result: Result, records: list[dict[str, Any]]) -> dict[str, Any]:
    """summary.json. Times are those of all epochs, a resumed run's earlier ones included."""
    return {
        "version": __version__,
        "layout": {field.name: getattr(prepared.layout, field.name) for field in fields(Layout)},
        "world": prepared.layout.world,
        "epochs": result.epochs,
        "stopped_early": result.stopped_early,
        "seconds_per_epoch": seconds_per_epoch(records),
        "loss": result.loss,
        "metrics": {split: result.metrics.get(split, {}) for split in SPLITS},
        "monitor": result.monitor,
        "best_epoch": result.best_epoch,
        "parameters": count_parameters(prepared.setup),
        "communication": result.communication,
        "transfer": result.transfer,
        "memory": result.memory,
        "staleness": None,
        # nothing is planned for one rank: its bytes are none, its memory a rough estimate, its time unknown
        "plan": {
            "seconds_per_epoch": None,
            "bytes_per_epoch": 0,
            "memory_bytes": estimate_memory(prepared.setup, prepared.record.vertices),
        },
    }
