"""`trisect predict RUN`: embeddings and predictions of every vertex, in the user's order with the user's ids."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trisect.cli.source import sentence


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
) -> None:
    """Write embeddings and predictions, with the parameters of the best epoch."""
    from trisect.comm.world import world_from_environment
    from trisect.config import apply_overrides, parse_config, parse_layout
    from trisect.train.from_config import resolve, restore
    from trisect.train.outputs.export import check_target, export
    from trisect.train.outputs.predict_ranks import predicting
    from trisect.train.run.run_directory import RunDirectory

    target = run / "predictions.parquet" if out is None else out
    directory = RunDirectory.reopen(run)
    if device is not None:
        plain = apply_overrides(directory.config.resolved(), [f"train.device={device}"])
        directory = RunDirectory.reopen(run, parse_config(plain))
    check_target(target)
    chosen = predicting(directory.config.layout if layout is None else parse_layout(layout))
    if chosen.world > 1 or world_from_environment() is not None:
        from trisect.cli.ranks import predict_on_ranks

        rows = predict_on_ranks(directory, resolve(directory.config, data_dir), chosen, target)
    else:
        prepared = restore(directory, data_dir, sentence)
        rows = export(prepared.setup, prepared.record, target)
    if rows is not None:
        sentence(f"Predictions: {target} ({rows:,} rows)")
