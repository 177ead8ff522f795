"""`run_job`: do a job in this process, as one rank under torchrun, or on local ranks that are started here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from trisect.comm.world import world_from_environment
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.train.checks import is_cut
from trisect.train.job import SHARDS, TOLD, Job
from trisect.train.loop import Recorder
from trisect.train.memory_check import checked_data
from trisect.train.processes.folders import temporary_folder
from trisect.train.processes.launch import launch, require_room
from trisect.train.processes.listening import EpochsTo, Listener, Relay
from trisect.train.processes.resources import explaining_limits
from trisect.train.ranks import cut_data
from trisect.train.run.continuing import check_resume, check_settings
from trisect.train.run.digest import FILE, digest_of
from trisect.train.worker import Outcome, read_outcome, work, work_alone

ReadData = Callable[[], Graph | Timeline]


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
    if job.resume and world is None:
        check_settings(job)  # before the data are read, which may take long
    if job.verb in ("train", "fit"):
        read = checked_data(job, read)
    # each process of a world may fit a model of its own
    if not is_cut(job.layout) and (world is None or job.verb == "fit"):
        return work_alone(job, read(), listener, recorder)
    if recorder is not None:
        listener = EpochsTo(recorder, listener)
    if world is not None:
        return work(job, world, partial(cut_job, job, read), listener)
    require_room(job.layout.world)
    with temporary_folder("trisect-job-") as folder:
        shards = folder / SHARDS
        shards.mkdir()
        with explaining_limits():
            cut_job(job, read, shards)
        if job.resume:
            check_resume(job, shards)
        if job.verb != "predict":
            listener.say(f"{job.layout.world} ranks: {job.layout}.")
        launch(
            [sys.executable, "-m", "trisect.train.worker", str(folder)],
            job.layout.world,
            threads=job.options.threads,
            handed=job.write(folder),
            folders=[folder, *folders],
            startup=job.options.startup_timeout,
            on_poll=Relay(folder / TOLD, listener).tell,
        )
        return read_outcome(folder)


def cut_job(job: Job, read: ReadData, folder: Path) -> None:
    """Read the data of a job, and write the shards of all its ranks into a folder."""
    data = read()
    if job.writes_run:
        (folder / FILE).write_text(digest_of(data))
    cut_data(data, job.model, job.task, job.layout, job.options, folder)
