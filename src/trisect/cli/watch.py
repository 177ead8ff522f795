"""`trisect watch RUN`: a run that another process makes, as it goes on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trisect.report.watch.follow import Follower

_PAUSE = 0.5  # seconds between two looks


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run that is going on, or has ended.")],
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Show it in this terminal, and end when the run ends.")
    ] = False,
    port: Annotated[int, typer.Option("--port", help="The port of the page; with 0, any that is free.")] = 0,
) -> None:
    """Show a run as it goes on.

    It is shown on a page that only this machine can open, or in the terminal.
    """
    from trisect.errors import ConfigError
    from trisect.report.watch.follow import Follower

    if not 0 <= port <= 65535:
        raise ConfigError(f"--port is {port}; it must lie between 0 and 65535.")
    follower = Follower(run)
    if terminal:
        _in_terminal(follower)
        return
    from trisect.report.watch.serve import Server

    with Server(follower, port) as server:
        typer.echo(f"Open {server.address} in a browser on this machine; Ctrl-C ends it. The run goes on without it.")
        server.serve_forever(poll_interval=_PAUSE)


def _in_terminal(follower: Follower) -> None:
    from trisect.api.progress import Progress

    with Progress(follower.epochs) as progress:
        progress.say(f"{follower.run}: {follower.title}")
        if follower.monitor is not None:
            progress.watch(follower.monitor, follower.beside)
        while True:
            for record in follower.look():
                progress.epoch(record)
            if follower.ended:
                break
            time.sleep(_PAUSE)
    progress.say("The run has ended.")
