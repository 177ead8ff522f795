"""Is a schedule sound? Each message has its reader, in order; nobody waits forever; what is read was made before."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from trisect.errors import LayoutError
from trisect.schedule.action import Action, Pass, Verb
from trisect.schedule.schedule import Schedule
from trisect.schedule.simulate import StuckError, simulate

_Cell = tuple[int | None, int | None]


def validate(schedule: Schedule) -> None:
    """Raise a LayoutError with the grid, the wrong action marked, where the schedule cannot be run."""
    for rank, actions in enumerate(schedule.ranks):
        _check_transfers(schedule, rank, actions)
        _check_order(schedule, rank, actions)
    try:
        simulate(schedule, lambda rank, action: 1.0)
    except StuckError as stuck:
        raise LayoutError(f"{stuck}\n{_marked(schedule, stuck.positions)}") from None
    _check_all_received(schedule)
    _check_collectives(schedule)


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


def _check_order(schedule: Schedule, rank: int, actions: tuple[Action, ...]) -> None:
    """A cell goes forward once, backward once and after its forward (and after it was computed again, where it was),
    the latest first. It begins when its input has come, and what leaves it goes when it has ended; what its verbs post
    and wait for is between its pieces. The step is last.
    """
    begun: dict[_Cell, list[tuple[Verb, Pass]]] = defaultdict(list)
    left: set[tuple[_Cell, bool]] = set()
    now: tuple[_Cell, Verb, Pass] | None = None
    waiting: list[_Cell] = []
    last_block = max((action.block or 0 for action in actions), default=0)
    stepped, crossed = False, None
    for position, action in enumerate(actions):
        cell, wrong = ((None, action.chunk) if action.block is None else (action.block, None)), None
        done = {verb for verb, _ in begun[cell]}
        goes_on = crossed is not None and now == (cell, action.verb, action.pass_)
        if crossed is not None and action.verb is not Verb.EXPECT:
            _refuse(schedule, rank, position, action, None if goes_on else f"comes before a piece behind {crossed}")
            crossed = None
        if action.exchange == "b":
            cell_runs = (Verb.BACKWARD if action.back else Verb.FORWARD) in done
            if action.verb is Verb.POST and not cell_runs:
                wrong = "leaves before the cell that makes it"
            elif action.verb is Verb.WAIT and cell_runs:
                wrong = "is waited for when its cell has begun"
            if action.verb is Verb.POST:
                left.add((cell, action.back))
        elif action.verb in (Verb.FORWARD, Verb.AGAIN, Verb.BACKWARD) and not goes_on:
            wrong = _wrong_turn(action, begun[cell], action.block is not None and action.block < last_block)
            if action.verb is Verb.FORWARD:
                waiting.append(cell)
            elif action.verb is Verb.BACKWARD and wrong is None and waiting.pop() != cell:
                wrong = "comes before the backward of a cell that went forward later"
            begun[cell].append((action.verb, action.pass_))
            now = cell, action.verb, action.pass_
            wrong = "comes after the step of its stage" if stepped else wrong
        elif action.verb in (Verb.FORWARD, Verb.BACKWARD) and (cell, action.verb is Verb.BACKWARD) in left:
            wrong = "is computed when what its cell makes has left"
        elif action.verb in (Verb.POST, Verb.WAIT) and now is not None:
            wrong = "crosses while another cell is computed" if action.peer is None and now[0] != cell else None
            crossed = action
        stepped = stepped or action.verb is Verb.STEP
        _refuse(schedule, rank, position, action, wrong)


def _wrong_turn(action: Action, begun: Sequence[tuple[Verb, Pass]], kept_nothing: bool) -> str | None:
    """Return what is wrong where a cell begins anew, after those turns of it; None where nothing is."""
    done = {verb for verb, _ in begun}
    if (action.verb, action.pass_) in begun:
        names = {Verb.FORWARD: "forward", Verb.AGAIN: "recomputation", Verb.BACKWARD: "backward"}
        return f"is a second {names[action.verb]}"
    if action.verb is Verb.AGAIN and Verb.BACKWARD in done:
        return "comes after its backward"
    if action.verb is Verb.BACKWARD and Verb.FORWARD not in done:
        return "comes before its forward"
    if action.verb is Verb.BACKWARD and kept_nothing and Verb.AGAIN not in done:
        return "comes before it was computed again, and of its block nothing was kept"
    return None


def _check_transfers(schedule: Schedule, rank: int, actions: tuple[Action, ...]) -> None:
    """Peers exist; what is waited for was posted by all or is expected once; what is posted to all is waited for."""
    opened: Counter[tuple[object, ...]] = Counter()
    for position, action in enumerate(actions):
        wrong, message = None, (action.peer, action.message)
        if action.peer is not None and (action.peer == rank or action.peer >= schedule.world):
            wrong = f"names rank {action.peer}; peers are the other ranks of 0..{schedule.world - 1}"
        elif action.verb is (Verb.POST if action.peer is None else Verb.EXPECT):
            wrong = (
                "is posted a second time before it is waited for" if opened[message] and action.peer is None else None
            )
            opened[message] += 1
        elif action.verb is Verb.WAIT:
            before = "posted" if action.peer is None else "expected"
            wrong = f"is waited for and was not {before}" if not opened[message] else None
            opened[message] -= 1
        _refuse(schedule, rank, position, action, wrong)
    left = sum(opened.values())
    if left:
        raise LayoutError(f"rank {rank}: {left} of the transfers that it posts or expects are never waited for")


def _check_all_received(schedule: Schedule) -> None:
    """The simulation matches every wait with a message; here, that no message is left over."""
    paired = [(rank, act.other, act) for rank, row in enumerate(schedule.ranks) for act in row if act.peer is not None]
    sent = {(rank, other): action for rank, other, action in paired if action.verb is Verb.POST}
    left = Counter((rank, other) for rank, other, action in paired if action.verb is Verb.POST)
    left.subtract((other, rank) for rank, other, action in paired if action.verb is Verb.WAIT)
    for (source, target), count in left.items():
        if count > 0:
            raise LayoutError(
                f"{count} of what rank {source} sends to rank {target} is never received, "
                f"at the latest {sent[source, target]}"
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
