"""The schedule of a static graph cut by layer, by vertex, or both: GPipe's order over chunks, backward reversed.

A stage's layers fall into segments at the points where neighbours are read: segment k ends with what the k-th spatial
layer of the stage sends to its readers, and segment k+1 begins by reading it. With several ways the halo rows of the
chunk cross between the two. With one way nothing crosses, and the stage's forward is one action.
"""

from __future__ import annotations

from collections.abc import Sequence

from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.schedule.action import Action, Kind, Phase
from trisect.schedule.schedule import Schedule


def pipeline(layout: Layout, spatial: Sequence[int], order: Sequence[int] | None = None) -> Schedule:
    """One epoch of every rank.

    Args:
        layout: `layer` stages and `vertex` ways.
        spatial: the number of spatial layers of each stage.
        order: in which chunks go forward, the same on all ranks; 0, 1, … by default.
    """
    _check(layout, spatial)
    chunks = list(range(layout.chunks)) if order is None else list(order)
    ranks = []
    for rank in range(layout.world):
        stage = rank // layout.vertex
        actions: list[Action] = []
        for chunk in chunks:
            actions += _forward(layout, rank, stage, chunk, spatial[stage])
        for chunk in reversed(chunks):
            actions += _backward(layout, rank, stage, chunk, spatial[stage])
        if layout.vertex > 1:
            actions.append(Action(Kind.REDUCE, stage=stage))
        actions.append(Action(Kind.STEP, stage=stage))
        ranks.append(tuple(actions))
    return Schedule(tuple(ranks), layout)


def forward_only(layout: Layout, spatial: Sequence[int]) -> Schedule:
    """Exact inference: all chunks at once, stage after stage."""
    _check(layout, spatial)
    ranks = []
    for rank in range(layout.world):
        stage = rank // layout.vertex
        ranks.append(tuple(_forward(layout, rank, stage, 0, spatial[stage])))
    return Schedule(tuple(ranks), layout)


def _check(layout: Layout, spatial: Sequence[int]) -> None:
    if layout.time != 1:
        raise LayoutError(f"layout.time is {layout.time}; a static graph is a timeline of one step, set it to 1")
    if len(spatial) != layout.layer:
        raise LayoutError(f"layout.layer is {layout.layer}, but {len(spatial)} stages were given")


def _forward(layout: Layout, rank: int, stage: int, chunk: int, spatial: int) -> list[Action]:
    ways = layout.vertex
    actions: list[Action] = []
    if stage > 0:
        actions.append(Action(Kind.RECEIVE, stage, chunk, phase=Phase.FORWARD, peer=rank - ways))
    if ways == 1:
        actions.append(Action(Kind.FORWARD, stage, chunk))
    else:
        for segment in range(spatial):
            actions.append(Action(Kind.FORWARD, stage, chunk, layer=segment))
            actions.append(Action(Kind.HALO, stage, chunk, layer=segment, phase=Phase.FORWARD))
        actions.append(Action(Kind.FORWARD, stage, chunk, layer=spatial))
    if stage < layout.layer - 1:
        actions.append(Action(Kind.SEND, stage, chunk, phase=Phase.FORWARD, peer=rank + ways))
    return actions


def _backward(layout: Layout, rank: int, stage: int, chunk: int, spatial: int) -> list[Action]:
    ways = layout.vertex
    actions: list[Action] = []
    if stage < layout.layer - 1:
        actions.append(Action(Kind.RECEIVE, stage, chunk, phase=Phase.BACKWARD, peer=rank + ways))
    if ways == 1:
        actions.append(Action(Kind.BACKWARD, stage, chunk))
    else:
        actions.append(Action(Kind.BACKWARD, stage, chunk, layer=spatial))
        for segment in reversed(range(spatial)):
            actions.append(Action(Kind.HALO, stage, chunk, layer=segment, phase=Phase.BACKWARD))
            actions.append(Action(Kind.BACKWARD, stage, chunk, layer=segment))
    if stage > 0:
        actions.append(Action(Kind.SEND, stage, chunk, phase=Phase.BACKWARD, peer=rank - ways))
    return actions
