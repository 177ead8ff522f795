"""`trisect train` with a layout: start the local ranks, or be one of them."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from trisect.cli.progress import Progress
from trisect.cli.source import StoppedError, sentence
from trisect.config import Config
from trisect.errors import LayoutError, TrisectError
from trisect.layout import Layout
from trisect.report import write_report
from trisect.runtime.launch import World, launch, tell_failure, world_from_environment
from trisect.train.distributed import cut_from_config, run_rank
from trisect.train.run_directory import RunDirectory
from trisect.train.supported import require_supported

SHARES = "TRISECT_SHARES"


def train_on_ranks(
    config: Config, layout: Layout, target: Path, arguments: list[str], *, resume: bool, data_dir: Path | None
) -> None:
    """Train under a layout: as a rank where torchrun or the launcher made this process one, else start the ranks.

    Args:
        arguments: of the command that the ranks are started with.
    """
    require_supported(layout)
    world = world_from_environment()
    if world is None:
        _start(config, layout, arguments, data_dir)
        return
    if world.size != layout.world:
        raise LayoutError(
            f"The layout needs {layout.time} × {layout.layer} × {layout.vertex} = {layout.world} ranks, but"
            f" {world.size} were started; start {layout.world}, or change --layout."
        )
    try:
        _be_rank(config, layout, target, world, resume=resume, data_dir=data_dir)
    except KeyboardInterrupt:
        raise StoppedError(f"Stopped; continue with: trisect train --resume --out {target}") from None
    except TrisectError as error:
        tell_failure(world.rank, str(error), of_peer=False)
        raise
    except RuntimeError as error:
        # torch.distributed says so when another rank is gone, or silent for too long
        lost = any(word in str(error) for word in ("Connection closed", "Connection reset", "Timed out", "timed out"))
        tell_failure(world.rank, str(error).splitlines()[0], of_peer=lost)
        raise


def _start(config: Config, layout: Layout, arguments: list[str], data_dir: Path | None) -> None:
    """Check and cut in this process, then train in others."""
    with tempfile.TemporaryDirectory(prefix="trisect-shares-") as folder:
        cut_from_config(config, layout, Path(folder), data_dir)
        sentence(f"{layout.world} ranks: layer={layout.layer}, vertex={layout.vertex}, chunks={layout.chunks}.")
        command = [sys.executable, "-m", "trisect", *arguments]
        launch(command, layout.world, threads=config.train.threads, environment={SHARES: folder})


def _be_rank(
    config: Config, layout: Layout, target: Path, world: World, *, resume: bool, data_dir: Path | None
) -> None:
    shares = os.environ.get(SHARES)
    begin = RunDirectory.reopen if resume else RunDirectory.create
    quiet = world.rank > 0
    with Progress(config.train.epochs, live=False if quiet else None) as progress:
        directory, summary = run_rank(
            config,
            layout,
            world,
            lambda resolved: begin(target, resolved),
            shares=None if shares is None else Path(shares),
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
