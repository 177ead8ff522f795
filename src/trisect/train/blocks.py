"""What of a timeline fits into memory: how many blocks it is cut into (`layout.blocks: auto`), and what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.partition.timeline import step_work
from trisect.views.trace import trace_of

# what a dynamic layer keeps of a step for its backward pass, and the gradients beside it, in units of its output
_COPIES = 8
# a snapshot's entry, an index and a value, in the matrix and in its transpose
_ENTRY = 16
_ROW = 32


def step_bytes(layers: Sequence[Any], rows: int, entries: int, itemsize: int) -> int:
    """Estimate the bytes that one step takes until its backward pass: activations of all layers, and the snapshot."""
    width: int = sum(layer.out_channels for layer in layers)
    return _COPIES * width * rows * itemsize + _ENTRY * entries + _ROW * rows


def carry_bytes(layers: Sequence[Any], rows: int, itemsize: int) -> int:
    """Estimate the bytes that the state of all layers takes between two blocks."""
    width: int = sum(layer.out_channels for layer in layers)
    return 2 * width * rows * itemsize


def choose_blocks(steps: int, run_count: int, step: int, carry: int, budget: int) -> int:
    """Give the fewest blocks with which a rank stays within `budget` bytes; failing that, those that take least.

    Args:
        steps: all training steps; `run_count`: ranks along time, which share each block.
        step, carry: bytes of a step of one rank, and of its state between two blocks.
    """
    needs = []
    for blocks in range(1, max(1, steps // run_count) + 1):
        need = -(-steps // (blocks * run_count)) * step + blocks * carry
        if need <= budget:
            return blocks
        needs.append(need)
    return 1 + needs.index(min(needs))


def with_blocks(
    layout: Layout, layers: Sequence[Any], timeline: Timeline, training: int, dtype: torch.dtype, free: int
) -> Layout:
    """Fill in the number of blocks that memory asks for, where the layout says `auto`.

    Args:
        training: how many steps are trained on.
        free: bytes that all ranks of the layout may take together.
    """
    if layout.blocks != "auto":
        return layout
    rows = timeline.vertices // layout.vertex
    entries = (max(step_work(timeline)[:training]) - timeline.vertices) // layout.vertex
    blocks = choose_blocks(
        training,
        layout.time,
        step_bytes(layers, rows, entries, dtype.itemsize) // layout.layer,
        carry_bytes(layers, rows, dtype.itemsize) // layout.layer,
        free // 2 // layout.world,
    )
    return replace(layout, blocks=blocks)


def keeps_aggregation(layers: Sequence[Any], timeline: Timeline, dtype: torch.dtype, budget: int) -> bool:
    """Say whether Â·x of the first layer is kept: where it can use that, and all steps fit the budget."""
    width = 2 if timeline.x is None else timeline.x.shape[-1]
    size = timeline.steps * timeline.vertices * width * dtype.itemsize
    return trace_of(layers[0], timeline=True).preaggregates and size <= budget
