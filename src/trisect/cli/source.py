"""Which configuration a command means, which run it continues, and how a sentence reaches the user."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from trisect.errors import CheckpointError, ConfigError, StoppedError, unknown

BUILT_IN = "deep"

# options that several commands take
LayoutOption = Annotated[
    str | None,
    typer.Option(
        "--layout", help="How to cut the work: vertex=2, layer=2,chunks=8, time=2, … or auto. [default: the file's]"
    ),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting, like train.epochs=20; may be given several times.")
]
DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="The folder of named data sets. [default: what TRISECT_DATA says]"),
]
InterfaceOption = Annotated[
    str | None,
    typer.Option("--interface", help="The network interface that ranks of several hosts listen on, like eth1."),
]


def stopped(target: Path, code: int) -> StoppedError:
    """Make the error of a run that was stopped; it says how to continue, where the run has begun."""
    begun = (target / "config.yaml").exists()
    error = StoppedError(
        f"Stopped; continue with: trisect train --resume --out {target}" if begun else "Stopped before training began."
    )
    error.exit_code = code
    return error


def examples() -> dict[str, Path]:
    """Give the configurations inside the package, by name."""
    folder = Path(str(files("trisect") / "examples"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_config(config: str | None) -> tuple[str, Path]:
    """Give the name and the file of a configuration: a path, the name of an example, or the built-in one."""
    built_in = examples()
    if config is None:
        return BUILT_IN, built_in[BUILT_IN]
    path = Path(config)
    if config in built_in and not path.is_file():
        return config, built_in[config]
    if not path.exists() and not path.suffix and path.name == config:
        raise ConfigError(f"{config} is no file; {unknown('example', config, built_in)}")
    return path.stem, path


def newest_run(name: str) -> Path:
    """Give the run of this name that was started last, under runs/."""
    # names end in the time of the start, so that the last in order is the newest
    runs = sorted(path.parent for path in Path("runs").glob(f"{name}-*-*/config.yaml"))
    if not runs:
        raise CheckpointError(f"There is no run of {name} under runs/ to resume; say which with --out.")
    return runs[-1]


def sentence(text: str) -> None:
    """Print one line for the user, as it is (no markup, no wrapping)."""
    typer.echo(text)


class Spoken:
    """A listener that says sentences to the user, and nothing of epochs."""

    def say(self, text: str) -> None:
        """Print a sentence of the run to the terminal."""
        sentence(text)

    def watch(self, monitor: str, beside: str = "") -> None:
        """Do nothing with the name of the measure that is watched."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Do nothing with an epoch's record."""
