"""The schedule of a static graph cut by layer, by vertex, or both: GPipe's order over chunks, backward reversed.

A stage's layers fall into segments at the points where neighbours are read: segment k ends with what the k-th spatial
layer of the stage sends to its readers, and segment k+1 begins by reading it. With several ways the halo rows of the
chunk cross between the two. With one way nothing crosses, and the stage's forward is one action.

The rows of a chunk that take part in the exchange, its boundary, come first: while their messages (in backward, the
gradients of what they read) are on their way, the interior rows are computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.schedule.action import Action, Kind, Phase, Side
from trisect.schedule.schedule import Schedule


def pipeline(
    layout: Layout, spatial: Sequence[int], order: Sequence[int] | None = None, *, overlap: bool = True
) -> Schedule:
    """One epoch of every rank.

    Args:
        layout: `layer` stages and `vertex` ways.
        spatial: the number of layers of each stage that read neighbours (`trisect.runtime.static.exchanges_of`).
        order: in which chunks go forward, the same on all ranks; 0, 1, … by default.
        overlap: whether interior rows are computed while the halo is on its way.
    """
    _check(layout, spatial)
    chunks = list(range(layout.chunks)) if order is None else list(order)
    ranks = []
    for rank in range(layout.world):
        stage = rank // layout.vertex
        actions: list[Action] = []
        for chunk in chunks:
            actions += _forward(layout, rank, stage, chunk, spatial[stage], overlap)
        for chunk in reversed(chunks):
            actions += _backward(layout, rank, stage, chunk, spatial[stage], overlap)
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


def high_water(actions: Sequence[Action]) -> int:
    """How many chunks a rank holds at most at a time, from the first of their forward to the last of their backward."""
    last = {action.chunk: k for k, action in enumerate(actions) if action.kind is Kind.BACKWARD}
    held: set[int] = set()
    most = 0
    for position, action in enumerate(actions):
        if action.kind is Kind.FORWARD:
            held.add(action.chunk)
        most = max(most, len(held))
        if last.get(action.chunk) == position:
            held.discard(action.chunk)
    return most


def _check(layout: Layout, spatial: Sequence[int]) -> None:
    if layout.time != 1:
        raise LayoutError(f"layout.time is {layout.time}; a static graph is a timeline of one step, set it to 1")
    if len(spatial) != layout.layer:
        raise LayoutError(f"layout.layer is {layout.layer}, but {len(spatial)} stages were given")


def _forward(layout: Layout, rank: int, stage: int, chunk: int, spatial: int, overlap: bool = True) -> list[Action]:
    ways = layout.vertex
    actions: list[Action] = []
    if stage > 0:
        actions.append(Action(Kind.RECEIVE, stage, chunk, phase=Phase.FORWARD, peer=rank - ways))
    if ways == 1:
        actions.append(Action(Kind.FORWARD, stage, chunk))
    else:
        for segment in range(spatial + 1):
            actions += _segment(Kind.FORWARD, stage, chunk, segment, segment if segment < spatial else None, overlap)
    if stage < layout.layer - 1:
        actions.append(Action(Kind.SEND, stage, chunk, phase=Phase.FORWARD, peer=rank + ways))
    return actions


def _backward(layout: Layout, rank: int, stage: int, chunk: int, spatial: int, overlap: bool) -> list[Action]:
    ways = layout.vertex
    actions: list[Action] = []
    if stage < layout.layer - 1:
        actions.append(Action(Kind.RECEIVE, stage, chunk, phase=Phase.BACKWARD, peer=rank + ways))
    if ways == 1:
        actions.append(Action(Kind.BACKWARD, stage, chunk))
    else:
        for segment in reversed(range(spatial + 1)):
            actions += _segment(Kind.BACKWARD, stage, chunk, segment, segment - 1 if segment > 0 else None, overlap)
    if stage > 0:
        actions.append(Action(Kind.SEND, stage, chunk, phase=Phase.BACKWARD, peer=rank - ways))
    return actions


def _segment(kind: Kind, stage: int, chunk: int, segment: int, exchange: int | None, overlap: bool) -> list[Action]:
    """A segment, and the exchange of the rows (or of their gradients) that it made, if it is followed by one."""
    phase = Phase.FORWARD if kind is Kind.FORWARD else Phase.BACKWARD
    if not overlap:
        halo = [] if exchange is None else [Action(Kind.HALO, stage, chunk, layer=exchange, phase=phase)]
        return [Action(kind, stage, chunk, layer=segment), *halo]
    boundary = Action(kind, stage, chunk, layer=segment, side=Side.BOUNDARY)
    interior = Action(kind, stage, chunk, layer=segment, side=Side.INTERIOR)
    if exchange is None:
        return [boundary, interior]
    post = Action(Kind.POST, stage, chunk, layer=exchange, phase=phase)
    halo = [Action(Kind.HALO, stage, chunk, layer=exchange, phase=phase)]
    return [boundary, post, interior, *halo]
