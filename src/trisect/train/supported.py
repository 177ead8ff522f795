"""Which layouts fit a model and its data. Said before any rank starts."""

from __future__ import annotations

from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.nn.dynamic import DynamicModel
from trisect.train.models import AnyModel


def require_fit(layout: Layout, model: AnyModel, *, vertices: int, training: int | None = None) -> None:
    """Raise a LayoutError for a layout that the model or the data cannot be cut by.

    Args:
        training: how many steps are trained on; None where the data are one graph.
    """
    if training is None:
        _require_graph(layout, vertices)
    else:
        _require_timeline(layout, model, vertices, training)
    layers = len(model.stack)
    if layout.layer > layers:
        raise LayoutError(f"layout.layer is {layout.layer}, and the model has {layers} layers; use fewer stages.")
    if layout.recompute and layout.recipe is not None and training is None:
        raise LayoutError(
            "layout.recompute is true, but chunks that read history cannot be computed again; set layout.chunks to 1 or"
            " layout.history to exact, or leave recompute out."
        )


def is_cut(layout: Layout) -> bool:
    """Say whether several processes, or several chunks, do the work; if not, one process does it alone."""
    return layout.world > 1 or layout.chunks > 1


def _require_graph(layout: Layout, vertices: int) -> None:
    for name, usual in (("time", 1), ("blocks", 1), ("temporal", "auto")):
        value = getattr(layout, name)
        if value != usual:
            raise LayoutError(
                f"layout.{name} is {value}, but the data are one graph, which has no steps; leave {name} out."
            )
    if layout.vertex * layout.chunks > vertices:
        raise LayoutError(
            f"layout.vertex × layout.chunks is {layout.vertex} × {layout.chunks}, more than the graph's {vertices} "
            "vertices; use fewer parts or chunks."
        )


def _require_timeline(layout: Layout, model: AnyModel, vertices: int, training: int) -> None:
    if layout.time > training:
        raise LayoutError(
            f"layout.time is {layout.time}, but the timeline has {training} training steps; use at most {training} "
            "ranks along time, or a shorter period."
        )
    if isinstance(layout.blocks, int) and layout.blocks > training:
        raise LayoutError(
            f"layout.blocks is {layout.blocks}, but the timeline has {training} training steps; use fewer blocks, or "
            "auto."
        )
    if layout.vertex > vertices:
        raise LayoutError(
            f"layout.vertex is {layout.vertex}, more than the timeline's {vertices} vertices; use fewer parts."
        )
    if not isinstance(model, DynamicModel):
        return
    kinds = {layer.state_kind for layer in model.stack}
    if layout.temporal == "halo" and kinds != {"window"}:
        raise LayoutError(
            "layout.temporal is halo, which fits models that read a window of frames alone, such as tm-gcn; use "
            f"{'carry' if 'weight' in kinds else 'carry or redistribute'}, or auto."
        )
    if layout.temporal == "redistribute" and "weight" in kinds:
        raise LayoutError(
            "layout.temporal is redistribute, but the model's state is a weight matrix, which has no vertices to deal "
            "out (EvolveGCN); use carry or auto."
        )
