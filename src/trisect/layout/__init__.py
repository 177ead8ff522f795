"""`Layout`: how the box of work (time × layers × vertices) is cut, as one value with one text.

It knows neither models nor data nor ranks.
"""

from trisect.layout.history import History
from trisect.layout.layout import AXES, EXCHANGES, Layout, Partitioner, TransportKind, Wire
from trisect.layout.text import layout_mapping, parse_layout

__all__ = [
    "AXES",
    "EXCHANGES",
    "History",
    "Layout",
    "Partitioner",
    "TransportKind",
    "Wire",
    "layout_mapping",
    "parse_layout",
]
