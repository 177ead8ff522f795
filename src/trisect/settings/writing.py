"""`to_json`: the one way to JSON text, which every reader of JSON understands; `drafted`: files that appear whole."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def to_json(value: Any, **options: Any) -> str:
    """Return a value as JSON text in which a number that is not finite is null.

    Args:
        options: of `json.dumps`, such as `indent`.
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:  # a number that JSON does not have
        plain = options.pop("default", None)
        default = None if plain is None else lambda other: finite(plain(other))
        return json.dumps(finite(value), allow_nan=False, default=default, **options)


def finite(value: Any) -> Any:
    """Return a tree of mappings, lists and plain values with None for every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return value


@contextmanager
def drafted(path: Path, ending: str = "draft") -> Iterator[Path]:
    """Yield the name of a draft beside a file, which takes its place when it is complete."""
    draft = path.with_name(f".{path.name}.{ending}")
    draft.unlink(missing_ok=True)  # it may be a link that leads elsewhere
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
