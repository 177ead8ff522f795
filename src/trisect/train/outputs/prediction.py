"""`Prediction`: from a run directory, and perhaps new rows, to a file of outputs, under any layout."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trisect.comm.world import world_from_environment
from trisect.config import Config, apply_overrides, parse_config
from trisect.data.later import OnLate
from trisect.data.records import TimelineRecord
from trisect.errors import ConfigError, TrisectError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.settings.writing import drafted
from trisect.tasks import Task, make_task
from trisect.tasks.edge_classification import EdgeClassification
from trisect.tasks.link_prediction import LinkPrediction
from trisect.train.from_config import ConfiguredData, resolve
from trisect.train.job import Job
from trisect.train.outputs.calibration import NOT_FITTED, Calibration
from trisect.train.outputs.links import (
    Linked,
    LinkScorer,
    Per,
    decoder_of,
    not_probabilities,
    pair_blocks,
    read_pairs,
    require_pairs,
    require_top_k,
)
from trisect.train.outputs.new_data import PredictedData, Say
from trisect.train.outputs.predict import predicting, trained_parameters
from trisect.train.outputs.resuming import Resuming
from trisect.train.outputs.saved_rows import RowsReader
from trisect.train.outputs.steps import check_steps, parse_steps
from trisect.train.outputs.table import (
    check_target,
    join,
    named_columns,
    rows_folder,
    rows_folder_beside,
    table_writer,
)
from trisect.train.processes.faults import be_rank
from trisect.train.processes.listening import Listener
from trisect.train.processes.start import run_job
from trisect.train.run.run_directory import RunDirectory

_PER = ("all", "source")


@dataclass(frozen=True)
class Prediction:
    """What is asked of a finished run.

    Attributes:
        run: its directory.
        out: the file to write; by default in the run directory.
        data, vertices, on_late: see `PredictedData`.
        steps: of a timeline, such as `last`, `all`, `3:10`.
        embeddings: whether embeddings stand beside what the task makes of them.
        pairs: a table of pairs to score.
        top_k, per: how many of the best pairs, of `all` or of each `source`.
        known: whether pairs that are linked at the step itself may be among the best.
        layout, device, data_dir: other than those of the training.
    """

    run: Path
    out: Path | None = None
    data: Any = None
    vertices: Any = None
    on_late: OnLate = "refuse"
    steps: str = "last"
    embeddings: bool = True
    pairs: Path | None = None
    top_k: int | None = None
    per: Per = "all"
    known: bool = False
    layout: Layout | None = None
    device: str | None = None
    data_dir: Path | None = None

    @property
    def links(self) -> bool:
        """Say whether pairs are asked for, and not vertices."""
        return self.pairs is not None or self.top_k is not None

    def target(self) -> Path:
        """Give the file that is written."""
        name = "pairs" if self.pairs is not None else "links" if self.top_k is not None else "predictions"
        return self.run / f"{name}.parquet" if self.out is None else self.out

    def check(self, task: Task) -> None:
        """Raise for what cannot be had, before anything is read."""
        check_steps(self.steps)
        check_target(self.target())
        if self.pairs is not None and self.top_k is not None:
            raise ConfigError("--pairs and --top-k are given together; ask for one at a time.")
        if self.pairs is not None:
            require_pairs(task, "--pairs")
            if not self.pairs.exists():
                raise ConfigError(f"--pairs is {self.pairs}, which does not exist.")
        if self.top_k is not None:
            require_pairs(task, "--top-k", ranked=True)
            require_top_k(self.top_k)
        if self.per not in _PER:
            raise ConfigError(f"--per is {self.per!r}; it must be all or source.")
        if self.top_k is None and (self.per != "all" or self.known):
            option = "--known" if self.known else "--per"
            raise ConfigError(f"{option} says which of the best pairs are wanted; give --top-k beside it.")


def write_predictions(asked: Prediction, listener: Listener) -> None:
    """Compute what is asked on the ranks of the layout, and write it; under torchrun every rank calls this.

    Args:
        listener: is told what was written and what was left out.
    """
    directory = RunDirectory.reopen(asked.run)
    if asked.device is not None:
        plain = apply_overrides(directory.config.resolved(), [f"train.device={asked.device}"])
        directory = RunDirectory.reopen(asked.run, parse_config(plain))
    config = resolve(directory.config, asked.data_dir)
    task = make_task(config.task.model_dump())
    asked.check(task)
    world = world_from_environment()
    first = world is None or world.rank == 0
    say: Say = listener.say if first else lambda sentence: None
    target = asked.target()
    layout = predicting(directory.config.layout if asked.layout is None else asked.layout)
    with nullcontext() if world is None else be_rank(world):
        writer = _Writer(asked, directory, config, task, target, say)
        data = PredictedData(
            config, asked.data, asked.vertices, on_late=asked.on_late, say=say, on_read=writer.before_work
        )
        folder = rows_folder(target)
        # outputs of a task on pairs are embeddings, and the decoder is applied to pairs afterwards
        embedded = asked.embeddings or asked.links
        job = Job.of_config(
            "predict", config, asked.run, layout=layout, rows=folder, steps=asked.steps, embedded=embedded
        )
        resuming = Resuming(job, directory, config, folder, say)

        def read() -> Graph | Timeline:
            read_data = data()
            if first:
                resuming.prepare(read_data)
            return read_data

        with rows_folder_beside(target) if first else nullcontext():
            run_job(job, read, listener, folders=[folder])
            if first:
                resuming.keep()
            calibration = None
            if asked.links and isinstance(task, LinkPrediction):
                calibration = calibration_of(directory, config, layout, listener)
            if first:
                writer.write(data, folder, calibration)


class _Writer:
    """Turns the rows that ranks saved into the file that was asked for, and says what it holds."""

    def __init__(
        self, asked: Prediction, directory: RunDirectory, config: Config, task: Task, target: Path, say: Say
    ) -> None:
        self._asked, self._directory, self._config, self._task = asked, directory, config, task
        self._target, self._say = target, say
        self._pairs: tuple[Tensor, Tensor] | None = None
        self._steps = range(1)

    def before_work(self, data: PredictedData) -> None:
        """Find mistakes in what was asked, as soon as the data are known."""
        timeline, asked = isinstance(data.record, TimelineRecord), self._asked
        if not timeline and asked.steps not in ("last", "all"):
            raise ConfigError(
                f"--steps is {asked.steps}, but the data are one graph, which has no steps; leave it out."
            )
        self._steps = parse_steps(asked.steps, data.steps)
        if asked.pairs is not None:
            self._pairs = read_pairs(asked.pairs, data.record.names, data.record.vertices)

    def write(self, data: PredictedData, folder: Path, calibration: Calibration | None) -> None:
        """Write the table of predictions, or of links where they were asked for, and say how many rows it has."""
        rows = RowsReader(folder, data.record.vertices, self._steps)
        if self._asked.links:
            count = self._write_links(rows, data, calibration)
        else:
            count = join(rows, self._target, data.described)
        self._say(f"Predictions: {self._target} ({count:,} rows{self._content(data)})")
        for line in self._left_out(data):
            self._say(line)

    def _content(self, data: PredictedData) -> str:
        if not isinstance(data.record, TimelineRecord):
            return ""
        steps = self._steps
        which = f"step {steps.start}" if len(steps) == 1 else f"steps {steps.start} to {steps.stop - 1}"
        return f": {which} of 0 to {data.steps - 1}"

    def _left_out(self, data: PredictedData) -> list[str]:
        """Say what the file does not have, and how to get it."""
        asked, lines = self._asked, []
        if isinstance(data.record, TimelineRecord) and len(self._steps) < data.steps and asked.steps == "last":
            lines.append("Earlier steps are left out; --steps all gives them, --since STEP those from a step on.")
        reads_pairs = isinstance(self._task, (LinkPrediction, EdgeClassification))
        if not asked.links and reads_pairs:
            options = "--pairs" if self._task.name == "edge-classification" else "--pairs or --top-k"
            lines.append(f"Scores of pairs are left out; {options} gives them.")
        if not asked.embeddings and not asked.links and not reads_pairs:
            lines.append("Embeddings are left out (--no-embeddings).")
        return lines

    # Pairs

    def _write_links(self, rows: RowsReader, data: PredictedData, calibration: Calibration | None) -> int:
        record, described, asked = data.record, data.described, self._asked
        if not isinstance(record, TimelineRecord):
            raise TrisectError("internal error: a task on pairs has data without steps")
        parameters = trained_parameters(self._directory)
        width = rows.shape("embedding")[1][0]
        classes = record.edge_y if isinstance(self._task, EdgeClassification) else None
        outputs = 1 if classes is None else int(classes.max(initial=-1)) + 1
        decoder = decoder_of(self._task, width, outputs, parameters, self._config.train.dtype)
        count, linked, events = 0, Linked.of_record(record), np.diff(record.offsets)
        far: dict[int, str] = {}
        with drafted(self._target) as draft, table_writer(draft, self._target.suffix) as table:
            for step in self._steps:
                memory = linked.memory(self._task, step)
                held = _SavedEmbeddings(rows, step, self._config.train.dtype)
                if calibration is not None:
                    distance = calibration.distance(step, events, continues=data.continues)
                    far |= {} if distance is None else {step: distance}
                scorer = LinkScorer(decoder, held, memory, calibration, step not in far)
                for src, dst, scores in self._scored(scorer, linked, step):
                    columns = {
                        "src": described.ids_of(src.numpy()),
                        "dst": described.ids_of(dst.numpy()),
                        "step": np.full(len(src), step, np.int32),
                    }
                    for name, values in scorer.columns(scores).items():
                        columns |= named_columns(name, values.numpy(), described)
                    table.add(columns)
                    count += len(src)
        if self._asked.top_k is not None:
            present = "may be among them (--known)" if asked.known else "are left out; --known lets them in"
            self._say(f"Pairs that are linked at the step itself {present}; a vertex with itself is left out.")
        if calibration is not None and calibration.is_fitted and calibration.slope == 0:
            self._say(
                "Better scores were no likelier links among the validation pairs; every pair has the share of linked"
                " pairs as its probability."
            )
        elif calibration is not None and calibration.is_fitted:
            self._say(
                f"Probabilities are fitted to {calibration.positives:,} links among the validation pairs: of a pair"
                " drawn at random, that it is linked"
                f" {getattr(self._task, 'horizon', 1)} step(s) later."
            )
        elif calibration is not None:
            self._say(NOT_FITTED)
        if far:
            self._say(not_probabilities(far, len(self._steps)))
        return count

    def _scored(self, scorer: LinkScorer, linked: Linked, step: int) -> Any:
        """Give (src, dst, scores [pairs, outputs]) of a step, some pairs at a time."""
        if self._pairs is not None:
            for src, dst in pair_blocks(*self._pairs):
                yield src, dst, scorer.score(src, dst)
            return
        leave_out = None if self._asked.known else linked.at(step)
        src, dst, scores = scorer.top_k(int(self._asked.top_k or 0), self._asked.per, leave_out)
        yield src, dst, scores[:, None]


class _SavedEmbeddings:
    """Embeddings of one step on disk, as ranks saved them."""

    def __init__(self, rows: RowsReader, step: int, dtype: torch.dtype) -> None:
        self._rows, self._step, self._dtype, self.vertices = rows, step, dtype, rows.vertices

    def rows(self, start: int, stop: int) -> Tensor:
        """Give the embeddings of the vertices start .. stop-1 at the step."""
        return torch.from_numpy(self._rows.block("embedding", self._step, start, stop)).to(self._dtype)

    def take(self, vertices: Tensor) -> Tensor:
        """Give the embeddings of these vertices, which ascend, at the step."""
        return torch.from_numpy(self._rows.take("embedding", self._step, vertices.numpy())).to(self._dtype)


def calibration_of(directory: RunDirectory, config: Config, layout: Layout, listener: Listener) -> Calibration:
    """Give the calibration of a run: what its directory keeps, or else one that is fitted now and kept there."""
    kept = Calibration.read(directory.path)
    if kept is not None:
        return kept
    if world_from_environment() is not None:  # a process joins one world, and has done so for its outputs
        listener.say("The probabilities of this run are not fitted yet; predict once without torchrun to do so.")
        return Calibration()
    listener.say("Fitting probabilities to the validation pairs, once for this run.")
    job = Job.of_config("calibrate", config, directory.path, layout=layout)
    outcome = run_job(job, ConfiguredData(config), listener)
    calibration = Calibration(**outcome.summary["calibration"])
    calibration.write(directory.path)
    return calibration
