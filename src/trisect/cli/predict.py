"""`trisect predict RUN`: embeddings and predictions of every vertex, in the user's order with the user's ids."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from trisect.cli.source import Spoken, sentence


def predict(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="A .parquet or .npz file; predictions.parquet in the run otherwise.")
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option("--layout", help="How to cut the work, as for train (vertex=1: one process); else as trained."),
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu or cuda; else that of the training.")] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="As for train.")] = None,
    interface: Annotated[
        str | None,
        typer.Option("--interface", help="The network interface that ranks of several hosts listen on, like eth1."),
    ] = None,
) -> None:
    """Write embeddings and predictions, with the parameters of the best epoch."""
    from trisect.comm.interface import use_interface
    from trisect.comm.world import world_from_environment
    from trisect.config import apply_overrides, parse_config, parse_layout
    from trisect.train.from_config import ConfiguredData, resolve
    from trisect.train.job import Job
    from trisect.train.outputs.export import check_target, join, rows_folder, rows_folder_beside
    from trisect.train.outputs.predict import predicting
    from trisect.train.processes.faults import be_rank
    from trisect.train.processes.start import run_job
    from trisect.train.run.run_directory import RunDirectory

    target = run / "predictions.parquet" if out is None else out
    directory = RunDirectory.reopen(run)
    if device is not None:
        plain = apply_overrides(directory.config.resolved(), [f"train.device={device}"])
        directory = RunDirectory.reopen(run, parse_config(plain))
    check_target(target)
    chosen = predicting(directory.config.layout if layout is None else parse_layout(layout))
    config = resolve(directory.config, data_dir)
    data, folder = ConfiguredData(config), rows_folder(target)
    job = Job.of_config("predict", config, run, layout=chosen, rows=folder)
    world = world_from_environment()
    if world is not None:
        use_interface(interface)
    elif interface is not None:
        sentence("--interface is not used: the ranks that are started here meet on the loopback interface.")
    first = world is None or world.rank == 0
    with nullcontext() if world is None else be_rank(world), rows_folder_beside(target) if first else nullcontext():
        run_job(job, data, Spoken(), folders=[folder])
        if first:
            rows = join(folder, target, data.names, data.vertices, data.steps, timeline=data.timeline)
            sentence(f"Predictions: {target} ({rows:,} rows)")
