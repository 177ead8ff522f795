"""`make_plan`: from a model, sizes of the data and a layout to all that ranks and exchanges must know.

Each layer uses the exchange on the vertex and the time axis that the layout asks for, or the one with the fewest bytes.
The catalogue is gone through: an exchange says itself which layers it refuses and how many bytes it moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.plan.build import schedule_of
from trisect.plan.volume import volume
from trisect.schedule.action import Pass
from trisect.views.catalogue import options_on
from trisect.views.plan import Plan
from trisect.views.trace import NONE, LayerTrace, trace_of

# Chunks of a carry for each rank along time: the more, the shorter a rank waits for the first; each is a message.
CHUNKS_A_RANK = 8


def make_plan(
    layers: Sequence[nn.Module],
    head: nn.Module | None,
    layout: Layout,
    *,
    bounds: Sequence[int],
    rows: Sequence[int],
    chunk_rows: Sequence[Sequence[int]] | None = None,
    runs: Any = ((range(1),),),
    timeline: bool = False,
    remote: Sequence[int] = (0,),
    **sizes: Any,
) -> Plan:
    """Trace the layers, and decide for every layer how its rows and its state cross.

    `layout.temporal` and `layout.spatial` are resolved where they are `auto`: of the exchanges that fit, the one that
    moves the fewest bytes. A weight that every rank evolves for itself (EvolveGCN-O) needs no exchange along time.

    Args:
        layers: of the whole model; their parameters may lie on the meta device.
        bounds: stage s has the layers bounds[s] .. bounds[s+1]-1.
        rows: of each part; `chunk_rows` where its chunks begin.
        sizes: see `Plan`.
    """
    traces = _counted_once([trace_of(layer, timeline=timeline) for layer in layers], layers)
    wanted = layout.chunks if layout.chunks > 1 else CHUNKS_A_RANK * layout.time
    plan = Plan(
        layout=layout,
        layers=tuple(traces),
        head=None if head is None else sum(p.numel() for p in head.parameters() if p.requires_grad),
        out_channels=traces[-1].out_channels if head is None else head.out_channels,  # type: ignore[arg-type]
        bounds=tuple(bounds),
        runs=runs,
        rows=tuple(rows),
        chunk_rows=tuple(tuple(starts) for starts in (chunk_rows or [(0, count) for count in rows])),
        carry_chunks=1 if layout.time == 1 or not timeline else max(1, min(wanted, *rows)),
        remote=tuple(remote),
        timeline=timeline,
        recompute=layout.recompute,
        **{"extra": 0, **sizes},
    )
    return choose_along(choose_across(plan))


def _counted_once(traces: Sequence[LayerTrace], layers: Sequence[nn.Module]) -> list[LayerTrace]:
    """Return the traces of layers; a parameter that several share counts with the first of them."""
    counted, seen = [], set[int]()
    for trace, layer in zip(traces, layers, strict=True):
        trained = {id(p): p.numel() for p in layer.parameters() if p.requires_grad}
        again = sum(size for key, size in trained.items() if key in seen)
        seen.update(trained)
        counted.append(replace(trace, parameters=trace.parameters - again) if again else trace)
    return counted


def check_asked(layers: Sequence[LayerTrace], layout_key: str, asked: str, axis: str) -> None:
    """Raise a LayoutError where the exchange that a layout asks for refuses a layer."""
    able = options_on(axis)
    for number, layer in enumerate(layers):
        for exchange in able:
            refusal = exchange.refusal(layer) if exchange.option == asked else None
            if refusal is not None:
                others = [other.option for other in able if other.refusal(layer) is None]
                raise LayoutError(
                    f"layout.{layout_key} is {asked}, but layer {number} of the model cannot use it: {refusal}; use "
                    f"{', '.join(others)} or auto."
                )


def check_history(spatial: str) -> None:
    """Raise a LayoutError where the exchange between parts that a layout asks for does not go with history."""
    if any(exchange.option == spatial and not exchange.allows_history for exchange in options_on("vertex")):
        raise LayoutError(
            f"layout.spatial is {spatial}, but chunks read history of whole rows; set layout.chunks to 1,"
            " layout.history to exact, or layout.spatial to halo."
        )


def choose_across(plan: Plan) -> Plan:
    """Decide how the rows of all layers cross parts: by one exchange, since the data are cut for it."""
    if plan.parts == 1:
        return plan
    asked = plan.layout.spatial
    reading = [layer for number, layer in enumerate(plan.layers) if plan.reads(number)]
    if asked == "auto":
        fitting = [exchange for exchange in options_on("vertex") if exchange.allows_history or not plan.stale]
        able = [e for e in fitting if all(e.refusal(layer) is None for layer in reading)]
    else:
        check_asked(reading, "spatial", asked, "vertex")
        able = [exchange for exchange in options_on("vertex") if exchange.option == asked]
        if plan.stale:
            check_history(asked)
    choices = [_with_across(plan, exchange.option) for exchange in able]
    return choices[0] if len(choices) == 1 else min(choices, key=_bytes_across)


def _with_across(plan: Plan, option: str) -> Plan:
    layers = [
        replace(layer, across=option) if plan.reads(number) else layer for number, layer in enumerate(plan.layers)
    ]
    return replace(plan, layers=tuple(layers))


def _bytes_across(plan: Plan) -> int:
    """Return the bytes that cross parts in a pass forward, all chunks at once."""
    alone = replace(plan.forward_only(), layout=replace(plan.layout, layer=1, chunks=1), bounds=(0, len(plan.layers)))
    kinds = volume(alone, schedule_of(alone, pass_=Pass.EVALUATE))
    return sum(size for (axis, kind), size in kinds.items() if axis == "vertex" and kind in ("halo", "redistribute"))


def choose_along(plan: Plan) -> Plan:
    """Decide for every layer by itself how its state crosses runs."""
    if plan.layout.time == 1:
        return plan
    asked = plan.layout.temporal
    # a state that every rank makes for itself (EvolveGCN-O) does not cross
    crossing = [layer.state is not None and (layer.state != "weight" or layer.summarises) for layer in plan.layers]
    if asked != "auto":
        # a weight has no rows to choose an exchange for
        check_asked([layer for layer in plan.layers if layer.state in ("vertex", "window")], "temporal", asked, "time")
    layers = []
    for number, layer in enumerate(plan.layers):
        able = [exchange.option for exchange in options_on("time") if exchange.refusal(layer) is None]
        able = able if asked == "auto" or layer.state == "weight" else [asked]
        able = able if crossing[number] else [NONE]
        along = able[0] if len(able) == 1 else min(able, key=lambda option: _bytes_along(plan, number, option))
        layers.append(replace(layer, along=along))
    return replace(plan, layers=tuple(layers))


def _bytes_along(plan: Plan, number: int, option: str) -> int:
    """Return the bytes that cross the time axis for one layer, where all others exchange nothing."""
    layers = tuple(
        replace(layer, along=option if k == number else NONE, across=NONE) for k, layer in enumerate(plan.layers)
    )
    alone = replace(plan, layers=layers, bounds=(0, len(layers)), fetches=False, recompute=False)
    alone = replace(alone, layout=replace(plan.layout, layer=1, vertex=1), rows=(plan.vertices,))
    alone = replace(alone, chunk_rows=((0, plan.vertices),))
    return sum(size for (axis, _), size in volume(alone, schedule_of(alone)).items() if axis == "time")
