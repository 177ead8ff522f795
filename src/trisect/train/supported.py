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


def require_fit(layout: Layout, *, layers: int, vertices: int, timeline: bool) -> None:
    """Raise a LayoutError for a layout that the model or the data cannot be cut by."""
    if timeline and is_cut(layout):
        raise LayoutError(
            f"The layout needs {layout.world} ranks and {layout.chunks} chunks, but this version runs timelines on one"
            " rank in one piece; leave it out."
        )
    if layout.layer > layers:
        raise LayoutError(f"layout.layer is {layout.layer}, and the model has {layers} layers; use fewer stages.")
    if layout.vertex * layout.chunks > vertices:
        raise LayoutError(
            f"layout.vertex × layout.chunks is {layout.vertex} × {layout.chunks}, more than the graph's {vertices} "
            "vertices; use fewer parts or chunks."
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
