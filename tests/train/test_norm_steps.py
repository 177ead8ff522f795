"""Running statistics where the optimizer steps for each block or batch: each step or batch counts once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import trisect


def tracked(model: str, data: Any, task: str, layout: str, **options: Any) -> tuple[list[int], dict[str, torch.Tensor]]:
    """Train an epoch; return how many updates each norm had, and all buffers."""
    run = trisect.fit(
        model,
        data,
        task,
        layout=layout,
        hidden=4,
        layers=2,
        norm="batch",
        epochs=1,
        lr=1e-9,
        precision="float64",
        **options,
    )
    buffers = dict(run.model.named_buffers())
    return [int(value) for name, value in buffers.items() if "tracked" in name], buffers


def test_blocks() -> None:
    """With parameters that stand still, steps of blocks leave the running statistics of one step an epoch."""
    timeline = trisect.Timeline.generate("evolving", vertices=30, steps=10, features=4, communities=2)
    count, once = tracked("cd-gcn", timeline, "node-classification", "blocks=3")
    again, blocks = tracked("cd-gcn", timeline, "node-classification", "blocks=3", step="block")
    assert count == again
    assert count == [6, 6]  # of ten steps the first six are trained on
    for name, value in once.items():
        assert float((value - blocks[name]).abs().max()) < 1e-6, name


@pytest.mark.parametrize("outside", ["history", "drop"])
def test_batches(outside: str) -> None:
    """Each batch of chunks is an update, by the statistics of its own rows."""
    graph = trisect.Graph.generate("community", vertices=120, features=6, classes=3, seed=3)
    counts, buffers = tracked("gcn", graph, "node-classification", "chunks=4", step="chunk", batches=2, outside=outside)
    assert counts == [2]
    assert all(bool(value.isfinite().all()) for value in buffers.values())
