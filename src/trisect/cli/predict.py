"""`trisect predict RUN`: outputs of every vertex or of pairs, in the user's order with the user's ids."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trisect.cli.source import Spoken, sentence


def predict(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="A .parquet or .npz file; predictions.parquet in the run otherwise.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="A table of rows that came later, or a graph directory that stands alone."),
    ] = None,
    vertices: Annotated[
        Path | None, typer.Option("--vertices", help="Beside a table: attributes of new or changed vertices.")
    ] = None,
    on_late: Annotated[
        str, typer.Option("--on-late", help="Events that are not later than the trained ones: refuse, or drop.")
    ] = "refuse",
    steps: Annotated[
        str | None, typer.Option("--steps", help="Steps of a timeline: last, all, 7, 3:10; by default the last.")
    ] = None,
    since: Annotated[
        int | None, typer.Option("--since", help="The steps from this one on; earlier ones are run as far as needed.")
    ] = None,
    embeddings: Annotated[
        bool, typer.Option("--embeddings/--no-embeddings", help="Embeddings beside the predictions.")
    ] = True,
    pairs: Annotated[Path | None, typer.Option("--pairs", help="A table of src and dst: score these pairs.")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="The so many best pairs.")] = None,
    per: Annotated[str, typer.Option("--per", help="With --top-k: the best of all, or of each source.")] = "all",
    known: Annotated[
        bool, typer.Option("--known/--new-only", help="With --top-k: whether pairs that are linked now may be given.")
    ] = False,
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
