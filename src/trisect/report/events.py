"""The events of a rank's last epochs, read from the end of their file, and where their time went."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from trisect.errors import CheckpointError, LayoutError
from trisect.layout import Layout
from trisect.schedule.action import COMPUTE, Action, Verb
from trisect.schedule.schedule import Schedule
from trisect.train.run.sound_json import open_regular

EPOCHS, FEW_EPOCHS = 8, 2  # that are looked at; of more than 16 ranks, few
_READ, _MOST = 1 << 18, 1 << 26  # bytes


@dataclass(frozen=True)
class Event:
    """Something that a rank did: an action of the schedule (None: something else), its text, and when."""

    action: Action | None
    name: str
    start: float
    seconds: float

    @property
    def end(self) -> float:
        """When it was done."""
        return self.start + self.seconds


def recent_epochs(path: Path, ranks: int = 1) -> tuple[dict[int, list[Event]], int]:
    """Give the training events of the last epochs, epoch → events; and how many lines are none and were left out.

    Args:
        ranks: how many files are read, which share the memory that this may take.
    """
    lines, whole = _tail(path, max(_READ, _MOST // ranks), EPOCHS if ranks <= 16 else FEW_EPOCHS)
    runs: list[tuple[int, list[Event]]] = []
    damaged = 0
    for number, line in enumerate(lines, 1):
        try:
            event = _event(line)
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            damaged += number < len(lines)  # the last line may have been cut off in the middle
            continue
        if event is not None:
            if not runs or runs[-1][0] != event[0]:
                runs.append((event[0], []))
            runs[-1][1].append(event[1])
    # an epoch whose beginning was not read is no use; of one that was trained again, the last time counts
    return dict(runs[0 if whole else 1 :][-(EPOCHS if ranks <= 16 else FEW_EPOCHS) :]), damaged


def _tail(path: Path, most: int, epochs: int) -> tuple[list[bytes], bool]:
    """Give the last lines of a file, of some epochs at least, and whether they are all of them."""
    try:
        with os.fdopen(open_regular(path, links=True), "rb") as file:
            end = start = file.seek(0, os.SEEK_END)
            while True:
                start = max(0, end - (_READ if start == end else 2 * (end - start)))
                file.seek(start)
                text = file.read(end - start)
                if start == 0:
                    return text.splitlines(), True
                lines = text.splitlines()[1:]
                if end - start >= most or _epochs_in(lines) > epochs:
                    return lines, False
    except (OSError, CheckpointError):
        return [], True


def _epochs_in(lines: Sequence[bytes]) -> int:
    """Count the epochs of some lines, from a few of them."""
    epochs = set()
    for line in lines[:: max(1, len(lines) // 200)]:
        with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError, AttributeError):
            event = _event(line)
            epochs |= set() if event is None else {event[0]}
    return len(epochs)


def _event(line: bytes) -> tuple[int, Event] | None:
    """Give the epoch and the event of a line; None where it is not of training. Raises where it is no event.

    There are many, so that this compares types itself; numbers that are not finite fail the ranges.
    """
    plain = json.loads(line)
    name, start, seconds, epoch = plain["name"], plain["start"], plain["seconds"], plain.get("epoch")
    if epoch is None or plain.get("evaluation"):
        return None
    sound = type(name) is str and type(epoch) is int and 0 <= epoch < 1e15
    if not sound or not 0 <= seconds < 1e9 or not abs(start) < 1e15:
        raise ValueError("no event")
    return (epoch, Event(parse_action(name), name, start, seconds)) if epoch else None


@lru_cache(maxsize=1 << 17)
def parse_action(name: str) -> Action | None:
    """Give the action that a text stands for; None where it is none."""
    try:
        return Action.parse(name)
    except (LayoutError, ValueError):
        return None


@dataclass(frozen=True)
class Spent:
    """Where the seconds of a rank went in an epoch.

    Attributes:
        forward, again, backward, step: computing.
        waiting: for another rank that had not sent yet, or was not there yet.
        exchanging: rows that are copied, sent, on their way or added up.
        other: between actions, and before the first and after the last.
    """

    forward: float = 0.0
    again: float = 0.0
    backward: float = 0.0
    step: float = 0.0
    waiting: float = 0.0
    exchanging: float = 0.0
    other: float = 0.0

    @property
    def computing(self) -> float:
        """All that is computed."""
        return self.forward + self.again + self.backward + self.step


KINDS = {Verb.FORWARD: "forward", Verb.AGAIN: "again", Verb.BACKWARD: "backward", Verb.STEP: "step"}


def length_of(ranks: Sequence[Sequence[Event]]) -> float:
    """Give the seconds from the first event of an epoch to the end of the last."""
    return max(e.end for rank in ranks for e in rank) - min(e.start for rank in ranks for e in rank)


def spent(ranks: Sequence[Sequence[Event]], layout: Layout) -> list[Spent]:
    """Say where the seconds of an epoch went on each rank."""
    length, waits = length_of(ranks), _waits(ranks, layout)
    result = []
    for rank, events in enumerate(ranks):
        sums: dict[str, float] = defaultdict(float)
        for index, event in enumerate(events):
            if event.action is None:
                continue
            if event.action.verb in COMPUTE:
                sums[KINDS[event.action.verb]] += event.seconds
            else:
                waiting = waits.get((rank, index), 0.0)
                sums["waiting"] += waiting
                sums["exchanging"] += event.seconds - waiting
        sums["other"] = max(0.0, length - sum(sums.values()))
        result.append(Spent(**sums))
    return result


def _waits(ranks: Sequence[Sequence[Event]], layout: Layout) -> dict[tuple[int, int], float]:
    """Give the seconds of each wait and sum in which another rank was not ready: (rank, index) → seconds.

    The n-th wait for a message belongs to the n-th posting of it.
    """
    try:
        schedule = Schedule(tuple(tuple(e.action for e in rank if e.action is not None) for rank in ranks), layout)
    except LayoutError:
        return {}
    ready: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for rank, _, event, action in _actions(ranks):
        if action.verb is Verb.POST:
            ready[rank, action.peer, action.message].append(event.end)
        elif action.verb is Verb.REDUCE:
            ready[rank, None, action.text].append(event.start)
    turns: dict[tuple[object, ...], int] = defaultdict(int)
    latest: dict[tuple[object, ...], float] = {}
    waits = {}
    for rank, index, event, action in _actions(ranks):
        if action.verb not in (Verb.WAIT, Verb.REDUCE):
            continue
        what = action.text if action.verb is Verb.REDUCE else action.message
        turn = turns[rank, action.peer, what]
        turns[rank, action.peer, what] += 1
        senders = schedule.group(rank, action) if action.peer is None else (action.peer,)
        key = (senders, None if action.peer is None else rank, what, turn)
        if key not in latest:  # all ranks of a group wait for the same
            times = [ready[other, key[1], what] for other in senders]
            latest[key] = max((own[turn] for own in times if turn < len(own)), default=-math.inf)
        waits[rank, index] = min(event.seconds, max(0.0, latest[key] - event.start))
    return waits


def _actions(ranks: Sequence[Sequence[Event]]) -> Iterator[tuple[int, int, Event, Action]]:
    for rank, events in enumerate(ranks):
        for index, event in enumerate(events):
            if event.action is not None:
                yield rank, index, event, event.action
