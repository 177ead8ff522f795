"""The register of generators: names, arguments with types and defaults, and checks of what a user gives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from trisect.data.generators.laundering import laundering
from trisect.data.generators.static_graphs import citation, community, rmat
from trisect.data.generators.timelines import evolving, uniform
from trisect.data.records import Record
from trisect.data.room import reading, require_room
from trisect.errors import ConfigError, unknown


@dataclass(frozen=True)
class Argument:
    """One keyword argument of a generator, with its type and default."""

    type: type
    default: Any

    def coerce(self, name: str, value: Any) -> Any:
        """Read the value as the argument's type; whole floats count as integers, texts are parsed."""
        if isinstance(value, str) and self.type is not str:
            value = _read(value)
        if self.type is bool and isinstance(value, bool):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**63:
            if self.type is float:
                return float(value)
            if self.type is int and value == int(value):
                return int(value)
        raise ConfigError(f"data.{name} is {value!r}; it must be of type {self.type.__name__}.")


@dataclass(frozen=True)
class Generator:
    """A function that makes a record from a seed."""

    name: str
    function: Callable[..., Record]
    arguments: dict[str, Argument]
    timeline: bool

    @property
    def description(self) -> str:
        """Give the first sentence of the function's docstring."""
        return (inspect.getdoc(self.function) or "").split("\n")[0]

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Give the arguments in their types; unknown ones are refused, with the nearest one in the message."""
        checked = {}
        for name, value in arguments.items():
            if name not in self.arguments:
                raise ConfigError(unknown(f"key of data.generate {self.name!r}:", name, self.arguments))
            checked[name] = self.arguments[name].coerce(name, value)
        return checked


def _read(text: str) -> Any:
    lowered = text.strip().lower().replace("_", "")
    if lowered in ("true", "false"):
        return lowered == "true"
    try:
        return float(lowered)
    except ValueError:
        return text


def _describe(function: Callable[..., Record]) -> Generator:
    types = get_type_hints(function)
    arguments = {
        name: Argument(types[name], parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
    }
    return Generator(function.__name__, function, arguments, types["return"].__name__ == "TimelineRecord")


GENERATORS: dict[str, Generator] = {
    function.__name__: _describe(function) for function in (community, rmat, citation, evolving, laundering, uniform)
}


def _bytes_of(arguments: Mapping[str, Any]) -> float:
    """About how much a generator allocates: edges, features, and what it keeps for a vertex and a step."""

    def size(name: str, default: float = 1) -> float:
        return max(1.0, float(arguments.get(name, default)))

    edges = size("vertices") * size("steps") * max(size("degree"), size("transactions"))
    classes = max(size("classes"), size("communities"), size("contacts"))
    per_vertex = 4 * size("features") + 16 * size("per_class") + 4 * classes
    return 24 * edges + size("vertices") * per_vertex * (size("steps") if "features" in arguments else 1.0)


def generate(name: str, **arguments: Any) -> Record:
    """Make a record by the named generator; see `GENERATORS` for the names and their arguments."""
    if name not in GENERATORS:
        raise ConfigError(unknown("generator", name, GENERATORS))
    generator = GENERATORS[name]
    checked = generator.check(arguments)
    require_room(_bytes_of({name: each.default for name, each in generator.arguments.items()} | checked), f"{name}")
    with reading(f"data.generate {name!r} with {checked}", "give other arguments"):
        record = generator.function(**checked)
    record.meta.setdefault("source", f"generate {name}")
    return record
