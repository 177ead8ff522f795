"""`trisect bench NAME`: a measurement of `benchmarks/trisect_bench`, shown and, where asked for, written as JSON."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import trisect
from trisect.errors import ConfigError, RunError, TrisectError, unknown
from trisect.settings.writing import to_json


def bench(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which measurement; without it, all names are listed.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="An argument of the measurement, KEY=VALUE.")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Measure how fast Trisect is.

    The measurements are in the folder benchmarks/ of a checkout. Other libraries are measured beside Trisect where they
    are installed. `--timeline` is short for `--set timeline=true`.
    """
    folder = measurements()
    names = available(folder)
    name = None if name is None else name.replace("-", "_")
    if name is None:
        for each, line in names.items():
            typer.echo(f"{each:<12} {line}")
        return
    if name not in names:
        raise ConfigError(unknown("measurement", name, names))
    if json_ is not None and json_.is_dir():
        raise TrisectError(f"--json is {json_}, which is a directory; give a file.")
    if str(folder.parent) not in sys.path:
        sys.path.insert(0, str(folder.parent))
    module = importlib.import_module(f"{folder.name}.{name}")
    arguments = _arguments([*(set_ or []), *(_setting(word) for word in context.args)])
    parameters = inspect.signature(module.run).parameters
    for key in arguments:
        if key not in parameters:
            raise ConfigError(unknown(f"argument of bench {name}", key, parameters))
    result = module.run(**arguments)
    module.show(result)
    if json_ is not None:
        json_.parent.mkdir(parents=True, exist_ok=True)
        json_.write_text(to_json(result, indent=2) + "\n", encoding="utf-8")
        typer.echo(f"Figures: {json_}")


def measurements() -> Path:
    """Return the folder of the measurements: of the checkout that is running, else of that in the current folder."""
    for checkout in (Path(trisect.__file__).parents[2], Path.cwd()):
        folder = checkout / "benchmarks" / "trisect_bench"
        if folder.is_dir():
            return folder
    raise RunError(
        "The measurements are not installed with Trisect: run trisect bench in a checkout of its repository, which"
        " has them in benchmarks/."
    )


def available(folder: Path) -> dict[str, str]:
    """Return the measurements of a folder, each with the first line of its docstring."""
    benchmarks = {}
    for module in pkgutil.iter_modules([str(folder)]):
        if not module.name.startswith("_"):
            # read, not imported: a measurement may import torch and its peers
            source = (folder / f"{module.name}.py").read_text(encoding="utf-8")
            benchmarks[module.name] = (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]
    return dict(sorted(benchmarks.items()))


def _setting(word: str) -> str:
    """`--timeline` → `timeline=true`, `--hosts=3` → `hosts=3`."""
    if not word.startswith("--"):
        raise ConfigError(f"{word!r} is one argument too many; write --set KEY=VALUE.")
    return word[2:] if "=" in word else f"{word[2:]}=true"


def _arguments(texts: list[str]) -> dict[str, Any]:
    from trisect.config import read_yaml

    result = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set is {text!r}, but must look like threads=2.")
        result[key.strip().replace("-", "_")] = read_yaml(value, f"The value of --set {key}")
    return result
