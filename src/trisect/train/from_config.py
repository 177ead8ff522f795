"""From a configuration to settings in full, to data, and to the model on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from trisect.config import Config
from trisect.config.names import CUSTOM
from trisect.data.describe import class_counts, notes
from trisect.data.generators.generate import GENERATORS
from trisect.data.load import check, load
from trisect.data.records import Names, Record, TimelineRecord
from trisect.errors import ConfigError, DataError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.nn import options as model_options
from trisect.nn.models.registry import reads_edges
from trisect.settings.nearest import unknown_setting
from trisect.tasks import make_task
from trisect.train.assemble import outlined
from trisect.train.checks import check_run
from trisect.train.job import named_model
from trisect.train.setup import describe_model

_MERGES = {"sum": "sum", "mean": "mean", "last": "last one's"}

Say = Callable[[str], None]


def resolve(config: Config, data_dir: str | Path | None = None) -> Config:
    """Give the configuration with every option of generator, model and task filled in; unknown ones are refused."""
    if config.data.object is not None:
        raise DataError(
            f"data.object says that the data were handed to trisect.fit in Python ({config.data.object}), and no file"
            " has them; go on in Python, or give a source: name, path or generate."
        )
    data = config.data.model_dump(exclude_none=True)
    if not config.data.described:
        check(source_of(config))
    if config.data.generate is not None:
        arguments = GENERATORS[config.data.generate].arguments
        data = {**{name: argument.default for name, argument in arguments.items()}, **data}
    if config.data.path is not None:
        data["path"] = str(Path(config.data.path).expanduser().absolute())
    if config.data.name is not None and data_dir is not None:
        data["directory"] = str(Path(data_dir).expanduser().absolute())
    for section in (config.model, config.task):
        if section.name == CUSTOM:
            kind = "model" if section is config.model else "task"
            raise ConfigError(
                f"{kind}.name is custom: it was made in Python and handed to trisect.fit; go on there, or give a name."
            )
    config.train.require_named()
    defaults = {name: option.default for name, option in model_options(config.model.name).items()}
    for key in config.model.options:
        if key not in defaults:
            raise ConfigError(unknown_setting("model", key, defaults))
    model = {**defaults, **config.model.model_dump(exclude_none=True)}
    task = make_task(config.task.model_dump())
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in task.options().items()}
    layout = config.train.steps.laid_out(config.layout)
    plain = {
        **config.model_copy(update={"layout": layout}).resolved(),
        "data": data,
        "model": model,
        "task": {"name": config.task.name, **options},
    }
    return Config.model_validate(plain)


def load_record(config: Config) -> Record:
    """Give the data as plain arrays, in the user's vertex order."""
    if config.data.described:
        raise DataError(
            "data is described by its sizes and not there, so that it can be planned and checked but not trained; give"
            " one of data.name, data.path and data.generate."
        )
    return load(source_of(config), data_dir=config.data.directory)


def source_of(config: Config) -> dict[str, Any]:
    """Give the section `data` as `data.load` takes it."""
    return config.data.model_dump(exclude_none=True, exclude={"directory"})


def data_of(config: Config, record: Record) -> Graph | Timeline:
    """Give the data as models read them."""
    smoothing = config.data.smoothing
    merge = config.data.edge_merge or "mean"
    if config.data.edge_merge is not None and record.edge_x is None:
        raise ConfigError(f"data.edge_merge is {merge}, but the edges of the data have no features; leave it out.")
    if (record.edge_x is not None or record.relation is not None) and not _reads_edges(config):
        record = replace(record, edge_x=None, relation=None)  # merging parallel edges takes a sort
    if not isinstance(record, TimelineRecord):
        if smoothing is not None:
            raise ConfigError("data.smoothing is for timelines, and the data are one graph; leave it out.")
        return Graph.from_record(record, merge=merge)
    window = smoothing.length if smoothing is not None and smoothing.kind != "none" else 1
    for name, length in (("data.smoothing.length", window), ("model.window", config.model.options.get("window", 1))):
        if length > record.steps:
            raise DataError(f"{name} is {length}, but the timeline has {record.steps} steps; use a shorter period.")
    return Timeline.from_record(record, smoothing=None if smoothing is None else smoothing.model_dump(), merge=merge)


def _reads_edges(config: Config) -> bool:
    """Say whether the model of a configuration reads the features of edges."""
    model = named_model(config)
    return reads_edges(model.name, **model.options)


def data_notes(config: Config, record: Record) -> list[str]:
    """Return what a user should know of the data: of a table how it was read, and what becomes of features of edges."""
    path = config.data.path
    # a graph directory was read before, by `data ingest`, which said so
    lines = [] if path is None or Path(path).is_dir() else list(record.meta.get("notes", []))
    note = edge_note(config, record)
    return lines if note is None else [*lines, note]


def edge_note(config: Config, record: Record) -> str | None:
    """Say what becomes of the features of edges; None where there are none."""
    if record.relation is not None:
        return relation_note(config, record)
    if record.edge_x is None:
        return None
    count = record.edge_x.shape[1]
    if not _reads_edges(config):
        return (
            f"edge features: {count} an edge, which {config.model.name} does not read; use gatv2, gine, or recurrent "
            "with spatial: gatv2 or gine."
        )
    merge = config.data.edge_merge or "mean"
    parallel = "how many edges there are between the same vertices (count)" if merge == "count" else ""
    read = parallel or f"{count} an edge; of edges between the same vertices the {_MERGES[merge]}"
    return f"edge features: {config.model.name} reads {read}."


def relation_note(config: Config, record: Record) -> str:
    """Say what becomes of the relations of edges."""
    sizes = class_counts(np.asarray(record.relation), record.relations)
    if not _reads_edges(config):
        other = "which {} does not tell apart; use rgcn, or recurrent with spatial: rgcn."
        return f"relations: {sizes}, {other.format(config.model.name)}"
    return f"relations: {sizes}."


def check_model(config: Config, data: Graph | Timeline) -> str:
    """Raise where the model, the task and the layout do not fit the data; return how large the model is.

    The model is outlined and not built, so that this takes no memory however wide its layers are.
    """
    task, model = outlined(named_model(config), data, data, config.task.model_dump(), config.train)
    task.warn()
    check_run(model, data, task, config.layout, config.train)
    modules: list[nn.Module | None] = [model, task.decoder_outline(model.out_channels)]
    count = sum(parameter.numel() for module in modules if module is not None for parameter in module.parameters())
    return describe_model(count, task, timeline=isinstance(data, Timeline))


class ConfiguredData:
    """Reads the data of a resolved configuration, and knows afterwards what its rows are called.

    Attributes:
        names: the user's vertex ids, or None where they are 0, 1, ….
        vertices, steps: how many there are.
        classes: the names of the classes that the task predicts; None where they are numbers.
    """

    def __init__(self, config: Config, say: Say = lambda sentence: None) -> None:
        self._config, self._say = config, say
        self.names: Names | None = None
        self.vertices, self.steps, self.timeline = 0, 1, False
        self.classes: Sequence[str] | None = None

    def __call__(self) -> Graph | Timeline:
        """Read the data, say how large they are, and give them as models read them."""
        data, record = self._config.data, load_record(self._config)
        self._say(f"{data.name or data.generate or data.path}: {describe_record(record)}")
        for note in data_notes(self._config, record):
            self._say(note)
        self.names, self.vertices = record.names, record.vertices
        self.classes = predicted_classes(self._config, record)
        if isinstance(record, TimelineRecord):
            self.steps, self.timeline = record.steps, True
        return data_of(self._config, record)


def predicted_classes(config: Config, record: Record) -> list[str] | None:
    """Give the names of the classes that the task predicts; None where they are numbers."""
    if isinstance(record, TimelineRecord) and config.task.name == "edge-classification":
        return record.edge_class_names
    return record.class_names


def describe_record(record: Record) -> str:
    """Give the sizes of the data in words, and what else a run should say of them, a line each."""
    steps = f", {record.steps:,} steps" if isinstance(record, TimelineRecord) else ""
    features = "no features" if record.x is None else f"{record.x.shape[-1]:,} features"
    return "\n".join((f"{record.vertices:,} vertices, {len(record.src):,} edges{steps}, {features}", *notes(record)))
