"""`Job`: all that a worker process needs, as one value that is written once beside the shards."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from trisect.config import Config, TrainOptions, parse_config
from trisect.layout import Layout, parse_layout
from trisect.nn.models.source import HandedModel, ModelSource, NamedModel
from trisect.settings.writing import to_json
from trisect.tasks import Task, make_task
from trisect.tasks.outputs_only import OutputsOnly
from trisect.tasks.registry import TASKS
from trisect.train.processes.handed import pack, unpack

Verb = Literal["train", "fit", "predict", "calibrate"]

JOB, SHARDS, TOLD = "job.json", "shards", "told.jsonl"


@dataclass(frozen=True, eq=False)
class Job:
    """All that every rank of a run is told.

    Attributes:
        verb: `train` a run directory, `fit` for a caller in Python, `predict` from a run directory, or `calibrate`: fit
            the probabilities of its pairs to the validation split.
        model: by name, or the caller's own.
        layout: of the ranks; that of the configuration, or for `predict` another.
        config: of the run directory, resolved; None for `fit`.
        run: the run directory; None for `fit`.
        resume: whether `train` goes on from the newest checkpoint, where the run has begun.
        restarts: how often ranks that are started here are started again after a fault.
        restarted: how often that was done so far, by us or by torchrun.
        command: names the command that counts restarts, and no other one that continues the run.
        rows: the folder where `predict` puts its rows.
        steps, embedded: which outputs `predict` computes; see `outputs.steps` and `outputs.predict`.
    """

    verb: Verb
    model: ModelSource
    task: Task
    options: TrainOptions
    layout: Layout
    config: Config | None = None
    run: Path | None = None
    resume: bool = False
    rows: Path | None = None
    steps: str = "all"
    embedded: bool = True
    restarts: int = 0
    restarted: int = 0
    command: str = ""

    @classmethod
    def of_config(cls, verb: Verb, config: Config, run: Path, **more: Any) -> Job:
        """Give the job of a resolved configuration, under its own layout unless `more` says otherwise."""
        model, task, options = named_model(config), make_task(config.task.model_dump()), config.train
        if verb == "predict":  # nothing is learnt, and nothing is judged
            task, options = OutputsOnly(task), options.for_outputs()
        return cls(verb, model, task, options, more.pop("layout", config.layout), config, run, **more)

    @property
    def writes_run(self) -> bool:
        """Say whether the job trains into a run directory."""
        return self.run is not None and self.verb in ("train", "fit")

    def write(self, folder: Path) -> bytes:
        """Write the job into a folder; gives what the ranks are to read from their standard input."""
        named, objects = isinstance(self.model, NamedModel), self.options.objects
        task = self.task.task if isinstance(self.task, OutputsOnly) else self.task
        registered = TASKS.get(task.name) is type(task)
        plain = {
            "verb": self.verb,
            "model": asdict(self.model) if isinstance(self.model, NamedModel) else None,
            "task": {"name": task.name, **task.options()} if registered else None,
            "outputs_only": task is not self.task,
            "options": {name: value for name, value in self.options.plain().items() if name not in objects},
            "layout": str(self.layout),
            "config": None if self.config is None else self.config.resolved(),
            "run": None if self.run is None else str(self.run.absolute()),
            "resume": self.resume,
            "rows": None if self.rows is None else str(self.rows.absolute()),
            "steps": self.steps,
            "embedded": self.embedded,
            "restarted": self.restarted,
            "command": self.command,
            "path": sys.path,  # modules of the caller's own layers may be found nowhere else
        }
        (folder / JOB).write_text(to_json(plain))
        handed: dict[str, Any] = {"options": objects} if objects else {}
        handed |= {} if named else {"model": self.model}
        return pack(handed if registered else {**handed, "task": task})

    @classmethod
    def read(cls, folder: Path, stream: IO[bytes]) -> Job:
        """Read the job that `write` wrote; `stream` gives the objects."""
        plain = json.loads((folder / JOB).read_text())
        sys.path[:] = plain["path"]
        objects = unpack(stream)
        task = objects["task"] if plain["task"] is None else make_task(plain["task"])
        return cls(
            plain["verb"],
            HandedModel(objects["model"]) if plain["model"] is None else NamedModel(**plain["model"]),
            OutputsOnly(task) if plain["outputs_only"] else task,
            TrainOptions(**plain["options"], **objects.get("options", {})),
            parse_layout(plain["layout"]),
            None if plain["config"] is None else parse_config(plain["config"]),
            None if plain["run"] is None else Path(plain["run"]),
            plain["resume"],
            None if plain["rows"] is None else Path(plain["rows"]),
            plain["steps"],
            plain["embedded"],
            restarted=plain["restarted"],
            command=plain["command"],
        )


def named_model(config: Config) -> NamedModel:
    """Give the configuration's model, yet to be made."""
    options = config.model.model_dump(exclude_none=True)
    return NamedModel(options.pop("name"), options, config.train.seed)
