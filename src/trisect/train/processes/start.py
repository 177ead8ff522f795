"""`run_job`: do a job in this process, as one rank under torchrun, or on local ranks that are started here."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from trisect.comm.cores import shared_cores, usable_cores
from trisect.comm.world import World, world_from_environment
from trisect.errors import FaultError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.train.checks import is_cut
from trisect.train.job import SHARDS, TOLD, Job
from trisect.train.memory_check import checked_data
from trisect.train.processes.folders import temporary_folder
from trisect.train.processes.launch import launch, require_room
from trisect.train.processes.listening import EpochsTo, Listener, NoListener, Relay
from trisect.train.processes.resources import explaining_limits
from trisect.train.ranks import cut_data
from trisect.train.recorders import Recorder
from trisect.train.rules import Rules
from trisect.train.run.continuing import check_resume, check_settings
from trisect.train.run.digest import FILE, digest_of
from trisect.train.run.run_directory import RunDirectory
from trisect.train.worker import PARAMETERS, RESULT, Outcome, read_outcome, work, work_alone

_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before a run is started again
ReadData = Callable[[], Graph | Timeline]
Say = Callable[[str], None]


def run_job(
    job: Job, read: ReadData, listener: Listener, *, recorder: Recorder | None = None, folders: Sequence[Path] = ()
) -> Outcome:
    """Do a job. Under torchrun every rank of the world calls this, and all get the same outcome.

    Args:
        read: reads the data; only processes that cut or hold all of them call it.
        listener: is told what rank 0 says.
        recorder: of `fit`; receives epochs, events and checkpoints in one process, and epochs alone from ranks.
        folders: temporary folders of the caller, which ranks that are started here remove if this process is killed.
    """
    world = world_from_environment()
    begun = job.resume and job.run is not None and RunDirectory.is_begun(job.run)
    if begun and world is None:
        check_settings(job)  # before the data are read, which may take long
    if job.verb in ("train", "fit"):
        read = checked_data(job, read)
    watched = job.restarts > 0 and world is None  # by this process, which starts others
    # each process of a world may fit a model of its own
    if not is_cut(job.layout) and not watched and (world is None or job.verb == "fit"):
        return work_alone(job, read(), listener, recorder)
    if recorder is not None:
        listener = EpochsTo(recorder, listener)
    if world is not None:
        say = listener.say if world.rank == 0 else NoListener().say
        return work(job, world, partial(_cut_under_torchrun, job, read, world, say), listener)
    require_room(job.layout.world)
    job = replace(job, command=uuid.uuid4().hex)
    with ExitStack() as stack:
        folder: Path | None = None
        before: FaultError | None = None
        while True:
            try:
                with explaining_limits():
                    if folder is None:
                        folder = stack.enter_context(_prepared(job, read, listener, begun=begun))
                    _launch(job, folder, listener, folders)
                    return read_outcome(folder)
            except FaultError as fault:
                comes_again = fault.unexpected and str(fault) == str(before)
                if job.restarted >= job.restarts or comes_again:
                    raise
                before = fault
            job = replace(job, resume=True, restarted=job.restarted + 1)
            listener.say(f"{before} Restart {job.restarted} of {job.restarts}.")
            time.sleep(min(_LONGEST_PAUSE, _PAUSE * 2 ** (job.restarted - 1)))


@contextmanager
def _prepared(job: Job, read: ReadData, listener: Listener, *, begun: bool) -> Iterator[Path]:
    """Make the folder of a job, with the shards of its ranks where it is cut; it stays for every restart.

    Args:
        begun: whether the run directory holds a run that the job continues.
    """
    with temporary_folder("trisect-job-") as folder:
        if is_cut(job.layout):
            shards = folder / SHARDS
            shards.mkdir()
            cut_job(job, read, shards, listener.say)
            if begun:
                check_resume(job, shards)
            if job.verb != "predict":
                listener.say(f"{job.layout.world} ranks: {job.layout}.")
        _say_crowded(job, job.layout.world, listener.say)
        yield folder


def _cut_under_torchrun(job: Job, read: ReadData, world: World, say: Say, folder: Path) -> None:
    """As `cut_job`; also say where the ranks of this host have to share its cores."""
    cut_job(job, read, folder, say)
    if "TORCHELASTIC_RUN_ID" in os.environ:  # SLURM gives each rank cores of its own, and only those are seen here
        _say_crowded(job, world.local_size, say)


def _say_crowded(job: Job, ranks: int, say: Say) -> None:
    crowded = shared_cores(ranks, usable_cores())
    if crowded is not None and job.options.device.startswith("cpu"):
        say(crowded)


def _launch(job: Job, folder: Path, listener: Listener, folders: Sequence[Path]) -> None:
    """Start the ranks of a job whose shards are in the folder, and wait for them."""
    for name in (TOLD, RESULT, PARAMETERS):
        (folder / name).unlink(missing_ok=True)
    launch(
        [sys.executable, "-m", "trisect.train.worker", str(folder)],
        job.layout.world,
        threads=job.options.threads,
        handed=job.write(folder),
        folders=[folder, *folders],
        startup=job.options.startup_timeout,
        grace=job.options.grace if job.verb == "train" else None,
        on_poll=Relay(folder / TOLD, listener).tell,
    )


def cut_job(job: Job, read: ReadData, folder: Path, say: Say = lambda text: None) -> None:
    """Read the data of a job, and write the shards of all its ranks into a folder."""
    data = read()
    if job.writes_run:
        (folder / FILE).write_text(digest_of(data))
    cut_data(data, job.model, job.task, job.layout, job.options, folder)
    Rules.measure(job, data, say).write(folder)
