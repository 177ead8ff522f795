"""The bytes of a pass by formula: each exchange says what its posts move."""

from __future__ import annotations

from collections.abc import Sequence

from trisect.schedule.action import Action, Verb
from trisect.schedule.schedule import Schedule
from trisect.views.exchange import LETTERS, Place
from trisect.views.plan import Plan


def volume(plan: Plan, schedule: Schedule, fetched: Sequence[int] = ()) -> dict[tuple[str, str], int]:
    """Return the bytes that leave all ranks in a pass, by axis and kind.

    Args:
        fetched: for each step, output rows that the loss reads of other parts.
    """
    total: dict[tuple[str, str], float] = {}
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if action.verb is Verb.REDUCE:
                axis, kind, size = "weights", "reduce", float(reduce_bytes(plan, action.stage))
            elif action.verb is Verb.POST and (action.peer is not None or schedule.group(rank, action)[0] == rank):
                axis, (kind, size) = LETTERS[str(action.exchange)].axis, post_bytes(plan, rank, action, fetched)
            else:
                continue
            if size:
                total[axis, kind] = total.get((axis, kind), 0.0) + size
    return {key: round(size) for key, size in total.items()}


def post_bytes(plan: Plan, rank: int, action: Action, fetched: Sequence[int]) -> tuple[str, float]:
    """Return the kind and the bytes of a post: of its message between two, else of all ranks of its group."""
    at = Place(plan, rank, action.block or 0, action.first or 0)
    return LETTERS[str(action.exchange)].bytes_of(at, action, fetched)


def reduce_bytes(plan: Plan, stage: int) -> int:
    """Return what a rank sends in an epoch to add up gradients: in a ring twice its bucket but for its share."""
    ranks = plan.layout.time * plan.layout.vertex
    return 2 * (plan.stage_bytes[stage] + plan.statistics_bytes(stage)) * (ranks - 1) // ranks * plan.updates
