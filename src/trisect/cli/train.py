"""`trisect train`: a configuration → a run directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from trisect.cli.source import find_config, newest_run, sentence, stopped


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
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, or the newest of this name.")
    ] = False,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Where named data sets lie (or TRISECT_DATA).")
    ] = None,
) -> None:
    """Train a model; without CONFIG the built-in example, a deep network on a generated community graph."""
    name, source = find_config(config)
    if resume:
        target = out if out is not None else newest_run(name)
    else:
        target = out if out is not None else Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"

    # torch comes with these, so they wait until the arguments are known to be sound
    from trisect.cli.progress import Progress
    from trisect.cli.ranks import show_run, train_on_ranks
    from trisect.comm.world import world_from_environment
    from trisect.config import apply_overrides, load_config, parse_config
    from trisect.train.from_config import prepare, resolve, run
    from trisect.train.processes.memory import watched_memory
    from trisect.train.run.run_directory import RunDirectory, read_config
    from trisect.train.supported import is_cut

    if resume and config is None:
        settings = parse_config(apply_overrides(read_config(target).resolved(), set_ or [], layout))
    else:
        if not resume:
            RunDirectory.refuse_used(target)
        settings = load_config(source, set_ or [], layout)
    settings = resolve(settings, data_dir)
    if is_cut(settings.layout) or world_from_environment() is not None:
        train_on_ranks(settings, target, resume=resume)
        return
    with watched_memory():
        prepared = prepare(settings)
        sentence(prepared.describe())
        begin = RunDirectory.reopen if resume else RunDirectory.create
        directory = begin(target, prepared.config)
        with directory, Progress(settings.train.epochs) as progress:
            try:
                summary = run(prepared, directory, resume=resume, listener=progress)
            except KeyboardInterrupt:
                raise stopped(target) from None
    show_run(progress, summary, directory)
