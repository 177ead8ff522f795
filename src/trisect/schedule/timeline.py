"""The schedule of a timeline cut by time, blocks, vertex and layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trisect.layout import Layout
from trisect.schedule.schedule import Schedule

Along = Literal["none", "carry", "halo", "redistribute"]
StateKind = Literal["vertex", "window", "weight"]


@dataclass(frozen=True)
class LayerPlan:
    """What the schedule must know of a dynamic layer.

    Attributes:
        along: how its state crosses the `time` axis.
        state: what its state is (see `trisect.nn.dynamic.DynamicLayer`).
        window: of a window state, the number of frames that a step reads, its own included.
        summarises: whether its state reads a summary of all vertices (EvolveGCN-H).
    """

    along: Along
    state: StateKind
    window: int = 1
    summarises: bool = False


@dataclass(frozen=True)
class TimelinePlan:
    """How a dynamic model goes over a timeline: a plain value, the same on all ranks.

    Attributes:
        runs: runs[block][moment], consecutive ranges of steps; a run may be empty.
        bounds: stage s has the layers bounds[s] .. bounds[s+1]-1.
        layers: of the whole model.
        chunks: vertex chunks that a carry crosses in.
        aggregated: whether Â·x of the first layer is kept, so that it reads no snapshot.
        fetches: whether the loss reads output rows of other ways.
    """

    runs: tuple[tuple[range, ...], ...]
    bounds: tuple[int, ...]
    layers: tuple[LayerPlan, ...]
    chunks: int = 1
    aggregated: bool = False
    fetches: bool = False


def timeline_schedule(layout: Layout, plan: TimelinePlan, *, train: bool = True) -> Schedule:
    """One epoch of every rank, or (`train` false) one pass over all blocks that gives the outputs."""
    raise NotImplementedError
