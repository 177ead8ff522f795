"""What is kept between epochs as far as memory allows, and how much that is."""

from __future__ import annotations

from torch import Tensor

from trisect.graph.snapshots import Steps
from trisect.nn.dynamic import DynamicModel, Snapshots, first_aggregation
from trisect.ops.memory import free_bytes as free_bytes


def part_of(snapshots: Snapshots, steps: range) -> Snapshots:
    """Consecutive steps as snapshots of their own, counted from 0; what the whole keeps serves them too."""
    return snapshots if len(steps) == len(snapshots) else Steps(steps, snapshots.__getitem__)


def keep_first_aggregation(model: DynamicModel, xs: Tensor, snapshots: Snapshots, budget: int) -> Tensor | None:
    """Â_t·x_t of every step, where the first layer can use it and it fits the budget; otherwise None."""
    if not model.stack[0].preaggregates:
        return None
    size = len(snapshots) * xs.shape[-2] * xs.shape[-1] * xs.element_size()
    return first_aggregation(xs, snapshots) if size <= budget else None
