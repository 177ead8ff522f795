"""`make_plan`: from a model, sizes of the data and a layout to all that ranks and exchanges must know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from trisect.layout import Layout
from trisect.plan.choose import choose_across, choose_along
from trisect.views.plan import Plan
from trisect.views.trace import LayerTrace, trace_of

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
