"""`trisect report RUN`: the run as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to; report.html in the run directory otherwise.")
    ] = None,
) -> None:
    """Write a run, finished or not, as one HTML page."""
    from trisect.errors import TrisectError
    from trisect.report import write_report
    from trisect.train.run.run_directory import RunDirectory

    directory = RunDirectory.reopen(run)
    if out is not None and not out.parent.is_dir():
        raise TrisectError(f"--out is {out}, but the directory {out.parent} does not exist.")
    typer.echo(f"Report: {write_report(directory, out)}")
