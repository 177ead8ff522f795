"""Faults at (rank, epoch, action) that a seed draws, each kind at each point where it can come."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cases import CASES, Case

# Where a fault of a kind may come; tests/ranks/faults/sitecustomize.py says what each point is. A point that stands
# twice is drawn twice as often.
GOES_ON = {
    "SIGKILL": ("start", "train", "train", "evaluate", "shard", "manifest", "metrics", "recovery", "summary"),
    "SIGSTOP": ("start", "train", "evaluate", "shard", "metrics", "recovery", "summary"),
    "pause": ("train", "shard"),
    "memory": ("train", "evaluate", "shard", "recovery"),
    "ENOSPC": ("shard", "manifest", "metrics", "events", "recovery", "summary"),
    "EIO": ("shard", "manifest", "metrics", "events", "recovery", "summary"),
}
ENDS = {
    "SIGTERM": ("start", "train", "evaluate", "shard"),
    "SIGTERM, SIGKILL": ("train",),  # both to the same rank, which has no time to stop with the others
    "launcher SIGTERM": ("start", "train", "train"),
    "launcher SIGINT": ("start", "train"),
    "launcher SIGKILL": ("start", "train", "train", "shard"),
    "frozen": ("start", "train"),  # a rank is stopped, and then its launcher killed
}
DAMAGES = ("cut", "flipped", "no shard", "no manifest", "manifest", "empty")
KINDS = (*GOES_ON, *ENDS, "damage")
_OF_RANK_0 = ("manifest", "metrics", "recovery", "summary")
_OF_RANKS = ("SIGSTOP", "frozen")  # nobody would notice that a single process is stopped
_UNTIL_END = 3  # epochs that a run may still train, and keep, after a fault that ends its command (SIGTERM at a shard)
_FRESH = 4  # every so many runs, ranks are new interpreters: loading torch takes longer than all else that they do
_AT_ONCE = 3  # faults after which a command goes on by itself: the pause before a restart doubles each time


@dataclass(frozen=True)
class Fault:
    """A fault of one kind at (rank, epoch, action), or at another point of that epoch."""

    kind: str
    at: str
    rank: int
    epoch: int
    action: float = 0.0

    @property
    def ends(self) -> bool:
        """Say whether the command ends with it, and the run goes on by another command."""
        return self.kind in ENDS

    @property
    def starts_again(self) -> bool:
        """Say whether the ranks are started again soon after it."""
        return self.kind != "pause" and self.at != "summary"

    def __str__(self) -> str:
        action = f", action {self.action:.0%}" if self.at in ("start", "train", "evaluate") else ""
        return f"{self.kind} at {self.at} (rank {self.rank}, epoch {self.epoch}{action})"


@dataclass(frozen=True)
class DrawnRun:
    """A layout, and the faults that its run meets.

    Attributes:
        forked: whether ranks are forks of their launcher (tests/ranks/faults/forked_ranks.py), not new interpreters.
        damages: what is done to the newest checkpoint before the run goes on, by the number of the fault that ends a
            command.
    """

    number: int
    case: Case
    faults: tuple[Fault, ...]
    damages: dict[int, str] = field(default_factory=dict)
    forked: bool = False


class Bag:
    """Deals things in random order, and all of them before any comes again."""

    def __init__(self, things: list[Any], rng: random.Random) -> None:
        self._things, self._rng, self._left = things, rng, list[Any]()

    def take(self, fits: Any = lambda thing: True) -> Any:
        for _ in range(2):
            for thing in self._left:
                if fits(thing):
                    self._left.remove(thing)
                    return thing
            fresh = list(self._things)
            self._rng.shuffle(fresh)
            self._left += fresh
        raise ValueError("nothing fits")


def draw(seed: int) -> Iterator[DrawnRun]:
    """Give runs without end, the same for the same seed."""
    rng = random.Random(seed)
    cases = Bag(list(CASES), rng)
    goes_on = Bag([(kind, at) for kind, points in GOES_ON.items() for at in points], rng)
    ends = Bag([(kind, at) for kind, points in ENDS.items() for at in points], rng)
    damages = Bag(list(DAMAGES), rng)
    number = 0
    while True:
        case = cases.take()
        commands = rng.choice((1, 2, 2, 3, 3))
        counts = [rng.randint(2, _AT_ONCE) for _ in range(commands)]
        epochs = _spread(sum(counts) + commands - 1, case.epochs - 2 - _UNTIL_END * (commands - 1), rng)
        faults: list[Fault] = []
        damaged: dict[int, str] = {}
        for index, count in enumerate(counts):
            pairs: list[tuple[str, str]] = []
            for _ in range(count):
                disturbed = any(_recovers(*pair) for pair in (*((f.kind, f.at) for f in faults), *pairs))
                pairs.append(goes_on.take(partial(_fits, case=case, disturbed=disturbed)))
            # the last of a run may come after its last epoch, and only then
            pairs.sort(key=lambda pair: pair[1] == "summary")
            if index + 1 < commands:
                pairs.append(ends.take(partial(_fits, case=case, disturbed=False)))
            for kind, at in pairs:
                faults.append(_placed(kind, at, case, epochs.pop(0) + _UNTIL_END * index, rng))
            if faults[-1].ends and rng.random() < 0.85:
                damaged[len(faults) - 1] = damages.take()
        yield DrawnRun(number, case, tuple(faults), damaged, forked=number % _FRESH != 0)
        number += 1


def _spread(count: int, last: int, rng: random.Random) -> list[int]:
    """Draw so many epochs, at least two apart, so that rounding to an evaluation or a checkpoint keeps them apart.

    Of two faults that come at once to several ranks, one may hide what the other asks for.
    """
    offsets = sorted(rng.randint(0, last - 2 * count) for _ in range(count))
    return [2 * index + 1 + offset for index, offset in enumerate(offsets)]


def _recovers(kind: str, at: str) -> bool:
    """Say whether a run has begun when this comes, and goes on from its directory soon after."""
    return kind != "pause" and at not in ("start", "recovery", "summary")


def _fits(pair: tuple[str, str], case: Case, disturbed: bool) -> bool:
    """Say whether a kind can come at a point of a run; a run that nothing has disturbed recovers from nothing."""
    kind, at = pair
    return (case.ranks > 1 or kind not in _OF_RANKS) and (disturbed or at != "recovery")


def _placed(kind: str, at: str, case: Case, epoch: int, rng: random.Random) -> Fault:
    rank, action = rng.randrange(case.ranks), rng.random()
    every = {"shard": case.checkpoint_every, "manifest": case.checkpoint_every, "evaluate": case.eval_every}.get(at, 1)
    return Fault(kind, at, 0 if at in _OF_RANK_0 else rank, -(-epoch // every) * every, action)
