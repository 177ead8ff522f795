"""A command on several ranks: start the local ones, or be one of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from trisect.cli.progress import Progress
from trisect.cli.source import sentence, stopped
from trisect.comm.world import world_from_environment
from trisect.config import Config
from trisect.layout import Layout
from trisect.report import write_report
from trisect.train.from_config import DataCut
from trisect.train.job import Job
from trisect.train.outputs.export import join, rows_folder, rows_folder_beside
from trisect.train.processes.faults import be_rank
from trisect.train.processes.listening import NoListener
from trisect.train.processes.start import run_on_ranks
from trisect.train.run.continuing import check_resume
from trisect.train.run.run_directory import RunDirectory
from trisect.train.worker import work


def train_on_ranks(config: Config, target: Path, *, resume: bool) -> None:
    """Train under a layout: as a rank where torchrun made this process one, else on ranks that are started here.

    Args:
        config: resolved.
    """
    job = Job.of_config("train", config, target, resume=resume)
    world = world_from_environment()
    cut = DataCut(config, job.layout, sentence if world is None or world.rank == 0 else lambda text: None)
    if world is not None:
        world.require(job.layout)
        with be_rank(world), Progress(config.train.epochs, live=None if world.rank == 0 else False) as progress:
            summary = work(job, world, cut, progress).summary
        if world.rank == 0:
            show_run(progress, summary, RunDirectory(target, config))
        return

    def before(shards: Path) -> None:
        if resume:
            check_resume(job, shards)
        sentence(f"{job.layout.world} ranks: {job.layout}.")

    progress = Progress(config.train.epochs)
    try:
        with progress, run_on_ranks(job, cut, progress, before=before):
            pass
    except KeyboardInterrupt:
        raise stopped(target) from None
    directory = RunDirectory(target, config)
    show_run(progress, directory.summary() or {}, directory)


def predict_on_ranks(directory: RunDirectory, config: Config, layout: Layout, target: Path) -> int | None:
    """Outputs of a run under a layout; how many rows were written, or None on ranks that did not write the file.

    Args:
        config: of the run, resolved.
    """
    world = world_from_environment()
    job = Job.of_config("predict", config, directory.path, layout=layout, rows=rows_folder(target))
    cut = DataCut(config, layout)
    if world is None:
        with rows_folder_beside(target) as folder:
            with run_on_ranks(job, cut, _Spoken(), folders=[folder]):
                pass
            return join(folder, target, cut.names, cut.vertices, cut.steps, timeline=cut.timeline)
    world.require(layout)
    with be_rank(world), rows_folder_beside(target) if world.rank == 0 else nullcontext(rows_folder(target)) as folder:
        work(job, world, cut, _Spoken())
        if world.rank == 0:
            return join(folder, target, cut.names, cut.vertices, cut.steps, timeline=cut.timeline)
    return None


class _Spoken(NoListener):
    """Says sentences, and nothing of epochs."""

    def say(self, text: str) -> None:
        sentence(text)


def show_run(progress: Progress, summary: Mapping[str, Any], directory: RunDirectory) -> None:
    """The figures of a run that has ended, its report, and where it lies."""
    progress.metrics(summary)
    try:
        sentence(f"Report: {write_report(directory)}")
    except OSError as error:  # the run itself is safe
        sentence(f"The report could not be written: {error.strerror}.")
    sentence(f"Run directory: {directory.path}")
