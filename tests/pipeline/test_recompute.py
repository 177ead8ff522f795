"""Layers computed again in backward: the same losses, and the memory of about √L layers instead of L."""

from __future__ import annotations

import math

import pytest

import trisect
from trisect.graph.graph import Graph
from trisect.ops import memory
from trisect.pipeline.cell import Cell
from trisect.pipeline.stage import Values

LAYERS, VERTICES, HIDDEN = 128, 5_000, 64
LAYER = VERTICES * HIDDEN * 4


def test_128_layers_hold_about_the_root_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph.generate("community", vertices=VERTICES, seed=1)
    held: list[int] = []
    backward = Cell.backward

    def counted(cell: Cell, gradients: Values) -> Values:
        held.append(memory.stats().used_bytes - before)
        return backward(cell, gradients)

    monkeypatch.setattr(Cell, "backward", counted)
    most, losses = {}, {}
    for recompute in ("false", "true"):
        held.clear()
        memory.trim()
        before = memory.stats().used_bytes
        run = trisect.fit(
            "gcnii",
            graph,
            layout=f"recompute={recompute}",
            layers=LAYERS,
            hidden=HIDDEN,
            dropout=0.5,
            epochs=2,
        )
        most[recompute], losses[recompute] = max(held), run.loss
    assert losses["true"] == losses["false"], "computing again is exact to the bit"
    # buffers are whole huge pages, so that a layer takes up to 2 MiB
    page = 1 << 21
    layer = -(-LAYER // page) * page
    assert most["false"] >= LAYERS * LAYER
    assert most["true"] <= 3 * math.sqrt(LAYERS) * layer, most
