"""`trisect predict RUN`: outputs of every vertex or of pairs, in the user's order with the user's ids."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trisect.cli.source import DataDirOption, InterfaceOption, Spoken, sentence


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, as train has written it.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The file to write, .parquet or .npz. [default: predictions.parquet in RUN]"),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="A table of rows that came later, or a graph directory to predict on instead."),
    ] = None,
    vertices: Annotated[
        Path | None,
        typer.Option("--vertices", help="With --data: a table of the attributes of new or changed vertices."),
    ] = None,
    on_late: Annotated[
        str,
        typer.Option(
            "--on-late", help="What to do with new events that are not later than the trained ones: refuse, drop."
        ),
    ] = "refuse",
    steps: Annotated[
        str | None, typer.Option("--steps", help="Which steps of a timeline: last, all, 7, 3:10. [default: last]")
    ] = None,
    since: Annotated[
        int | None,
        typer.Option("--since", help="All steps from this one on; earlier ones are run only as far as needed."),
    ] = None,
    embeddings: Annotated[
        bool,
        typer.Option(
            "--embeddings/--no-embeddings", help="Write embeddings beside the predictions, or leave them out."
        ),
    ] = True,
    pairs: Annotated[
        Path | None, typer.Option("--pairs", help="Score the pairs of this table, which has the columns src and dst.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Write the so many pairs that are likeliest to be linked.")
    ] = None,
    per: Annotated[
        str, typer.Option("--per", help="With --top-k: so many in all, or of each source vertex: all, source.")
    ] = "all",
    known: Annotated[
        bool,
        typer.Option("--known/--new-only", help="With --top-k: also pairs that are linked already, or new ones alone."),
    ] = False,
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout", help="How to cut the work, like vertex=2; vertex=1 is one process. [default: as it was trained]"
        ),
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu or cuda. [default: as it was trained]")] = None,
    data_dir: DataDirOption = None,
    interface: InterfaceOption = None,
) -> None:
    """Write the predictions of a run to a file.

    Rows have your own vertex ids, and the parameters are those of the run's best epoch.
    """
    from trisect.comm.interface import use_interface
    from trisect.comm.world import world_from_environment
    from trisect.config import parse_layout
    from trisect.errors import ConfigError
    from trisect.train.outputs.prediction import Prediction, write_predictions

    if since is not None and steps is not None:
        raise ConfigError(f"--since is {since} and --steps is {steps}; give one of them.")
    if since is not None and since < 0:
        raise ConfigError(f"--since is {since}; it must be the number of a step, from 0 on.")
    if world_from_environment() is not None:
        use_interface(interface)
    elif interface is not None:
        sentence("--interface is not used: the ranks that are started here meet on the loopback interface.")
    asked = Prediction(
        run,
        out=out,
        data=data,
        vertices=vertices,
        on_late=on_late,  # type: ignore[arg-type]
        steps=f"{since}:" if since is not None else steps or "last",
        embeddings=embeddings,
        pairs=pairs,
        top_k=top_k,
        per=per,  # type: ignore[arg-type]
        known=known,
        layout=None if layout is None else parse_layout(layout),
        device=device,
        data_dir=data_dir,
    )
    write_predictions(asked, Spoken())
