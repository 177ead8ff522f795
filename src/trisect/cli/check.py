"""`trisect check`: everything that would go wrong at the start, without starting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from trisect.cli.source import find_config, sentence
from trisect.errors import TrisectError

Value = TypeVar("Value")


def check(
    config: Annotated[str, typer.Argument(metavar="CONFIG.yaml", help="A configuration, or the name of an example.")],
    layout: Annotated[str | None, typer.Option("--layout", help="As for train.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="As for train.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also look whether a run could be put there.")] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="As for train.")] = None,
) -> None:
    """Read the data, build the model, and say what is wrong; writes nothing, trains nothing."""
    from trisect.comm.world import world_from_environment
    from trisect.config import load_config
    from trisect.ops.memory import free_bytes
    from trisect.train import from_config
    from trisect.train.device import check_device, device_of_rank
    from trisect.train.estimate import estimate_memory
    from trisect.train.processes.launch import require_room
    from trisect.train.run.run_directory import RunDirectory

    problems: list[TrisectError] = []

    def attempt(action: Callable[[], Value]) -> Value | None:
        """Do one thing that may go wrong, and collect what is wrong with it."""
        try:
            return action()
        except TrisectError as error:
            # a later step may stumble over what an earlier one has said
            if str(error) not in map(str, problems):
                problems.append(error)
            return None

    _, source = find_config(config)
    settings = from_config.resolve(load_config(source, set_ or [], layout), data_dir)
    sentence("settings: sound")
    world = settings.layout.world
    sentence(f"layout: {world} rank{'s' if world > 1 else ''}")
    if world_from_environment() is None:
        attempt(lambda: require_room(world))
    ranks_here = world if world_from_environment() is None else 1
    device = attempt(lambda: check_device(settings.train.device))
    if device is not None and attempt(lambda: device_of_rank(settings.train.device, ranks_here - 1)) is None:
        device = None
    if device is not None:
        sentence(f"device: {device}")
    if out is not None:
        attempt(lambda: RunDirectory.refuse_used(out))
    record = attempt(lambda: from_config.load_record(settings))
    if record is not None:
        sentence(from_config.describe_record(record))
        note = from_config.edge_note(settings, record)
        if note is not None:
            sentence(note)
    if record is not None and device is not None:
        setup = attempt(lambda: from_config.build_setup(settings, record))
        if setup is not None:
            sentence(setup.describe())
            need, free = estimate_memory(setup, record.vertices, settings.layout), free_bytes(device)
            sentence(f"memory: about {need / 2**20:,.0f} MiB needed, {free / 2**20:,.0f} MiB free")
            if need > free:
                problems.append(
                    TrisectError(
                        f"Training would need about {need / 2**20:,.0f} MiB on {device}, where"
                        f" {free / 2**20:,.0f} MiB are free; make the model or the data smaller."
                    )
                )
    if problems:
        for problem in problems[:-1]:
            typer.echo(f"trisect: {problem}", err=True)
        raise problems[-1]
    sentence("Everything is ready to train.")
