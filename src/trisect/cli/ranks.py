"""A command on several ranks: start the local ones, or be one of them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path

from trisect.cli.progress import Progress
from trisect.cli.source import sentence, stopped
from trisect.config import Config
from trisect.layout import Layout
from trisect.report import write_report
from trisect.runtime.faults import LostRankError, leave, reporting_failures
from trisect.runtime.launch import launch, require_room
from trisect.runtime.world import World, world_from_environment
from trisect.train.continuing import check_resume
from trisect.train.distributed import cut_from_config, maker_of, run_rank
from trisect.train.export import join, pieces_beside, pieces_folder
from trisect.train.predict_ranks import RunCut, predict_rank
from trisect.train.run_directory import RunDirectory

SHARES = "TRISECT_SHARES"


def train_on_ranks(
    config: Config, layout: Layout, target: Path, arguments: list[str], *, resume: bool, data_dir: Path | None
) -> None:
    """Train under a layout: as a rank where torchrun or the launcher made this process one, else start the ranks.

    Args:
        arguments: of the command that the ranks are started with.
    """
    world = world_from_environment()
    if world is None:
        try:
            _start(config, layout, arguments, data_dir, target if resume else None)
        except KeyboardInterrupt:
            raise stopped(target) from None
        return
    world.require(layout)
    with as_rank(world):
        _be_rank(config, layout, target, world, resume=resume, data_dir=data_dir)


def predict_on_ranks(directory: RunDirectory, layout: Layout, target: Path, data_dir: Path | None) -> int | None:
    """Outputs of a run under a layout; how many rows were written, or None on ranks that did not write the file."""
    world = world_from_environment()
    cut = RunCut(directory.config, layout, data_dir)
    if world is None:
        require_room(layout.world)
        arguments = ["predict", str(directory.path), "--out", str(target), "--layout", _text(layout)]
        arguments += ["--data-dir", str(data_dir)] if data_dir is not None else []
        with tempfile.TemporaryDirectory(prefix="trisect-shares-") as shares, pieces_beside(target) as folder:
            cut(Path(shares))
            command = [sys.executable, "-m", "trisect", *arguments]
            threads = directory.config.train.threads
            launch(command, layout.world, threads=threads, environment={SHARES: shares}, folders=[shares, folder])
            return join(folder, target, cut.names, cut.vertices, cut.steps, timeline=cut.timeline)
    world.require(layout)
    shares_here = shares_from_launcher()
    # the launcher makes the folder and joins the pieces; under torchrun rank 0 does
    joins = shares_here is None and world.rank == 0
    with as_rank(world), pieces_beside(target) if joins else nullcontext(pieces_folder(target)) as folder:
        predict_rank(
            directory,
            layout,
            world,
            folder,
            shares=cut if shares_here is None else shares_here,
            data_dir=data_dir,
            say=sentence if world.rank == 0 else lambda text: None,
        )
        if joins:
            return join(folder, target, cut.names, cut.vertices, cut.steps, timeline=cut.timeline)
    return None


def _text(layout: Layout) -> str:
    """What --layout reads back to it."""
    given = {field.name: getattr(layout, field.name) for field in fields(layout)}
    given["blocks"] = given["blocks"] or "auto"
    return (
        ",".join(f"{name}={value}" for name, value in given.items() if value != getattr(Layout(), name)) or "vertex=1"
    )


@contextmanager
def as_rank(world: World) -> Iterator[None]:
    """Be one rank: whatever ends it badly is told to whoever started it."""
    try:
        with reporting_failures(world):
            yield
    except LostRankError as error:
        print(f"trisect: {error}", file=sys.stderr)
        leave(error.exit_code)


def shares_from_launcher() -> Path | None:
    """Where the launcher has put the cut data, or None under torchrun."""
    found = os.environ.get(SHARES)
    return None if found is None else Path(found)


def _start(config: Config, layout: Layout, arguments: list[str], data_dir: Path | None, resumed: Path | None) -> None:
    """Check and cut in this process, then train in others; `resumed`: the run that goes on."""
    require_room(layout.world)
    with tempfile.TemporaryDirectory(prefix="trisect-shares-") as folder:
        resolved = cut_from_config(config, layout, Path(folder), data_dir)
        if resumed is not None:
            check_resume(resumed, resolved, maker_of(resolved), layout, Path(folder))
        sentence(f"{layout.world} ranks: {_text(layout)}.")
        command = [sys.executable, "-m", "trisect", *arguments]
        launch(command, layout.world, threads=config.train.threads, environment={SHARES: folder}, folders=[folder])


def _be_rank(
    config: Config, layout: Layout, target: Path, world: World, *, resume: bool, data_dir: Path | None
) -> None:
    begin = RunDirectory.reopen if resume else RunDirectory.create
    quiet = world.rank > 0
    with Progress(config.train.epochs, live=False if quiet else None) as progress:
        directory, summary = run_rank(
            config,
            layout,
            world,
            lambda resolved: begin(target, resolved),
            shares=shares_from_launcher(),
            data_dir=data_dir,
            resume=resume,
            say=(lambda text: None) if quiet else progress.say,
            on_epoch=(lambda record: None) if quiet else progress.epoch,
        )
    if quiet:
        return
    progress.metrics(summary)
    try:
        sentence(f"Report: {write_report(directory)}")
    except OSError as error:
        sentence(f"The report could not be written: {error.strerror}.")
    sentence(f"Run directory: {directory.path}")
