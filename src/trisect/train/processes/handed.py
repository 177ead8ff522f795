"""Objects that a caller of `fit` made itself, handed by this process to the ranks that it starts.

They go through the ranks' standard input, pickled by a parent for its own children, and never through a file. All else
that a rank needs is plain data (`job`).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from contextlib import suppress
from types import FunctionType
from typing import IO, Any

from trisect.errors import ConfigError


def pack(objects: Mapping[str, Any]) -> bytes:
    """Pickle objects for `unpack`; give nothing where there are none."""
    if not objects:
        return b""
    kind: type[pickle.Pickler] = _Pickler
    with suppress(ImportError):  # it can also send classes of a notebook, by value
        import cloudpickle  # type: ignore[import-untyped]

        kind = cloudpickle.Pickler
    out = io.BytesIO()
    try:
        kind(out).dump(dict(objects))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"what was made in Python ({', '.join(objects)}) cannot be handed to other processes ({error}); leave out"
            " what holds files, threads or local functions, or leave out the layout."
        ) from None
    return out.getvalue()


def unpack(stream: IO[bytes]) -> dict[str, Any]:
    """Give the objects that our parent has packed for us."""
    content = stream.read()
    return dict(pickle.loads(content)) if content else {}  # noqa: S301


class _Pickler(pickle.Pickler):
    """Refuses what another process could not find."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
            raise ConfigError(
                f"{value.__name__} is defined in the main module, which other processes do not import; move it to a"
                " module of its own, or install cloudpickle: pip install 'trisect[notebook]'."
            )
        return NotImplemented
