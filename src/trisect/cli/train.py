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
    from trisect.cli.ranks import train_on_ranks
    from trisect.config import apply_overrides, load_config, parse_config
    from trisect.report import write_report
    from trisect.runtime import watched_memory
    from trisect.runtime.world import world_from_environment
    from trisect.train.from_config import prepare, run
    from trisect.train.run_directory import RunDirectory, read_config
    from trisect.train.supported import is_cut

    if resume:
        if config is None:
            settings = parse_config(apply_overrides(read_config(target).resolved(), set_ or [], layout))
        else:
            settings = load_config(source, set_ or [], layout)
    else:
        RunDirectory.refuse_used(target)
        settings = load_config(source, set_ or [], layout)
    cut = settings.layout.to_layout()
    if is_cut(cut) or world_from_environment() is not None:
        arguments = ["train", *([] if config is None else [config]), "--out", str(target)]
        arguments += [word for setting in set_ or [] for word in ("--set", setting)]
        arguments += ["--layout", layout] if layout is not None else []
        arguments += ["--resume"] if resume else []
        arguments += ["--data-dir", str(data_dir)] if data_dir is not None else []
        train_on_ranks(settings, cut, target, arguments, resume=resume, data_dir=data_dir)
        return
    with watched_memory():
        prepared = prepare(settings, data_dir)
        sentence(prepared.describe())
        begin = RunDirectory.reopen if resume else RunDirectory.create
        directory = begin(target, prepared.config)
        with directory, Progress(prepared.config.train.epochs) as progress:
            try:
                summary = run(prepared, directory, resume=resume, say=progress.say, on_epoch=progress.epoch)
            except KeyboardInterrupt:
                raise stopped(target) from None
    progress.metrics(summary)
    try:
        sentence(f"Report: {write_report(directory)}")
    except OSError as error:  # the run itself is safe
        sentence(f"The report could not be written: {error.strerror}.")
    sentence(f"Run directory: {target}")
