"""Run a schedule on paper: when each action starts and ends, given what each costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from trisect.errors import LayoutError
from trisect.schedule.action import COLLECTIVE, Action, Kind
from trisect.schedule.schedule import Schedule

Cost = Callable[[int, Action], float]


class StuckError(LayoutError):
    """No rank can go on. `positions[r]` is the action at which rank r waits, or -1 where it is done."""

    def __init__(self, message: str, positions: list[int]) -> None:
        super().__init__(message)
        self.positions = positions


@dataclass(frozen=True)
class Span:
    """An action and when it ran, in seconds from the start of the epoch."""

    action: Action
    start: float
    end: float


def exchange_of(action: Action) -> tuple[object, ...]:
    """Which exchange a posted action or a halo belongs to: equal on all ranks of the group."""
    return (action.phase, action.stage, action.chunk, action.layer, action.half, action.block)


def simulate(schedule: Schedule, cost: Cost) -> tuple[tuple[Span, ...], ...]:
    """The spans of each rank.

    A send (or an outgoing carry) does not block: it takes its turn on the link to that peer, and `cost` is the time
    that the message needs there. A receive ends when its message has arrived. A collective starts when all its ranks
    are there and ends for all together. Everything else takes `cost` on its own rank.

    A posted exchange does not block either: `cost` is the time that the rank's rows need on the link, and the halo that
    follows it ends when those of all ranks of the group have arrived.
    """
    spans: list[list[Span]] = [[] for _ in schedule.ranks]
    clock = [0.0] * schedule.world
    link: dict[tuple[int, int], float] = {}
    mail: dict[tuple[int, int], deque[tuple[Action, float]]] = {}
    posted: dict[tuple[int, tuple[object, ...]], float] = {}
    awaited: dict[tuple[int, tuple[object, ...]], int] = {}

    def advance(rank: int) -> bool:
        """Do the next action of the rank if it can be done now."""
        action = schedule.ranks[rank][len(spans[rank])]
        start = clock[rank]
        if action.kind is Kind.HALO and (rank, exchange_of(action)) in posted:
            return arrive(rank, action)
        if action.kind in COLLECTIVE:
            return meet(rank, action)
        if action.kind is Kind.POST:
            posted[rank, exchange_of(action)] = start + cost(rank, action)
            spans[rank].append(Span(action, start, start))
            return True
        if action.peer is None:
            end = start + cost(rank, action)
        elif not action.incoming:
            end = start
            channel = (rank, action.peer)
            link[channel] = max(link.get(channel, 0.0), start) + cost(rank, action)
            mail.setdefault(channel, deque()).append((action, link[channel]))
        else:
            waiting = mail.get((action.peer, rank))
            if not waiting:
                return False
            sent, arrival = waiting.popleft()
            if sent.message != action.message:
                raise StuckError(
                    f"rank {rank} expects {action}, but the next message from rank {action.peer} is {sent}",
                    [len(s) if r == rank else -1 for r, s in enumerate(spans)],
                )
            end = max(start, arrival)
        spans[rank].append(Span(action, start, end))
        clock[rank] = end
        return True

    def arrive(rank: int, action: Action) -> bool:
        exchange = exchange_of(action)
        group = schedule.group(rank, action)
        if any((other, exchange) not in posted for other in group):
            return False
        end = max(clock[rank], *(posted[other, exchange] for other in group))
        spans[rank].append(Span(action, clock[rank], end))
        clock[rank] = end
        # forgotten when all have it, so that the next one of the same name is told apart
        awaited[group[0], exchange] = awaited.get((group[0], exchange), 0) + 1
        if awaited[group[0], exchange] == len(group):
            del awaited[group[0], exchange]
            for other in group:
                del posted[other, exchange]
        return True

    def meet(rank: int, action: Action) -> bool:
        group = schedule.group(rank, action)
        for other in group:
            done = len(spans[other])
            if done == len(schedule.ranks[other]) or schedule.ranks[other][done] != action:
                return False
        start = max(clock[other] for other in group)
        end = start + max(cost(other, action) for other in group)
        for other in group:
            spans[other].append(Span(action, start, end))
            clock[other] = end
        return True

    todo = sum(len(actions) for actions in schedule.ranks)
    while sum(len(s) for s in spans) < todo:
        moved = False
        for rank, actions in enumerate(schedule.ranks):
            while len(spans[rank]) < len(actions) and advance(rank):
                moved = True
        if not moved:
            positions = [len(s) if len(s) < len(a) else -1 for s, a in zip(spans, schedule.ranks, strict=True)]
            where = ", ".join(f"rank {r} at {schedule.ranks[r][p]}" for r, p in enumerate(positions) if p >= 0)
            raise StuckError(f"the schedule deadlocks: {where}", positions)
    return tuple(tuple(s) for s in spans)


def draw(schedule: Schedule, cost: Cost | None = None, columns: int | None = None) -> str:
    """The schedule as a grid of text, a line a rank and time to the right. Without `cost`, computing takes one unit and
    transfers none (they are left out). With `columns`, the whole epoch is scaled to that many cells.
    """
    plain = cost is None
    spans = simulate(schedule, _unit if cost is None else cost)
    end = max((span.end for row in spans for span in row), default=0.0)
    cells = columns if columns is not None else max(1, round(end) if plain else 24)
    scale = cells / end if end > 0 else 1.0
    width = 1 + max((len(str(s.action)) for row in spans for s in row if s.end > s.start), default=1)
    lines = []
    for rank, row in enumerate(spans):
        line = [".".ljust(width)] * cells
        for span in row:
            if span.end > span.start and not span.action.incoming:
                first, last = (
                    int(span.start * scale + 1e-9),
                    max(int(span.end * scale - 1e-9), int(span.start * scale + 1e-9)),
                )
                for cell in range(first, min(last + 1, cells)):
                    line[cell] = (str(span.action) if cell == first else "-").ljust(width)
        lines.append((f"rank {rank}  " + "".join(line)).rstrip())
    return "\n".join(lines)


def _unit(rank: int, action: Action) -> float:
    return 1.0 if action.kind in (Kind.FORWARD, Kind.BACKWARD, Kind.RECOMPUTE) else 0.0
