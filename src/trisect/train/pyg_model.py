"""A module of PyG as the model of a run, and what is refused of it before the first step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from trisect.errors import DataError, LayoutError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.base import Model
from trisect.nn.pyg.wrapped import WrappedPyG
from trisect.train.assemble import feature_width
from trisect.views.replayed import require_cuttable, same_by_verbs
from trisect.views.trace import trace_of


def pyg_model(module: nn.Module, data: Graph | Timeline, layout: Layout, given: Any) -> tuple[Model, Graph]:
    """Return a module `forward(x, edge_index, …)` as a model, and the data that it reads.

    Args:
        given: the data as the user gave them.

    Raises:
        ConfigError: its forward asks for what the data do not have, or does what a cut would change.
        LayoutError: it cannot be cut so.
    """
    name = type(module).__name__
    if isinstance(data, Timeline):
        raise DataError(
            f"{name} is called with one edge_index, and the data are a timeline, which has one a step; write a module"
            " of forward(x, g)."
        )
    if layout.chunks > 1:
        raise LayoutError(
            f"the layout is {layout}, and {name} is one module, which is run on all rows of a part at once, so that it"
            " has no layers for chunks to go through; leave chunks (step='chunk') out."
        )
    index = getattr(given, "edge_index", None)
    if index is not None and index.shape[1] > data.edges:
        raise DataError(
            f"edge_index has {index.shape[1]} edges, of which {index.shape[1] - data.edges} stand there more than once,"
            f" and {name} would read each of them; call data.coalesce()."
        )
    attributes = getattr(given, "edge_attr", None)
    layer = WrappedPyG(
        module,
        feature_width(data),
        edge_channels=data.edge_channels,
        flat=attributes is not None and attributes.dim() == 1,
        weighted=data.adjacency.values is not None,
    )
    require_cuttable(layer)
    weighted = layer.reads_weights
    if layer.form is not None:
        # weights are given to a forward whose convolutions may not read them
        weighted = weighted and same_by_verbs(layer, weighted=True)
        layer.native = weighted or same_by_verbs(layer, weighted=False)
        weighted = weighted if layer.native else layer.reads_weights
    if not weighted and data.adjacency.values is not None:
        data = replace(data, adjacency=data.adjacency.with_values(None))
    if not layer.edge_channels and data.edge_x is not None:
        data = replace(data, edge_x=None)
    layer.out_channels = trace_of(layer, timeline=False).out_channels
    form = layer.form if layer.native else None
    if form is None:
        return Model([layer], normalisation="none", self_loops=False), data
    return Model([layer], normalisation=form.normalisation, self_loops=form.self_loops), data
