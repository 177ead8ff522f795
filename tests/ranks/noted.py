"""Values that note when they are read, so that a test knows which constants a case has consulted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CONSULTED: set[str] = set()
"""Names of the constants that were read since the set was cleared."""
# a range, and a slice, take a number as it is: their limits are computed from it
_READS = (
    *("__lt__", "__le__", "__gt__", "__ge__", "__getitem__", "__neg__", "__floordiv__", "__rfloordiv__"),
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__"),
)


def _noting(read: Callable[..., Any]) -> Callable[..., Any]:
    def noting(self: Any, *others: Any) -> Any:
        CONSULTED.add(self.constant)
        return read(self, *others)

    return noting


def _noted_kind(kind: type) -> type:
    return type(kind.__name__, (kind,), {name: _noting(getattr(kind, name)) for name in _READS if hasattr(kind, name)})


_KINDS = {kind: _noted_kind(kind) for kind in (int, float, dict)}


def noted(constant: str, value: Any) -> Any:
    """Return a number or a dict equal to `value` that adds `constant` to `CONSULTED` when it is read."""
    made = _KINDS[type(value)](value)
    made.constant = constant
    return made
