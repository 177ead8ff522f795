"""All exchanges, by letter. A new one is a file of its own and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trisect.exchanges.base import Exchange
from trisect.exchanges.boundary import Boundary
from trisect.exchanges.carry import Carry
from trisect.exchanges.facts import Facts
from trisect.exchanges.fetch import Fetch
from trisect.exchanges.halo import Halo
from trisect.exchanges.redistribute_rows import RedistributeRows
from trisect.exchanges.redistribute_steps import RedistributeSteps
from trisect.exchanges.summary import Summary
from trisect.exchanges.window import Window
from trisect.schedule.action import Verb
from trisect.schedule.schedule import Schedule

CATALOGUE: dict[str, Exchange[Any]] = {
    exchange.letter: exchange
    for exchange in (Halo(), RedistributeRows(), RedistributeSteps(), Carry(), Window(), Boundary(), Summary(), Fetch())
}


def volume(facts: Facts, schedule: Schedule, fetched: Sequence[int] = ()) -> dict[tuple[str, str], int]:
    """Bytes that leave all ranks in a pass, by axis and kind: the formula of every exchange that the schedule posts.

    Gradients of parameters are counted as a ring moves them: each rank sends its bucket twice, less its own share.
    """
    posts: dict[str, list[tuple[int, object]]] = {}
    reduces = False
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            reduces |= action.verb is Verb.REDUCE
            if action.verb is Verb.POST and action.exchange is not None:
                posts.setdefault(action.exchange, []).append((rank, action))
    total: dict[tuple[str, str], int] = {}
    for letter, posted in posts.items():
        exchange = CATALOGUE[letter]
        for kind, size in exchange.volume(facts, posted, fetched).items():  # type: ignore[arg-type]
            if size:
                total[exchange.axis, kind] = total.get((exchange.axis, kind), 0) + size
    if reduces:
        ranks = facts.layout.time * facts.layout.vertex
        size = sum(ranks * (2 * weights * (ranks - 1) // ranks) for weights in stage_bytes(facts))
        total["weights", "reduce"] = size
    return total


def stage_bytes(facts: Facts) -> list[int]:
    """Bytes of the parameters of each stage; head and decoder belong to the last."""
    counts = [
        sum(layer.parameters for layer in facts.layers[first:last])
        for first, last in zip(facts.bounds, facts.bounds[1:], strict=False)
    ]
    counts[-1] += (facts.head or 0) + facts.extra
    return [count * facts.dtype.itemsize for count in counts]
