"""One rank of a run: `python -m trisect.train.worker FOLDER`, where FOLDER has the job and the shards.

Our launcher starts it so, for the command line and for `fit`. It is a fresh interpreter that never imports the caller's
main module, so that notebooks and scripts without a guard work. (A fork would inherit torch's thread pools in the
middle of their work, and autograd refuses it.) Under torchrun each process that it started calls `work` itself.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from trisect.comm.ledger import Ledger
from trisect.comm.local.neighbours import Gather
from trisect.comm.transport import Transport
from trisect.comm.world import World, world_from_environment
from trisect.errors import CheckpointError, ConfigError, StoppedError, TrisectError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.models.registry import options as model_options
from trisect.nn.models.source import HandedModel, ModelSource, NamedModel
from trisect.settings.writing import to_json
from trisect.shards.graph_files import read_cut
from trisect.train.assemble import AnyData
from trisect.train.checks import is_cut
from trisect.train.clusters import local_cluster
from trisect.train.device import device_of_rank
from trisect.train.estimate import estimate_setup
from trisect.train.from_config import ConfiguredData
from trisect.train.job import SHARDS, TOLD, Job
from trisect.train.loop import Result, Trainer
from trisect.train.outputs.calibration import calibrate
from trisect.train.outputs.predict import load_parameters, outputs, trained_parameters
from trisect.train.outputs.saved_rows import RowsWriter
from trisect.train.outputs.states import hand_back, resume
from trisect.train.outputs.steps import parse_steps
from trisect.train.processes.faults import Phase, be_rank, is_lost, leave, show_phase, tell_request
from trisect.train.processes.joined import joined
from trisect.train.processes.listening import Listener, NoListener, WrittenListener
from trisect.train.processes.memory import watched_memory
from trisect.train.processes.resources import explaining_limits
from trisect.train.processes.stopping import heeding_requests, undisturbed
from trisect.train.processes.threads import limited_threads
from trisect.train.recorders import EpochsOnly, Recorder, Several, WithCopies
from trisect.train.rules import Rules, beside
from trisect.train.run.apart import Apart, Host, marked
from trisect.train.run.checkpoint import Checkpoint, at_once
from trisect.train.run.digest import FILE, KEY, digest_of, require_same_data
from trisect.train.run.recorder import RunRecorder
from trisect.train.run.run_directory import LAYOUT, RunDirectory
from trisect.train.run.summary import summarise
from trisect.train.setup import Setup

RESULT, PARAMETERS = "result.json", "parameters.safetensors"
_SOON = 5.0  # seconds


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a rank knows when a job has ended; the same on all ranks.

    Attributes:
        summary: as summary.json has it; empty for `predict`.
        result: of `fit`: the measured part of a `Result`, as plain values.
        parameters: of `fit`: all trained parameters by name.
        setup: the model on its data, where this process did the job alone.
    """

    summary: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    setup: Setup | None = None


def work(job: Job, world: World, shards: Path | Callable[[Path], None], listener: Listener) -> Outcome:
    """Do the work of one rank of a job.

    Args:
        shards: where the data lie, cut; or (under torchrun) a function that cuts them into a folder, which the first
            rank of each host calls.
        listener: of rank 0; other ranks tell nobody.
    """
    options = job.options
    device = device_of_rank(options.device, world.local_rank)
    listener = listener if world.rank == 0 else NoListener()
    with (
        watched_memory(),
        limited_threads(options.threads),
        joined(job.layout, world, device, options.timeout, shards) as (mesh, host),
    ):
        cut = read_cut(host.folder)
        setup = Setup.of(job.model, cut, job.task, options, job.layout, mesh=mesh, local_ranks=world.local_size)
        digest = (host.folder / FILE).read_text() if job.writes_run else None
        worker = _Worker(job, setup, cut, listener, Rules.read(host.folder), host=host, digest=digest)
        show_phase(world.rank, Phase.READY)
        return worker.run()


def work_alone(job: Job, data: Graph | Timeline, listener: Listener, recorder: Recorder | None = None) -> Outcome:
    """Do a job in this process, with all of the data in memory.

    Args:
        recorder: of `fit`; receives epochs, events and checkpoints.
    """
    with watched_memory(), limited_threads(job.options.threads):
        setup = Setup.of(job.model, data, job.task, job.options, job.layout)
        digest = digest_of(data) if job.writes_run else None
        same = setup.vertices is data.order and job.options.device.startswith("cpu")
        rules = Rules.measure(job, data, listener.say, setup.task if same else None)
        worker = _Worker(job, setup, data, listener, rules, recorder=recorder, digest=digest)
        return replace(worker.run(), setup=setup)


class _Worker:
    """One rank of a job, ready to do it.

    Args:
        setup: the model and the data of this rank.
        data: that it was built from.
        rules: the simple rules, as the process measured them that has all of the data.
        host: where this rank runs, if there are others.
        digest: of the data, for checkpoints.
    """

    def __init__(
        self,
        job: Job,
        setup: Setup,
        data: AnyData,
        listener: Listener,
        rules: Rules,
        *,
        host: Host | None = None,
        recorder: Recorder | None = None,
        digest: str | None = None,
    ) -> None:
        self.job, self.setup, self.listener, self.rules = job, setup, listener, rules
        self.host, self.recorder, self.digest = host, recorder, digest
        mesh = setup.program.mesh
        self.rank, self.gather = mesh.rank, Transport(mesh, Ledger()).gather
        self.partition = None if isinstance(data, (Graph, Timeline)) else data.quality
        self.expected = estimate_setup(setup, data, job.options, local_cluster()) if self.rank == 0 else None
        # parts and runs of a stage hold the same parameters
        self.holds_parameters = mesh.part_index == 0 and mesh.run_index == 0
        self.monitor = job.options.monitor or setup.task.monitor
        self.cut = cut_in_words(setup.layout)
        self.resumes = False
        self.apart: Apart | None = None

    def run(self) -> Outcome:
        """Do what the job's verb says."""
        outputs = {"predict": self._predict, "calibrate": self._calibrate}
        with explaining_limits(self.job.run if self.job.writes_run else None):
            return outputs.get(self.job.verb, self._train)()

    def _train(self) -> Outcome:
        """Train; a caller of `fit` gets what was measured and all trained parameters besides the summary."""
        parameters = sum(self.gather(self.setup.parameters if self.holds_parameters else 0))
        self.listener.say(f"{in_words(self.job.model)}, {self.setup.describe(parameters)}")
        expected = self.gather(self._expected_plain())[0]
        rules: dict[str, Any] = self.gather(self.rules.measures)[0]
        told = self.rules.describe(self.monitor)
        if told is not None:
            self.listener.say(told)
        self.listener.watch(self.monitor, beside(rules, self.monitor))
        with nullcontext() if self.job.run is None else self._directory() as directory:
            if directory is None:
                recorder: Recorder = EpochsOnly(self.listener.epoch)
                recorder = recorder if self.recorder is None else Several(self.recorder, recorder)
                trainer = Trainer(self.setup, self.job.options, recorder, say=self.listener.say)
                result, seconds = trainer.run(), None
            else:
                result, seconds = self._train_in(directory, parameters)
            summary = summarise(
                result,
                self.setup.layout,
                parameters=parameters,
                baselines=rules,
                partition=self.partition,
                expected=expected,
                seconds=seconds,
                restarts=self.gather(directory.restarts() if directory is not None and self.rank == 0 else 0)[0],
            )
            if directory is not None and self.rank == 0:
                directory.write_summary(summary, result.scores)
            self.gather(None)  # ranks that had left by now would not notice that rank 0 stalls
        if self.job.verb == "train":
            return Outcome(summary)
        kept = [field.name for field in fields(Result) if field.name not in ("modules", "program")]
        return Outcome(summary, {name: getattr(result, name) for name in kept}, self._parameters(result))

    def _expected_plain(self) -> dict[str, Any] | None:
        return None if self.expected is None else self.expected.plain()

    def _train_in(self, directory: RunDirectory, parameters: int) -> tuple[Result, list[float]]:
        """Train, and write every file of the run directory but the summary and the report; gives the seconds of all
        epochs, those before a resume included.
        """
        checkpoint = self._continue(directory) if self.resumes else None
        if self.rank == 0:
            schedule = None if self.expected is None else self.expected.schedule()
            known = {"parameters": parameters, "partition": self.partition, "expected": self._expected_plain()}
            known["rules"] = self.rules.measures
            directory.write_plan({**self.setup.program.described(), **known, "schedule": schedule})
        recorder = RunRecorder(
            directory,
            rank=self.rank,
            on_epoch=self.listener.epoch,
            world=self.setup.layout.world,
            notes=None if self.host is None else self.host.notes,
            holds_parameters=self.holds_parameters,
            compare=self.job.options.guard,
            timeout=self.job.options.timeout,
            meta={LAYOUT: self.cut, **({} if self.digest is None else {KEY: self.digest})},
            apart=self.apart,
        )
        if self.job.restarted > 0 and self.rank == 0:
            # torchrun's agent, whose ranks are all its children, is the command where we did not start them
            recorder.restarted(self.job.restarted, self.job.command or f"agent {os.getppid()}")
        callers = recorder if self.recorder is None else Several(WithCopies(self.recorder), recorder)
        # a caller of `fit` decides itself what signals do
        heard = partial(tell_request, self.rank)
        heeding = heeding_requests(self.job.options.grace, heard) if self.job.verb == "train" else nullcontext()
        try:
            with heeding as stop:
                trainer = Trainer(
                    self.setup,
                    self.job.options,
                    callers,
                    recorder_copies=True,
                    stop=stop,
                    offer=None if stop is None else recorder.offer,
                    say=self.listener.say,
                )
                if checkpoint is not None:
                    trainer.load(checkpoint.tensors, checkpoint.meta)
                try:
                    result = trainer.run()
                except StoppedError:
                    recorder.finish()
                    raise
                recorder.finish()
        except BaseException as error:
            try:
                if not is_lost(error):  # without all ranks, a checkpoint that is being written will never be whole
                    with suppress(Exception):
                        recorder.finish(self._patience(error))
            finally:  # also after a further Ctrl-C
                with undisturbed():
                    recorder.abandon()
            raise
        finally:
            recorder.close(wait=False)
        if self.apart is not None:
            self.apart.finish()
        records = directory.metrics() if self.rank == 0 else []
        own = [seconds for record in records if (seconds := record.get("seconds")) is not None]
        return result, self.gather(own)[0]  # every rank's events are on disk

    def _patience(self, error: BaseException) -> float:
        """Return how many seconds a checkpoint has to become whole; after Ctrl-C another rank may be gone already."""
        grace = self.job.options.grace
        return min(grace, _SOON) if isinstance(error, KeyboardInterrupt) and self.host is not None else grace

    def _parameters(self, result: Result) -> dict[str, Tensor]:
        """Give the trained parameters of all stages, by name."""
        own = {name: value.detach().cpu() for name, value in result.modules.state_dict().items()}
        parameters: dict[str, Tensor] = {}
        for stage in self.gather(own if self.holds_parameters else {}):
            parameters.update(stage)
        return parameters

    def _predict(self) -> Outcome:
        """Write the rows of this rank, with the parameters of the best epoch, into the job's folder of rows."""
        config, run, rows = self.job.config, self.job.run, self.job.rows
        if config is None or run is None or rows is None:
            raise ConfigError("internal error: a job that predicts has no run directory")
        require_visible(rows, self.gather)
        self._load_parameters(RunDirectory(run, config))
        resume(self.setup, rows)
        writer, steps = RowsWriter(rows, self.rank), parse_steps(self.job.steps, self.setup.steps)
        for first, columns in outputs(self.setup, steps, embedded=self.job.embedded):
            writer.add(first, self.setup.vertices, columns)
        hand_back(self.setup, rows)
        self.gather(None)  # all ranks have written
        return Outcome()

    def _calibrate(self) -> Outcome:
        """Score the validation pairs with the parameters of the best epoch, and fit probabilities to them."""
        config, run = self.job.config, self.job.run
        if config is None or run is None:
            raise ConfigError("internal error: a job that calibrates has no run directory")
        self._load_parameters(RunDirectory(run, config))
        return Outcome({"calibration": calibrate(self.setup, self.gather)})

    def _load_parameters(self, directory: RunDirectory) -> None:
        parameters = trained_parameters(directory, self.listener.say, rank=self.rank, gather=self.gather)
        load_parameters(self.setup, parameters, directory)

    @contextmanager
    def _directory(self) -> Iterator[RunDirectory]:
        """Open the run directory on all ranks; rank 0 keeps other processes out before anything is read of it."""
        config, run = self.job.config, self.job.run
        if config is None or run is None:
            raise ConfigError("internal error: a job that trains has no run directory")
        config = config.model_copy(update={"train": replace(config.train, monitor=self.monitor)})
        # rank 0 says whether there is a run to go on with: once it has begun one, the others would find it
        resume = any(self.gather(self.job.resume))
        begun = resume and RunDirectory.is_begun(run)
        with RunDirectory.writing(run, config, resume=resume) if self.rank == 0 else nullcontext():
            with marked(run) if self.rank == 0 else nullcontext(Path()) as mark:
                name, self.resumes = self.gather((str(mark), begun))[0]
                mark = Path(name)
                self.apart = None if self.host is None else Apart.look(mark, self.host, self.rank, self.gather)
            path = mark.parent
            if resume and not self.resumes:
                self.listener.say(f"There is no run in {path} yet; it begins.")
            if self.apart is not None:
                self.listener.say(self.apart.describe())
                path = self.apart.directory
            yield RunDirectory(path, config)

    def _continue(self, directory: RunDirectory) -> Checkpoint | None:
        """Read the newest checkpoint, and drop what was written after it."""
        if self.rank == 0:
            directory.tidy(self.listener.say)
        self.gather(None)
        # which returns when all have read, and not before: rank 0 writes next
        reading = at_once if self.apart is None else partial(self.apart.reading, directory.checkpoints)
        checkpoint = directory.checkpoints.latest(
            self.listener.say, rank=self.rank, gather=self.gather, reading=reading
        )
        if self.apart is not None:
            self.apart.drop_copies()
        if checkpoint is not None:
            require_same_data(checkpoint.meta, self.digest, self.job.run or directory.path)
        self.listener.say(directory.describe_start(checkpoint, self.cut))
        if self.rank == 0:
            directory.continue_from(checkpoint)
        self.gather(None)
        return checkpoint


def in_words(model: ModelSource) -> str:
    """Say which model it is, how deep and how wide."""
    if isinstance(model, NamedModel):
        options = {**{name: option.default for name, option in model_options(model.name).items()}, **model.options}
        return f"{model.name}: {options['layers']} layers of {options['hidden']}"
    made = model.model if isinstance(model, HandedModel) else model
    layers = getattr(made, "layers", None)
    return type(made).__name__ if layers is None else f"{type(made).__name__} of {len(layers)} layers"


def cut_in_words(layout: Layout) -> str:
    """Say how a layout cuts the work, without what does not decide which rank holds what."""
    degrees = [f"{axis}={size}" for axis in ("time", "layer", "vertex") if (size := getattr(layout, axis)) > 1]
    chunks = [] if layout.recipe is None else [f"chunks={layout.chunks}"]
    return ",".join((*degrees, *chunks)) or "one rank"


def read_outcome(folder: Path) -> Outcome:
    """Read what rank 0 left in the folder of the job."""
    from safetensors.torch import load_file

    plain, parameters = json.loads((folder / RESULT).read_text()), folder / PARAMETERS
    return Outcome(plain["summary"], plain["result"], load_file(parameters) if parameters.exists() else {})


def require_visible(folder: Path, gather: Gather) -> None:
    """Raise on all ranks where one of them does not see the folder that rank 0 sees."""
    blind = [str(rank) for rank, seen in enumerate(gather(folder.is_dir())) if not seen]
    if blind:
        raise CheckpointError(
            f"The directory {folder} does not exist where rank {', '.join(blind)} runs; put it on a file system that"
            " all hosts share."
        )


def main(folder: Path) -> None:
    """Be a rank that `start.run_job` has started."""
    world = world_from_environment()
    if world is None:
        raise ConfigError("RANK is not set; trisect.train.worker is started by trisect alone.")
    try:
        _be_worker(folder, world)
    except TrisectError as error:  # where our launcher started us, it has been told and says it
        print(f"trisect: {error}", file=sys.stderr)
        leave(error.exit_code)
    leave(0)


def _be_worker(folder: Path, world: World) -> None:
    with be_rank(world):
        job = Job.read(folder, sys.stdin.buffer)
        listener = WrittenListener(folder / TOLD) if world.rank == 0 else NoListener()
        cut = is_cut(job.layout)
        outcome = work(job, world, folder / SHARDS, listener) if cut else _work_watched(job, listener)
        if world.rank == 0:
            from safetensors.torch import save_file

            if outcome.parameters:
                # two names of a tied parameter must not share memory
                tensors = {name: value.clone().contiguous() for name, value in outcome.parameters.items()}
                save_file(tensors, folder / PARAMETERS)
            (folder / RESULT).write_text(to_json({"result": outcome.result, "summary": outcome.summary}))


def _work_watched(job: Job, listener: Listener) -> Outcome:
    """Do a job of one process, which another watches, so that it is started again when it is killed."""
    if job.config is None:
        raise ConfigError("internal error: a job that is restarted has no configuration")
    return work_alone(job, ConfiguredData(job.config, listener.say)(), listener)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
