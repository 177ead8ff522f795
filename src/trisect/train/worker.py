"""One rank of a run: `python -m trisect.train.worker FOLDER`, where FOLDER has the job and the shards.

Our launcher starts it so, for the command line and for `fit`. It is a fresh interpreter that never imports the caller's
main module, so that notebooks and scripts without a guard work. (A fork would inherit torch's thread pools in the
middle of their work, and autograd refuses it.) Under torchrun each process that it started calls `work` itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh
from trisect.comm.neighbours import Gather
from trisect.comm.transport import Transport
from trisect.comm.world import World, world_from_environment
from trisect.errors import CheckpointError, ConfigError, TrisectError
from trisect.shards.shares import Cut, read_cut
from trisect.shards.timeline_shares import TimelineCut
from trisect.train.device import device_of_rank
from trisect.train.job import SHARDS, TOLD, Job
from trisect.train.loop import Recorder, Result, Trainer
from trisect.train.outputs.predict_ranks import write_rows
from trisect.train.processes.faults import be_rank, leave
from trisect.train.processes.joined import joined
from trisect.train.processes.listening import Listener, NoListener, WrittenListener
from trisect.train.processes.memory import watched_memory
from trisect.train.ranks import EpochsOnly, RankRecorder, rank_setup
from trisect.train.run.run_directory import RunDirectory
from trisect.train.run.summary import summarise
from trisect.train.setup import Setup

RESULT, PARAMETERS = "result.json", "parameters.safetensors"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a rank knows when a run has ended; the same on all ranks.

    Attributes:
        summary: as summary.json has it; empty for `predict`.
        result: of `fit`: the measured part of a `Result`, as plain values.
        parameters: of `fit`: all trained parameters by name.
    """

    summary: dict[str, Any]
    result: dict[str, Any]
    parameters: dict[str, Tensor]


def work(job: Job, world: World, shards: Path | Callable[[Path], None], listener: Listener) -> Outcome:
    """Do one rank's share of a job.

    Args:
        shards: where the data lie, cut; or (under torchrun) a function that cuts them into a folder, which the first
            rank of each host calls.
        listener: of rank 0; other ranks tell nobody.
    """
    options = job.options
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = device_of_rank(options.device, world.local_rank)
    listener = listener if world.rank == 0 else NoListener()
    with watched_memory(), joined(job.layout, world, device, options.timeout, shards) as (mesh, folder):
        rank = _Rank(job, mesh, read_cut(folder), world.local_size, listener)
        return {"train": rank.train, "fit": rank.fit, "predict": rank.predict}[job.verb]()


class _Rank:
    """A rank that has joined the others."""

    def __init__(self, job: Job, mesh: Mesh, cut: Cut | TimelineCut, local_ranks: int, listener: Listener) -> None:
        self.job, self.mesh, self.cut, self.listener = job, mesh, cut, listener
        self.local_ranks = local_ranks
        self.gather: Gather = Transport(mesh, Ledger()).gather

    def train(self) -> Outcome:
        """Train, and write every file of the run directory but the report."""
        directory = self._directory()
        setup = self._setup()
        with directory if self.mesh.rank == 0 else nullcontext():
            state = self._continue(directory) if self.job.resume else None
            if self.mesh.rank == 0:
                directory.write_plan(setup.program.plan())
            recorder = RankRecorder(directory, self.mesh, self.gather, self.listener.epoch)
            try:
                result = self._run(setup, recorder, state)
            finally:
                recorder.close()
        self.gather(None)  # every rank's events are on disk
        seconds = [record["seconds"] for record in directory.metrics()]
        summary = self._summary(setup, result, seconds)
        if self.mesh.rank == 0:
            directory.write_summary(summary)
        return Outcome(summary, {}, {})

    def fit(self) -> Outcome:
        """Train, and give what was measured and all trained parameters."""
        setup = self._setup()
        result = self._run(setup, EpochsOnly(self.listener.epoch))
        own = {name: value.detach().cpu() for name, value in result.modules.state_dict().items()}
        parameters: dict[str, Tensor] = {}
        for part in self.gather(own if self.mesh.part_index == 0 and self.mesh.run_index == 0 else {}):
            parameters.update(part)
        kept = [field.name for field in fields(Result) if field.name not in ("modules", "program")]
        return Outcome(self._summary(setup, result), {name: getattr(result, name) for name in kept}, parameters)

    def predict(self) -> Outcome:
        """Write the rows of this rank into the folder of saved rows, which rank 0 or the launcher has made."""
        config, run, rows = self.job.config, self.job.run, self.job.rows
        if config is None or run is None or rows is None:
            raise ConfigError("internal error: a job that predicts has no run directory")
        require_visible(rows, self.gather)
        write_rows(
            self.job, RunDirectory(run, config), self.cut, self.mesh, self.gather, self.local_ranks, self.listener
        )
        self.gather(None)  # all ranks have written
        return Outcome({}, {}, {})

    def _directory(self) -> RunDirectory:
        config, run = self.job.config, self.job.run
        if config is None or run is None:
            raise ConfigError("internal error: a job that trains has no run directory")
        if self.mesh.rank == 0:
            RunDirectory.reopen(run, config) if self.job.resume else RunDirectory.create(run, config)
        path = Path(self.gather(str(run.absolute()))[0])
        require_visible(path, self.gather)
        return RunDirectory(path, config)

    def _setup(self) -> Setup:
        job = self.job
        return rank_setup(self.cut, job.model, job.task, self.mesh, job.options, self.local_ranks)

    def _continue(self, directory: RunDirectory) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The state of the newest checkpoint; what was written after it is dropped."""
        # which returns when all have read, and not before: rank 0 writes next
        checkpoint = directory.checkpoints.latest(self.listener.say, rank=self.mesh.rank, gather=self.gather)
        self.listener.say(directory.describe_start(checkpoint))
        if self.mesh.rank == 0:
            directory.continue_from(checkpoint)
        self.gather(None)
        return None if checkpoint is None else (checkpoint.tensors, checkpoint.meta)

    def _run(
        self, setup: Setup, recorder: Recorder, state: tuple[dict[str, Tensor], dict[str, Any]] | None = None
    ) -> Result:
        trainer = Trainer(setup, self.job.options, recorder)
        if state is not None:
            trainer.load(*state)
        return trainer.run()

    def _summary(self, setup: Setup, result: Result, seconds: list[float] | None = None) -> dict[str, Any]:
        # parts and runs of a stage hold the same parameters
        first = self.mesh.part_index == 0 and self.mesh.run_index == 0
        counts = self.gather(setup.parameters if first else 0)
        return summarise(result, setup.layout, parameters=sum(counts), partition=self.cut.quality, seconds=seconds)


def read_outcome(folder: Path) -> Outcome:
    """What the ranks of a `fit` left in a folder."""
    from safetensors.torch import load_file

    plain = json.loads((folder / RESULT).read_text())
    return Outcome(plain["summary"], plain["result"], load_file(folder / PARAMETERS))


def require_visible(folder: Path, gather: Gather) -> None:
    """Raise on all ranks where one of them does not see the folder that rank 0 sees."""
    blind = [str(rank) for rank, seen in enumerate(gather(folder.is_dir())) if not seen]
    if blind:
        raise CheckpointError(
            f"The directory {folder} does not exist where rank {', '.join(blind)} runs; put it on a file system that"
            " all hosts share."
        )


def main(folder: Path) -> None:
    """The main function of a rank that `start.run_on_ranks` has started."""
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
        outcome = work(job, world, folder / SHARDS, listener)
        if world.rank == 0 and job.verb == "fit":
            from safetensors.torch import save_file

            save_file({name: value.contiguous() for name, value in outcome.parameters.items()}, folder / PARAMETERS)
            (folder / RESULT).write_text(json.dumps({"result": outcome.result, "summary": outcome.summary}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
