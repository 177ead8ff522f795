"""`trisect train`: a configuration → a run directory."""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from trisect.cli.requests import stop_code
from trisect.cli.source import (
    DataDirOption,
    InterfaceOption,
    LayoutOption,
    SetOption,
    find_config,
    newest_run,
    sentence,
    stopped,
)
from trisect.errors import CheckpointError, ConfigError, StoppedError


def train(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG.yaml",
            help="A configuration file, or the name of an example: deep (the default), large, timeline.",
        ),
    ] = None,
    layout: LayoutOption = None,
    set_: SetOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run directory. [default: runs/NAME-TIME]")] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", help="Let the planner choose a layout of at most so many processes.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run in --out, or begin it where there is none; without --out, the newest under runs/.",
        ),
    ] = False,
    restarts: Annotated[
        int, typer.Option("--restarts", help="After a fault, go on from the newest checkpoint, at most so many times.")
    ] = 0,
    data_dir: DataDirOption = None,
    interface: InterfaceOption = None,
) -> None:
    """Train a model, and write a run directory with a report.

    Without CONFIG.yaml it trains the built-in example: 32 layers on a generated graph of communities.
    """
    if devices is not None and devices < 1:
        raise ConfigError(f"--devices is {devices}; it must be at least 1.")
    if restarts < 0:
        raise ConfigError(f"--restarts is {restarts}; it must be at least 0.")
    name, source = find_config(config)

    # torch comes with these, so they wait until the arguments are known to be sound
    from trisect.api.progress import Progress
    from trisect.api.stopping import conclude_stopped
    from trisect.comm.interface import use_interface
    from trisect.comm.world import restart_count, world_from_environment
    from trisect.config import apply_overrides, load_config, parse_config
    from trisect.report import write_report
    from trisect.train.from_config import ConfiguredData, resolve
    from trisect.train.job import Job
    from trisect.train.planning import settle_layout
    from trisect.train.processes.faults import be_rank, refusing_again
    from trisect.train.processes.start import run_job
    from trisect.train.run.run_directory import RunDirectory, read_config
    from trisect.train.run.trackers import require_trackers

    world = world_from_environment()
    first = world is None or world.rank == 0
    again = 0 if world is None else restart_count()
    target = _target(name, out, resume=resume, again=again > 0)
    with refusing_again(world):
        begun = RunDirectory.is_begun(target)
        if config is None and (resume or (again > 0 and begun)):
            # with --devices the planner chooses anew
            cut = layout if layout is not None or devices is None else "auto"
            settings = parse_config(apply_overrides(read_config(target).resolved(), set_ or [], cut))
        else:
            if not resume and again == 0:
                RunDirectory.refuse_used(target)
            settings = load_config(source, set_ or [], layout)
        settings = resolve(settings, data_dir)
        require_trackers(settings.train.track)
        if world is not None:
            use_interface(interface)
            if first and restarts > 0:
                sentence(
                    "--restarts is not used: whoever started the ranks starts them again (torchrun --max-restarts)."
                )
        elif interface is not None:
            sentence("--interface is not used: the ranks that are started here meet on the loopback interface.")
        progress = Progress(settings.train.epochs, live=None if first else False)
        say = progress.say if first else lambda text: None
        source_data = ConfiguredData(settings, say)
        settings, data = settle_layout(settings, source_data, devices, say)
        job = Job.of_config("train", settings, target, resume=resume or again > 0, restarts=restarts, restarted=again)
        try:
            with nullcontext() if world is None else be_rank(world), progress:
                summary = run_job(job, data, progress).summary
        except (StoppedError, KeyboardInterrupt) as error:
            code = error.exit_code if isinstance(error, StoppedError) else stop_code()
            if first:
                signal: Literal["SIGINT", "SIGTERM"] = "SIGTERM" if code == StoppedError.exit_code else "SIGINT"
                conclude_stopped(target, signal, sentence, progress.metrics)
            raise stopped(target, code) from None
    if not first:
        return
    progress.metrics(summary)
    try:
        directory = RunDirectory.reopen(target)
        directory.name_classes(source_data.classes)
        sentence(f"Report: {write_report(directory)}")
    except OSError as error:  # the run itself is safe
        sentence(f"The report could not be written: {error.strerror}.")
    sentence(f"Run directory: {target}")


def _target(name: str, out: Path | None, *, resume: bool, again: bool) -> Path:
    """Give the run directory; `again`: torchrun has started the ranks before."""
    if out is not None:
        return out
    if resume:
        return newest_run(name)
    if again:
        with suppress(CheckpointError):
            return newest_run(name)
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
