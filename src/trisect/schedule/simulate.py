"""Run a schedule on paper: when each action starts and ends, given what each costs."""

from __future__ import annotations

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


@dataclass
class _Posted:
    """A message: how many ranks have posted it, and when the last rows arrive."""

    action: Action
    count: int = 0
    arrival: float = 0.0


@dataclass(frozen=True)
class Span:
    """An action and when it ran, in seconds from the start of the pass."""

    action: Action
    start: float
    end: float


def _no_time(rank: int, action: Action) -> float:
    return 0.0


def _next(turns: dict[tuple[object, ...], int], key: tuple[object, ...]) -> int:
    """Return how often this was called with a key before: the same exchange may come again in a pass."""
    turns[key] = turns.get(key, 0) + 1
    return turns[key] - 1


def simulate(schedule: Schedule, cost: Cost, busy: Cost = _no_time) -> tuple[tuple[Span, ...], ...]:
    """Give the spans of each rank.

    What is posted to one peer does not block: it takes its turn on the link to that peer, and `cost` is the time that
    the message needs there; the peer's wait ends when it has arrived. What is posted to all ranks of an axis does not
    block either: `cost` is the time that the rank's rows need on the link, and a wait ends when those of all ranks have
    arrived. Gradients are added up when all ranks of the group are there, and that ends for all together. An expected
    message costs nothing. Everything else takes `cost` on its own rank.

    Args:
        busy: the time for which a post or a wait keeps the rank itself, before the rows leave and after they have come.
    """
    spans: list[list[Span]] = [[] for _ in schedule.ranks]
    clock = [0.0] * schedule.world
    # what was posted to a peer, in order; or by a group of ranks to all of it, each time that it does
    boxes: dict[tuple[object, ...], list[_Posted]] = {}
    turns: dict[tuple[object, ...], int] = {}
    groups: dict[tuple[int, str | None], tuple[int, ...]] = {}

    def box_of(rank: int, action: Action) -> tuple[tuple[object, ...], int]:
        """Return the key of the box of a post or a wait, and by how many ranks each of its messages is posted."""
        if action.peer is not None:
            return ((rank, action.peer) if action.verb is Verb.POST else (action.peer, rank)), 1
        kind = rank, action.exchange
        if kind not in groups:
            groups[kind] = schedule.group(rank, action)
        return (groups[kind][0], action.message), len(groups[kind])

    def advance(rank: int) -> bool:
        """Do the next action of the rank if it can be done now."""
        action = schedule.ranks[rank][len(spans[rank])]
        if action.verb is Verb.REDUCE:
            return meet(rank, action)
        start = end = clock[rank]
        if action.verb is Verb.POST:
            end += busy(rank, action)
            post(rank, action, end)
        elif action.verb is Verb.WAIT:
            arrival = arrived(rank, action)
            if arrival is None:
                return False
            end = max(start, arrival) + busy(rank, action)
        elif action.verb is not Verb.EXPECT:
            end += cost(rank, action)
        spans[rank].append(Span(action, start, end))
        clock[rank] = end
        return True

    def post(rank: int, action: Action, now: float) -> None:
        key, _ = box_of(rank, action)
        box, turn = boxes.setdefault(key, []), _next(turns, (rank, Verb.POST, key))
        if action.peer is not None and box:
            now = max(now, box[-1].arrival)  # messages take turns on the link
        if turn == len(box):
            box.append(_Posted(action))
        box[turn].count += 1
        box[turn].arrival = max(box[turn].arrival, now + cost(rank, action))

    def arrived(rank: int, action: Action) -> float | None:
        """Return when a message is there; None: not all who post it have done so yet."""
        key, senders = box_of(rank, action)
        box, turn = boxes.get(key, []), turns.get((rank, Verb.WAIT, key), 0)
        if turn >= len(box) or box[turn].count < senders:
            return None
        sent = box[turn].action
        if sent.message != action.message:
            raise StuckError(
                f"rank {rank} expects {action}, but the next message from rank {action.peer} is {sent}",
                [len(s) if r == rank else -1 for r, s in enumerate(spans)],
            )
        _next(turns, (rank, Verb.WAIT, key))
        return box[turn].arrival

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


def _unit(rank: int, action: Action) -> float:
    return 1.0 if action.verb in (Verb.FORWARD, Verb.BACKWARD, Verb.AGAIN) else 0.0
