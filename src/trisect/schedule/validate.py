"""Is a schedule sound? Each message has its reader, in order; nobody waits forever; what is read was made before."""

from __future__ import annotations

from collections import Counter

from trisect.errors import LayoutError
from trisect.schedule.action import Action, Verb
from trisect.schedule.flow import first_flaw
from trisect.schedule.schedule import Schedule
from trisect.schedule.simulate import StuckError, simulate


def validate(schedule: Schedule) -> None:
    """Raise a LayoutError with the grid, the wrong action marked, where the schedule cannot be run."""
    for rank, actions in enumerate(schedule.ranks):
        _check_order(schedule, rank, actions)
        _check_transfers(schedule, rank, actions)
    try:
        simulate(schedule, lambda rank, action: 1.0)
    except StuckError as stuck:
        raise LayoutError(f"{stuck}\n{_marked(schedule, stuck.positions)}") from None
    _check_all_received(schedule)
    _check_collectives(schedule)
    _check_flow(schedule)


def _check_collectives(schedule: Schedule) -> None:
    """All ranks along an axis post in the same order: what crosses a whole axis is matched by its order alone."""
    first: dict[tuple[int, ...], tuple[int, list[Action]]] = {}
    for rank, actions in enumerate(schedule.ranks):
        posts: dict[tuple[int, ...], list[tuple[int, Action]]] = {}
        for position, action in enumerate(actions):
            if action.verb is Verb.POST and action.peer is None:
                posts.setdefault(schedule.group(rank, action), []).append((position, action))
        for group, own in posts.items():
            peer, others = first.setdefault(group, (rank, [action for _, action in own]))
            for (position, action), other in zip(own, others, strict=False):
                wrong = None if action.message == other.message else f"is posted where rank {peer} posts {other}"
                _refuse(schedule, rank, position, action, wrong)


def _check_flow(schedule: Schedule) -> None:
    """Each action of each rank finds what it reads."""
    starts: dict[int, int] = {}
    for action in (action for actions in schedule.ranks for action in actions):
        if action.exchange is None and action.first is not None:
            starts[action.stage] = min(action.first, starts.get(action.stage, action.first))
    for rank, actions in enumerate(schedule.ranks):
        stage = rank // schedule.layout.vertex % schedule.layout.layer
        flaw = first_flaw(actions, starts.get(stage, 0), idles=schedule.layout.time > 1)
        if flaw is not None:
            position, wrong = flaw
            positions = [position if r == rank else -1 for r in range(schedule.world)]
            raise LayoutError(
                f"internal error: rank {rank}: {wrong}; the schedule is wrong\n{_marked(schedule, positions)}"
            )


def _check_order(schedule: Schedule, rank: int, actions: tuple[Action, ...]) -> None:
    """A cell goes forward once, backward once and after its forward (and after it was computed again, where it was);
    nothing is computed after the step.
    """
    passes: set[tuple[object, ...]] = set()
    forward: set[tuple[object, ...]] = set()
    again: set[tuple[object, ...]] = set()
    backward: set[tuple[object, ...]] = set()
    stepped = False
    for position, action in enumerate(actions):
        cell = (action.stage, action.chunk, action.first, action.last, action.side, action.block)
        wrong = None
        if action.verb is Verb.FORWARD:
            wrong = "is a second forward" if (cell, action.pass_) in passes else None
            passes.add((cell, action.pass_))
            forward.add(cell)
        elif action.verb is Verb.AGAIN:
            wrong = "is a second recomputation" if cell in again else None
            wrong = "comes after its backward" if cell in backward else wrong
            again.add(cell)
        elif action.verb is Verb.BACKWARD:
            wrong = "comes before its forward" if cell not in forward and cell not in again else None
            wrong = "is a second backward" if cell in backward else wrong
            backward.add(cell)
        elif action.verb is Verb.STEP:
            stepped = True
        if action.verb in (Verb.FORWARD, Verb.BACKWARD, Verb.AGAIN) and stepped:
            wrong = "comes after the step of its stage"
        _refuse(schedule, rank, position, action, wrong)


def _check_transfers(schedule: Schedule, rank: int, actions: tuple[Action, ...]) -> None:
    """Peers exist; what is waited for was posted by all or is expected once; what is posted to all is waited for."""
    posted: Counter[tuple[object, ...]] = Counter()
    expected: Counter[tuple[object, ...]] = Counter()
    for position, action in enumerate(actions):
        wrong, message = None, (action.peer, action.message)
        if action.peer is not None and (action.peer == rank or action.peer >= schedule.world):
            wrong = f"names rank {action.peer}; peers are the other ranks of 0..{schedule.world - 1}"
        elif action.verb is Verb.EXPECT:
            expected[message] += 1
        elif action.verb is Verb.POST and action.peer is None:
            wrong = "is posted a second time before it is waited for" if posted[message] else None
            posted[message] += 1
        elif action.verb is Verb.WAIT and action.peer is None:
            wrong = "is waited for and was not posted" if not posted[message] else None
            posted[message] -= 1
        elif action.verb is Verb.WAIT:
            wrong = "is waited for and was not expected" if not expected[message] else None
            expected[message] -= 1
        _refuse(schedule, rank, position, action, wrong)
    left = sum(posted.values()) + sum(expected.values())
    if left:
        raise LayoutError(f"rank {rank}: {left} of the transfers that it posts or expects are never waited for")


def _check_all_received(schedule: Schedule) -> None:
    """The simulation matches every wait with a message; here, that no message is left over."""
    balance: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], Action] = {}
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if action.peer is not None and action.verb is Verb.POST:
                channel = (rank, action.peer)
                balance[channel] = balance.get(channel, 0) + 1
                last[channel] = action
            elif action.peer is not None and action.verb is Verb.WAIT:
                channel = (action.peer, rank)
                balance[channel] = balance.get(channel, 0) - 1
    for (source, target), count in balance.items():
        if count > 0:
            raise LayoutError(
                f"{count} of what rank {source} sends to rank {target} is never received, "
                f"at the latest {last[source, target]}"
            )


def _refuse(schedule: Schedule, rank: int, position: int, action: Action, wrong: str | None) -> None:
    if wrong is not None:
        positions = [position if r == rank else -1 for r in range(schedule.world)]
        raise LayoutError(f"rank {rank}: {action} {wrong}\n{_marked(schedule, positions)}")


def _marked(schedule: Schedule, positions: list[int]) -> str:
    lines = []
    for rank, actions in enumerate(schedule.ranks):
        words = [f"[{action}]" if k == positions[rank] else str(action) for k, action in enumerate(actions)]
        lines.append(f"  rank {rank}: " + " ".join(words))
    return "\n".join(lines)
