"""Trisect: train graph neural networks that no longer fit one device, cut by vertex, by layer, by time."""

from __future__ import annotations

from trisect.version import __version__

TYPE_CHECKING = False  # of typing, whose import would come before Ctrl-C is heeded
if TYPE_CHECKING:
    from typing import Any

    from trisect import nn
    from trisect.api.fit import fit
    from trisect.errors import TrisectError
    from trisect.graph.graph import Graph
    from trisect.graph.timeline.timeline import Timeline
    from trisect.layout import Layout
    from trisect.train.outputs.run import Run, load
    from trisect.train.part import Part, parallelize
    from trisect.train.planning import plan
    from trisect.train.processes.launched import launch
    from trisect.views.view import View

__all__ = [
    "Graph",
    "Layout",
    "Part",
    "Run",
    "Timeline",
    "TrisectError",
    "View",
    "__version__",
    "fit",
    "launch",
    "load",
    "nn",
    "parallelize",
    "plan",
]

# torch takes seconds to import, and `trisect --help` needs none of it: names are found when they are asked for
_WHERE = {
    "Graph": "trisect.graph.graph",
    "Layout": "trisect.layout",
    "Run": "trisect.train.outputs.run",
    "Timeline": "trisect.graph.timeline.timeline",
    "TrisectError": "trisect.errors",
    "Part": "trisect.train.part",
    "View": "trisect.views.view",
    "fit": "trisect.api.fit",
    "launch": "trisect.train.processes.launched",
    "load": "trisect.train.outputs.run",
    "parallelize": "trisect.train.part",
    "plan": "trisect.train.planning",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "nn":
        return importlib.import_module("trisect.nn")
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'trisect' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
