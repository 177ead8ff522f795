"""`Layout`: how the box of work (time × layers × vertices) is cut, as one value with one text.

It knows neither models nor data nor ranks.
"""

from trisect.layout.history import History
from trisect.layout.layout import AXES, Layout, Partitioner, Spatial, Temporal, TransportKind, Wire
from trisect.layout.text import layout_mapping, parse_layout

__all__ = [
    "AXES",
    "History",
    "Layout",
    "Partitioner",
    "Spatial",
    "Temporal",
    "TransportKind",
    "Wire",
    "layout_mapping",
    "parse_layout",
]
