"""From a model and a layout to a `TimelinePlan`: which exchange each layer uses along time, and in how many chunks."""

from __future__ import annotations

from collections.abc import Sequence

from trisect.layout import Layout
from trisect.nn.dynamic import DynamicLayer
from trisect.schedule.timeline import TimelinePlan


def plan_of(
    layers: Sequence[DynamicLayer],
    bounds: Sequence[int],
    layout: Layout,
    runs: Sequence[Sequence[range]],
    rows: Sequence[int],
    *,
    aggregated: bool = False,
    fetches: bool = False,
) -> TimelinePlan:
    """The plan; `layout.temporal` is resolved where it is `auto`.

    Args:
        bounds: where stages begin: stage s has layers bounds[s] .. bounds[s+1]-1.
        runs: runs[block][moment], as in `TimelinePart`.
        rows: of each way's part.
        aggregated: whether `TimelinePart.aggregated` gives the first layer's Â·x.
        fetches: whether the loss reads output rows of other ways (`TimelineRank(readers=…)`).
    """
    raise NotImplementedError
