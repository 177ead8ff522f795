"""What this version can run. The one place that refuses a sound layout."""

from __future__ import annotations

from trisect.errors import LayoutError
from trisect.layout import Layout


def require_supported(layout: Layout) -> None:
    """Raise a LayoutError for a layout that needs more than this version has."""
    for field in ("time", "blocks"):
        if getattr(layout, field) > 1:
            raise LayoutError(
                f"layout.{field} is {getattr(layout, field)}, but this version cuts by vertex and layer alone; leave"
                f" {field} out."
            )


def is_cut(layout: Layout) -> bool:
    """Whether the work is cut at all; if not, one process does it in one piece."""
    return layout.world > 1 or layout.chunks > 1


def require_whole(layout: Layout) -> None:
    """Raise a LayoutError where one process is to do the work in one piece and the layout cuts it."""
    require_supported(layout)
    if is_cut(layout):
        raise LayoutError(
            f"The layout needs {layout.world} ranks and {layout.chunks} chunks, and a call runs on one rank; use the"
            " command: trisect train CONFIG --layout …"
        )
