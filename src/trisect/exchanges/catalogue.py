"""All exchanges. A new one is a file of its own and a line here."""

from __future__ import annotations

from collections.abc import Sequence

from trisect.exchanges.base import Exchange
from trisect.exchanges.boundary import Boundary
from trisect.exchanges.carry import Carry
from trisect.exchanges.facts import Facts
from trisect.exchanges.fetch import Fetch
from trisect.exchanges.halo import Halo
from trisect.exchanges.history import History
from trisect.exchanges.redistribute_rows import RedistributeRows
from trisect.exchanges.redistribute_steps import RedistributeSteps
from trisect.exchanges.reduce import Reduce
from trisect.exchanges.summary import Summary
from trisect.exchanges.window import Window
from trisect.schedule.action import Action, Verb
from trisect.schedule.schedule import Schedule

REDUCE = Reduce()
CATALOGUE: list[Exchange] = []
LETTERS: dict[str, Exchange] = {}


def register(exchange: Exchange) -> None:
    """Let planner, builder, formula and engine know an exchange; of two that move as many bytes, the earlier wins."""
    CATALOGUE.append(exchange)
    if exchange.letter:
        LETTERS[exchange.letter] = exchange


register(Boundary())
register(Window())
register(Carry())
register(Halo())
register(RedistributeRows())
register(RedistributeSteps())
register(Summary())
register(Fetch())
register(History())
register(REDUCE)


def exchange_of(action: Action) -> Exchange:
    """Give the exchange that an action is part of."""
    return REDUCE if action.verb is Verb.REDUCE else LETTERS[action.exchange or ""]


def stands_before(facts: Facts, half: int) -> Exchange | None:
    """Give the exchange along an axis that crosses before a half; None where nothing does."""
    return next((exchange for exchange in CATALOGUE if exchange.stands_before(facts, half)), None)


def stands_after(facts: Facts, half: int) -> Exchange | None:
    """Give the exchange along an axis that crosses after a half; None where nothing does."""
    return next((exchange for exchange in CATALOGUE if exchange.stands_after(facts, half)), None)


def sets_apart(facts: Facts, half: int) -> Exchange | None:
    """Give the exchange by which the state of a temporal half crosses runs; None where the half is not done apart."""
    return next((exchange for exchange in CATALOGUE if exchange.sets_apart(facts, half)), None)


def volume(facts: Facts, schedule: Schedule, fetched: Sequence[int] = ()) -> dict[tuple[str, str], int]:
    """Give the bytes that leave all ranks in a pass, by axis and kind: the formula of every exchange that is posted."""
    posts: dict[Exchange, list[tuple[int, Action]]] = {}
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if action.verb is Verb.POST or action.verb is Verb.REDUCE:
                posts.setdefault(exchange_of(action), []).append((rank, action))
    total: dict[tuple[str, str], int] = {}
    for exchange, posted in posts.items():
        for kind, size in exchange.volume(facts, posted, fetched).items():
            if size:
                total[exchange.axis, kind] = total.get((exchange.axis, kind), 0) + size
    return total
