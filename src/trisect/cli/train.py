"""`trisect train`: a configuration → a run directory."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from trisect.cli.source import find_config, newest_run, sentence, stopped
from trisect.errors import ConfigError


def train(
    config: Annotated[
        str | None,
        typer.Argument(metavar="[CONFIG.yaml]", help="A configuration, or the name of an example (deep, timeline)."),
    ] = None,
    layout: Annotated[
        str | None, typer.Option("--layout", help="How to cut the work, like vertex=2,layer=2, or auto.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change a setting, like train.epochs=20.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run directory; runs/NAME-TIME otherwise.")] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", help="Let the planner choose a layout of at most so many ranks.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, or the newest of this name.")
    ] = False,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Where named data sets lie (or TRISECT_DATA).")
    ] = None,
    interface: Annotated[
        str | None,
        typer.Option("--interface", help="The network interface that ranks of several hosts listen on, like eth1."),
    ] = None,
) -> None:
    """Train a model; without CONFIG the built-in example, a deep network on a generated community graph."""
    if devices is not None and devices < 1:
        raise ConfigError(f"--devices is {devices}; it must be at least 1.")
    name, source = find_config(config)
    if resume:
        target = out if out is not None else newest_run(name)
    else:
        target = out if out is not None else Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"

    # torch comes with these, so they wait until the arguments are known to be sound
    from trisect.api.progress import Progress
    from trisect.comm.interface import use_interface
    from trisect.comm.world import world_from_environment
    from trisect.config import apply_overrides, load_config, parse_config
    from trisect.report import write_report
    from trisect.train.from_config import ConfiguredData, resolve
    from trisect.train.job import Job
    from trisect.train.planning import settle_layout
    from trisect.train.processes.faults import be_rank
    from trisect.train.processes.start import run_job
    from trisect.train.run.run_directory import RunDirectory, read_config

    if resume and config is None:
        settings = parse_config(apply_overrides(read_config(target).resolved(), set_ or [], layout))
    else:
        if not resume:
            RunDirectory.refuse_used(target)
        settings = load_config(source, set_ or [], layout)
    settings = resolve(settings, data_dir)
    world = world_from_environment()
    if world is not None:
        use_interface(interface)
    elif interface is not None:
        sentence("--interface is not used: the ranks that are started here meet on the loopback interface.")
    first = world is None or world.rank == 0
    progress = Progress(settings.train.epochs, live=None if first else False)
    say = progress.say if first else lambda text: None
    source_data = ConfiguredData(settings, say)
    settings, data = settle_layout(settings, source_data, devices, say)
    job = Job.of_config("train", settings, target, resume=resume)
    try:
        with nullcontext() if world is None else be_rank(world), progress:
            summary = run_job(job, data, progress).summary
    except KeyboardInterrupt:
        raise stopped(target) from None
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
