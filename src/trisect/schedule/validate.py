"""Is a schedule sound? Each send has its receive, in order; nobody waits forever; backward follows forward."""

from __future__ import annotations

from trisect.errors import LayoutError
from trisect.schedule.action import Action, Kind
from trisect.schedule.schedule import Schedule
from trisect.schedule.simulate import StuckError, exchange_of, simulate


def validate(schedule: Schedule) -> None:
    """Raise LayoutError with the grid, the wrong action marked, where the schedule cannot be run."""
    for rank, actions in enumerate(schedule.ranks):
        _check_order(schedule, rank, actions)
        _check_peers(schedule, rank, actions)
    try:
        simulate(schedule, lambda rank, action: 1.0)
    except StuckError as stuck:
        raise LayoutError(f"{stuck}\n{_marked(schedule, stuck.positions)}") from None
    _check_all_received(schedule)


def _check_order(schedule: Schedule, rank: int, actions: tuple[Action, ...]) -> None:
    """Forward once, backward once and after its forward (and what is computed again in between), nothing left to do
    after the last step but transfers.
    """
    forward: set[tuple[object, ...]] = set()
    again: set[tuple[object, ...]] = set()
    backward: set[tuple[object, ...]] = set()
    stepped: set[int] = set()
    posted: set[tuple[object, ...]] = set()
    for position, action in enumerate(actions):
        place = (action.stage, action.chunk, action.layer, action.half, action.side, action.block)
        wrong = None
        if action.kind is Kind.FORWARD:
            wrong = "is a second forward" if place in forward else None
            forward.add(place)
        elif action.kind is Kind.RECOMPUTE:
            wrong = "is a second recomputation" if place in again else None
            wrong = "comes after its backward" if place in backward else wrong
            again.add(place)
        elif action.kind is Kind.BACKWARD:
            wrong = "comes before its forward" if place not in forward and place not in again else None
            wrong = "is a second backward" if place in backward else wrong
            backward.add(place)
        elif action.kind is Kind.POST:
            wrong = "is posted a second time before its halo" if exchange_of(action) in posted else None
            posted.add(exchange_of(action))
        elif action.kind is Kind.HALO:
            posted.discard(exchange_of(action))
        elif action.kind is Kind.STEP:
            stepped.add(action.stage)
        if action.kind in (Kind.FORWARD, Kind.BACKWARD, Kind.RECOMPUTE) and action.stage in stepped:
            wrong = "comes after the step of its stage"
        if wrong is not None:
            positions = [position if r == rank else -1 for r in range(schedule.world)]
            raise LayoutError(f"rank {rank}: {action} {wrong}\n{_marked(schedule, positions)}")
    if posted:
        raise LayoutError(f"rank {rank}: {len(posted)} of the exchanges that it posts are never waited for")


def _check_peers(schedule: Schedule, rank: int, actions: tuple[Action, ...]) -> None:
    for action in actions:
        if action.peer is not None and (action.peer == rank or action.peer >= schedule.world):
            raise LayoutError(
                f"rank {rank}: {action} names rank {action.peer}; peers are the other ranks of 0..{schedule.world - 1}"
            )


def _check_all_received(schedule: Schedule) -> None:
    """The simulation matches every receive with a send; here, that no send is left over."""
    balance: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], Action] = {}
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if action.peer is not None:
                channel = (action.peer, rank) if action.incoming else (rank, action.peer)
                balance[channel] = balance.get(channel, 0) + (-1 if action.incoming else 1)
                if not action.incoming:
                    last[channel] = action
    for (source, target), count in balance.items():
        if count > 0:
            raise LayoutError(
                f"{count} of what rank {source} sends to rank {target} is never received, "
                f"at the latest {last[source, target]}"
            )


def _marked(schedule: Schedule, positions: list[int]) -> str:
    lines = []
    for rank, actions in enumerate(schedule.ranks):
        words = [f"[{action}]" if k == positions[rank] else str(action) for k, action in enumerate(actions)]
        lines.append(f"  rank {rank}: " + " ".join(words))
    return "\n".join(lines)
