"""Run a schedule on paper: when each action starts and ends, given what each costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from trisect.errors import LayoutError
from trisect.schedule.action import Action, Verb
from trisect.schedule.schedule import Schedule

Cost = Callable[[int, Action], float]


class StuckError(LayoutError):
    """No rank can go on. `positions[r]` is the action at which rank r waits, or -1 where it is done."""

    def __init__(self, message: str, positions: list[int]) -> None:
        super().__init__(message)
        self.positions = positions


@dataclass(frozen=True)
class Span:
    """An action and when it ran, in seconds from the start of the pass."""

    action: Action
    start: float
    end: float


def simulate(schedule: Schedule, cost: Cost, busy: Cost | None = None) -> tuple[tuple[Span, ...], ...]:
    """Give the spans of each rank.

    What is posted to one peer does not block: it takes its turn on the link to that peer, and `cost` is the time that
    the message needs there; the peer's wait ends when it has arrived. What is posted to all ranks of an axis does not
    block either: `cost` is the time that the rank's rows need on the link, and a wait ends when those of all ranks have
    arrived. Gradients are added up when all ranks of the group are there, and that ends for all together. An expected
    message costs nothing. Everything else takes `cost` on its own rank.

    Args:
        busy: the time for which a post or a wait keeps the rank itself, before the rows leave and after they have come;
            None: no time.
    """
    engaged = _no_time if busy is None else busy
    spans: list[list[Span]] = [[] for _ in schedule.ranks]
    clock = [0.0] * schedule.world
    link: dict[tuple[int, int], float] = {}
    mail: dict[tuple[int, int], deque[tuple[Action, float]]] = {}
    # of what a group of ranks posts to all of it, each time that it does: how many have, and when the last rows arrive
    posted: dict[tuple[int, tuple[object, ...]], list[tuple[int, float]]] = {}
    turns: dict[tuple[int, Verb, tuple[object, ...]], int] = {}
    groups: dict[tuple[int, str | None], tuple[int, ...]] = {}

    def group_of(rank: int, action: Action) -> tuple[int, ...]:
        """Give the ranks that exchange rows with one, worked out once for each kind of exchange."""
        key = (rank, action.exchange)
        if key not in groups:
            groups[key] = schedule.group(rank, action)
        return groups[key]

    def turn_of(rank: int, action: Action) -> int:
        """The same exchange may come again in a pass, so each rank counts its own."""
        return turns.get((rank, action.verb, action.message), 0)

    def advance(rank: int) -> bool:
        """Do the next action of the rank if it can be done now."""
        action = schedule.ranks[rank][len(spans[rank])]
        start = clock[rank]
        if action.verb is Verb.REDUCE:
            return meet(rank, action)
        if action.verb is Verb.WAIT:
            end = receive(rank, action, start) if action.peer is not None else arrive(rank, action, start)
            if end is None:
                return False
            end += engaged(rank, action)
        elif action.verb is Verb.POST:
            end = start + engaged(rank, action)
            if action.peer is None:
                turn = turn_of(rank, action)
                all_turns = posted.setdefault((group_of(rank, action)[0], action.message), [])
                if turn == len(all_turns):
                    all_turns.append((0, 0.0))
                count, latest = all_turns[turn]
                all_turns[turn] = (count + 1, max(latest, end + cost(rank, action)))
                turns[rank, action.verb, action.message] = turn + 1
            else:
                channel = (rank, action.peer)
                link[channel] = max(link.get(channel, 0.0), end) + cost(rank, action)
                mail.setdefault(channel, deque()).append((action, link[channel]))
        else:
            end = start if action.verb is Verb.EXPECT else start + cost(rank, action)
        spans[rank].append(Span(action, start, end))
        clock[rank] = end
        return True

    def receive(rank: int, action: Action, start: float) -> float | None:
        waiting = mail.get((action.peer if action.peer is not None else -1, rank))
        if not waiting:
            return None
        sent, arrival = waiting[0]
        if sent.message != action.message:
            raise StuckError(
                f"rank {rank} expects {action}, but the next message from rank {action.peer} is {sent}",
                [len(s) if r == rank else -1 for r, s in enumerate(spans)],
            )
        waiting.popleft()
        return max(start, arrival)

    def arrive(rank: int, action: Action, start: float) -> float | None:
        group, turn = group_of(rank, action), turn_of(rank, action)
        all_turns = posted.get((group[0], action.message), [])
        if turn >= len(all_turns) or all_turns[turn][0] < len(group):
            return None
        turns[rank, action.verb, action.message] = turn + 1
        return max(start, all_turns[turn][1])

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
    """Draw the schedule as a grid of text, a line a rank and time to the right.

    Without `cost`, computing takes one unit and transfers none (they are left out). With `columns`, the whole pass is
    scaled to that many cells.
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
            if span.end > span.start and span.action.verb is not Verb.WAIT:
                first, last = (
                    int(span.start * scale + 1e-9),
                    max(int(span.end * scale - 1e-9), int(span.start * scale + 1e-9)),
                )
                for cell in range(first, min(last + 1, cells)):
                    line[cell] = (str(span.action) if cell == first else "-").ljust(width)
        lines.append((f"rank {rank}  " + "".join(line)).rstrip())
    return "\n".join(lines)


def _no_time(rank: int, action: Action) -> float:
    return 0.0


def _unit(rank: int, action: Action) -> float:
    return 1.0 if action.verb in (Verb.FORWARD, Verb.BACKWARD, Verb.AGAIN) else 0.0
