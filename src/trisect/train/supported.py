"""Which layouts fit a model and its data. Said before any rank starts."""

from __future__ import annotations

from torch import nn

from trisect.errors import ConfigError, LayoutError
from trisect.layout import Layout
from trisect.nn.base import Model
from trisect.nn.dynamic import DynamicModel
from trisect.nn.still import as_dynamic


def require_fit(layout: Layout, *, layers: int, vertices: int) -> None:
    """Raise a LayoutError for a layout that a static model or graph cannot be cut by."""
    for name, usual in (("time", 1), ("blocks", 1), ("temporal", "auto")):
        value = getattr(layout, name)
        if value != usual:
            raise LayoutError(
                f"layout.{name} is {value or 'auto'}, but the data are one graph, which has no steps; leave {name} out."
            )
    _require_stages(layout, layers)
    if layout.vertex * layout.chunks > vertices:
        raise LayoutError(
            f"layout.vertex × layout.chunks is {layout.vertex} × {layout.chunks}, more than the graph's {vertices} "
            "vertices; use fewer parts or chunks."
        )


def require_timeline_fit(layout: Layout, model: nn.Module, *, training: int, vertices: int) -> DynamicModel:
    """The model as layers that a timeline is cut with; a LayoutError where the layout does not fit it or the data.

    Args:
        training: how many steps are trained on.
    """
    if layout.time > training:
        raise LayoutError(
            f"layout.time is {layout.time}, but the timeline has {training} training steps; use at most {training} "
            "ranks along time, or a shorter period."
        )
    if layout.blocks > training:
        raise LayoutError(
            f"layout.blocks is {layout.blocks}, but the timeline has {training} training steps; use fewer blocks, or "
            "auto."
        )
    if layout.vertex > vertices:
        raise LayoutError(
            f"layout.vertex is {layout.vertex}, more than the timeline's {vertices} vertices; use fewer parts."
        )
    if isinstance(model, Model):
        model = as_dynamic(model)
    if not isinstance(model, DynamicModel):
        raise ConfigError(f"the model is a {type(model).__name__}; give a trisect.nn Model or DynamicModel.")
    _require_stages(layout, len(model.stack))
    _require_temporal(layout, model)
    return model


def is_cut(layout: Layout) -> bool:
    """Whether several processes, or several chunks, do the work; if not, one process does it alone."""
    return layout.world > 1 or layout.chunks > 1


def _require_stages(layout: Layout, layers: int) -> None:
    if layout.layer > layers:
        raise LayoutError(f"layout.layer is {layout.layer}, and the model has {layers} layers; use fewer stages.")


def _require_temporal(layout: Layout, model: DynamicModel) -> None:
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
