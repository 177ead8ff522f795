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
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="As for train.")] = None,
) -> None:
    """Write embeddings and predictions, with the parameters of the best epoch."""
    from trisect.train.export import check_target, export
    from trisect.train.from_config import restore
    from trisect.train.run_directory import RunDirectory

    target = run / "predictions.parquet" if out is None else out
    directory = RunDirectory.reopen(run)
    check_target(target)
    prepared = restore(directory, data_dir, sentence)
    rows = export(prepared.setup, prepared.record, target)
    sentence(f"Predictions: {target} ({rows:,} rows)")
