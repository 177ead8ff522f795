"""State of plain values as JSON that reads back to equal values: tuples, keys that are numbers, infinities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trisect.errors import ConfigError

_KIND = "is"


def to_plain(value: Any, name: str) -> Any:
    """Return a value as JSON has it, for `from_plain`.

    Args:
        name: of the state, for the error.

    Raises:
        ConfigError: there is something else in it than numbers, texts, None, lists, tuples and mappings of these.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_KIND: "float", "of": str(value)}
    if isinstance(value, list):
        return [to_plain(each, name) for each in value]
    if isinstance(value, tuple):
        return {_KIND: "tuple", "of": [to_plain(each, name) for each in value]}
    if isinstance(value, Mapping):
        return {_KIND: "mapping", "of": [[to_plain(key, name), to_plain(each, name)] for key, each in value.items()]}
    raise ConfigError(
        f"{name} has a {type(value).__name__} in its state, which a checkpoint cannot hold; keep tensors in the state"
        " of parameters, and otherwise numbers, texts, lists and mappings."
    )


def from_plain(plain: Any) -> Any:
    """Return the value that `to_plain` was given; raise a ValueError where it was given none such."""
    if isinstance(plain, list):
        return [from_plain(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    kind, inner = plain.get(_KIND), plain.get("of")
    if kind == "float":
        return float(str(inner))
    if kind == "tuple" and isinstance(inner, list):
        return tuple(from_plain(each) for each in inner)
    if kind == "mapping" and isinstance(inner, list) and all(isinstance(e, list) and len(e) == 2 for e in inner):
        return {from_plain(key): from_plain(each) for key, each in inner}
    raise ValueError(f"no plain state: {str(plain)[:60]}")
