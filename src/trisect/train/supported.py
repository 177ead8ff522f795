"""What this version can run. The one place that refuses a sound layout."""

from __future__ import annotations

from trisect.errors import LayoutError
from trisect.layout import AXES, Layout


def require_supported(layout: Layout) -> None:
    """Raise a LayoutError for a layout that needs more than this version has."""
    cuts = ", ".join(f"{axis}={getattr(layout, axis)}" for axis in AXES if getattr(layout, axis) > 1)
    if layout.world > 1:
        raise LayoutError(
            f"The layout {cuts} needs {layout.world} ranks, but this version runs layouts of one rank; leave it out."
        )
    for field in ("chunks", "blocks"):
        if getattr(layout, field) > 1:
            raise LayoutError(
                f"layout.{field} is {getattr(layout, field)}, but this version runs layouts of one rank, in one piece;"
                f" leave {field} out."
            )
