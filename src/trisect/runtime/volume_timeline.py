"""How many bytes an epoch over a timeline must move, by formula. The ledger of a run equals it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from trisect.layout import Layout
from trisect.nn.dynamic import DynamicLayer, SpatialTemporal
from trisect.nn.evolving import Evolving
from trisect.runtime.timeline_state import Packing
from trisect.runtime.wire import encoded_bytes
from trisect.schedule.timeline import LayerPlan, TimelinePlan


def timeline_volume(
    layers: Sequence[DynamicLayer],
    plan: TimelinePlan,
    layout: Layout,
    weights: Sequence[int],
    *,
    remote: Sequence[int] = (),
    fetched: Sequence[int] = (),
    out_channels: int = 0,
    dtype: torch.dtype = torch.float32,
) -> dict[tuple[str, str], int]:
    """Bytes that leave all ranks in an epoch, by axis and kind.

    time, carry: 2·(hand-overs between ranks)·N·(state), and as many matrices where the state is a weight; halo:
    2·(frames read from other ranks)·N·F; redistribute: Σ over runs of steps·(rows that other moments do), times the
    widths of four exchanges, two more in each block that is computed again. vertex: R_t·F of each step, forward, again
    and backward.
    layer: 2·(S-1)·T·N·F. weights: 2·(r-1) times those of all stages, r = time·vertex.

    Args:
        weights: bytes of the parameters of each stage.
        remote: rows that all ways together read from others at each step.
        fetched: output rows that the loss reads from other ways at each step, all ways together.
        out_channels: width of the output (where rows are fetched).
    """
    found: dict[tuple[str, str], int] = {}

    def add(axis: str, kind: str, size: int) -> None:
        if size:
            found[axis, kind] = found.get((axis, kind), 0) + size

    steps = sum(len(run) for block in plan.runs for run in block)
    for boundary in plan.bounds[1:-1]:
        size = encoded_bytes(steps * sum(plan.rows), layers[boundary].in_channels, layout.wire, dtype)
        add("layer", "activations", size)
        add("layer", "gradients", size)
    for number, layer in enumerate(layers):
        if layout.vertex > 1 and not (number == 0 and plan.aggregated):
            add("vertex", "halo", _halo(layer, number, plan, layout, remote, dtype))
        if layout.vertex > 1 and isinstance(layer, Evolving) and layer.summary is not None:
            add("vertex", "summary", _summaries(layer, plan, layout, dtype))
        along = plan.layers[number].along
        if along != "none":
            add("time", along, along_time(layer, number, plan, layout, dtype))
    if plan.fetches and layout.vertex > 1:
        add("vertex", "fetch", 2 * encoded_bytes(sum(fetched[:steps]), out_channels, layout.wire, dtype))
    ranks = layout.time * layout.vertex
    add("weights", "reduce", sum(ranks * (2 * size * (ranks - 1) // ranks) for size in weights))
    return found


def along_time(
    layer: DynamicLayer, number: int, plan: TimelinePlan, layout: Layout, dtype: torch.dtype = torch.float32
) -> int:
    """Bytes that cross the `time` axis for one layer."""
    own = plan.layers[number]
    if own.along == "carry":
        return _carried(layer, plan, dtype)
    if own.along == "halo":
        return _window(layer, own, plan, layout, dtype)
    if own.along == "redistribute" and isinstance(layer, SpatialTemporal):
        return _redistributed(layer, number, plan, layout, dtype)
    return 0


def _carried(layer: DynamicLayer, plan: TimelinePlan, dtype: torch.dtype) -> int:
    moments = [moment for block in plan.runs for moment, run in enumerate(block) if run]
    handovers = sum(a != b for a, b in pairwise(moments))
    packing = Packing(layer)
    elements = 0
    for rows in plan.rows:
        size, width = packing.shape(rows)
        elements += size * width
    return 2 * handovers * elements * dtype.itemsize


def _window(layer: DynamicLayer, own: LayerPlan, plan: TimelinePlan, layout: Layout, dtype: torch.dtype) -> int:
    times = range(layout.time)
    frames = sum(
        len(plan.read_before(block, reader, owner, own.window))
        for block in range(plan.blocks)
        for reader in times
        for owner in times
        if owner != reader
    )
    width = Packing(layer).shape(1)[1]
    return 2 * encoded_bytes(frames * sum(plan.rows), width, layout.wire, dtype)


def _redistributed(layer: SpatialTemporal, number: int, plan: TimelinePlan, layout: Layout, dtype: torch.dtype) -> int:
    y, out = layer.spatial.out_channels, layer.out_channels
    x = layer.in_channels if layer.concat and not (number == 0 and plan.fixed) else 0
    total = 0
    for block, runs in enumerate(plan.runs):
        rows = 0
        for part in plan.rows:
            for moment, run in enumerate(runs):
                share = part * (moment + 1) // len(runs) - part * moment // len(runs)
                rows += len(run) * (part - share)
        widths = [y + x, out, out, y + (x if number > 0 else 0)]
        if block < plan.blocks - 1:
            widths += [y + x] + ([] if number == len(plan.layers) - 1 else [out])
        total += sum(encoded_bytes(rows, width, layout.wire, dtype) for width in widths)
    return total


def _halo(
    layer: DynamicLayer,
    number: int,
    plan: TimelinePlan,
    layout: Layout,
    remote: Sequence[int],
    dtype: torch.dtype,
) -> int:
    if isinstance(layer, SpatialTemporal):
        width = layer.spatial.message_channels
    elif isinstance(layer, Evolving):
        width = layer.message_channels
    else:
        width = layer.in_channels
    rows = 0
    for block in range(plan.blocks):
        # of a last layer whose temporal half comes first, nothing else is done before recomputation
        skips = plan.layers[number].state == "weight" and number == len(plan.layers) - 1
        crossings = 2 if block == plan.blocks - 1 or skips else 3
        rows += crossings * sum(remote[step] for step in plan.steps(block))
    return encoded_bytes(rows, width, layout.wire, dtype)


def _summaries(layer: Evolving, plan: TimelinePlan, layout: Layout, dtype: torch.dtype) -> int:
    candidates = sum(min(rows, layer.out_channels) for rows in plan.rows) * (layout.vertex - 1)
    crossings = sum((2 if block == plan.blocks - 1 else 3) * len(plan.steps(block)) for block in range(plan.blocks))
    return crossings * candidates * layer.in_channels * dtype.itemsize
