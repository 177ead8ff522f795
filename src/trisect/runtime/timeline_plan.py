"""From a model and a layout to a `TimelinePlan`: which exchange each layer uses along time, and in how many chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.nn.dynamic import DynamicLayer
from trisect.nn.evolving import Evolving
from trisect.runtime.volume_timeline import along_time
from trisect.schedule.timeline import Along, LayerPlan, TimelinePlan

# Chunks of a carry for each rank along time: the more, the shorter a rank waits for the first; each is a message.
CHUNKS_A_RANK = 8


def plan_of(
    layers: Sequence[DynamicLayer],
    bounds: Sequence[int],
    layout: Layout,
    runs: Sequence[Sequence[range]],
    rows: Sequence[int],
    *,
    aggregated: bool = False,
    fixed: bool = False,
    fetches: bool = False,
    dtype: torch.dtype = torch.float32,
) -> TimelinePlan:
    """The plan; `layout.temporal` is resolved where it is `auto`: a window by its halo, other states by what moves the
    fewer bytes. A state that is a weight has no rows to choose an exchange for: it needs none (EvolveGCN-O), or is
    carried (-H), whatever `layout.temporal` says.

    Args:
        layers: of the whole model; of those of other stages, widths alone are read.
        bounds: where stages begin: stage s has layers bounds[s] .. bounds[s+1]-1.
        runs: runs[block][moment], as in `TimelinePart`.
        rows: of each way's part.
        aggregated: whether `TimelinePart.aggregated` gives the first layer's Â·x.
        fixed: whether `TimelinePart.features` gives [rows, features], the same in all steps.
        fetches: whether the loss reads output rows of other ways (`TimelineRank(readers=…)`).
    """
    chunks = layout.chunks if layout.chunks > 1 else CHUNKS_A_RANK * layout.time
    plan = TimelinePlan(
        runs=tuple(tuple(block) for block in runs),
        bounds=tuple(bounds),
        layers=(),
        rows=tuple(rows),
        chunks=1 if layout.time == 1 else max(1, min(chunks, *rows)),
        aggregated=aggregated,
        fixed=fixed,
        fetches=fetches,
    )
    options = [_options(layer, layout) for layer in layers]
    # each layer's choice depends on itself alone
    for number, layer in enumerate(layers):
        tried = [replace(plan, layers=_with(options, number, choice)) for choice in options[number]]
        costs = [along_time(layer, number, choice, layout, dtype) for choice in tried]
        options[number] = [options[number][costs.index(min(costs))]]
    chosen = [choice for [choice] in options]
    if any(layer.along == "carry" for layer in chosen):
        # messages of the two kinds would overtake each other between two ranks
        chosen = [replace(layer, along="carry") if layer.along == "halo" else layer for layer in chosen]
    return replace(plan, layers=tuple(chosen))


def _with(options: Sequence[Sequence[LayerPlan]], number: int, choice: LayerPlan) -> tuple[LayerPlan, ...]:
    return tuple(choice if k == number else able[0] for k, able in enumerate(options))


def _options(layer: DynamicLayer, layout: Layout) -> list[LayerPlan]:
    """The exchanges that the layout leaves open for a layer."""
    asked = layout.temporal
    if layer.state_kind == "weight":
        summarises = isinstance(layer, Evolving) and layer.summary is not None
        return [LayerPlan("carry" if summarises else "none", "weight", summarises=summarises)]
    window = 1
    if layer.state_kind == "window":
        window = 1 + layer.initial_state(0, dtype=torch.float32, device=torch.device("cpu"))[0].shape[0]
    elif asked == "halo":
        raise LayoutError(
            f"layout.temporal is 'halo', but {layer} remembers all steps before, not a window of them; use carry, "
            "redistribute or auto."
        )
    able: tuple[Along, ...]
    if layout.time == 1:
        able = ("carry",)
    elif asked == "auto":
        able = ("halo",) if layer.state_kind == "window" else ("carry", "redistribute")
    else:
        able = (asked,)
    return [LayerPlan(along, layer.state_kind, window) for along in able]
