"""How many bytes an epoch must move, by formula. The ledger of a run equals it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trisect.layout import Layout
from trisect.nn.base import Layer
from trisect.runtime.static import is_known, shared_across, shared_widths
from trisect.runtime.wire import encoded_bytes


def static_volume(
    layers: Sequence[Layer],
    bounds: Sequence[int],
    layout: Layout,
    vertices: int,
    remote: Sequence[int],
    weights: Sequence[int],
    dtype: torch.dtype = torch.float32,
) -> dict[str, int]:
    """Bytes that leave all ranks in an epoch, by axis.

    layer: 2·(S-1)·N·H, and as much again for each shared input that crosses; vertex: 2·R·H for each spatial layer, with
    R = Σ over parts of the remote rows that it reads (nothing for a first layer whose aggregation is known); weights:
    2·(w-1) times the weights of all stages.

    Args:
        remote: rows that each part reads from the others.
        weights: bytes of the parameters of each stage.
    """
    widths = shared_widths(layers)
    along = 0
    for boundary in bounds[1:-1]:
        width = layers[boundary].in_channels + sum(widths[name] for name in shared_across(layers, boundary))
        along += 2 * encoded_bytes(vertices, width, layout.wire, dtype)
    across = sum(
        2 * encoded_bytes(sum(remote), layer.message_channels, layout.wire, dtype)
        for number, layer in enumerate(layers)
        if layer.spatial and not (number == 0 and is_known(layer))
    )
    ways = layout.vertex
    summed = sum(ways * (2 * size * (ways - 1) // ways) for size in weights)
    return {"vertex": across if ways > 1 else 0, "layer": along, "time": 0, "weights": summed}
