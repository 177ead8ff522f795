"""`trisect report RUN [RUN …]`: a run, or several beside each other, as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

COMPARISON = "comparison.html"


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="A run directory, or several.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help=f"The file to write. [default: report.html in RUN; of several runs {COMPARISON} in this folder]",
        ),
    ] = None,
) -> None:
    """Write a run, or several, as one HTML page.

    A run that is still going on, or that has failed, has a report too.
    """
    from trisect.errors import TrisectError
    from trisect.report import write_comparison, write_report
    from trisect.train.run.run_directory import RunDirectory

    directories = [RunDirectory.reopen(run) for run in runs]
    if out is not None and not out.parent.is_dir():
        raise TrisectError(f"--out is {out}, but the directory {out.parent} does not exist.")
    if out is not None and out.is_dir():
        raise TrisectError(f"--out is {out}, which is a directory; give a file, such as {out / 'report.html'}.")
    if len(directories) == 1:
        typer.echo(f"Report: {write_report(directories[0], out)}")
    else:
        typer.echo(f"Report: {write_comparison(directories, Path(COMPARISON) if out is None else out)}")
