"""Times on a machine that others use too: each is taken twice, a while apart, or three times; the shortest counts.

Other programs can only slow a measurement down, and come and go. Everything is measured once, then everything once
more, so that seconds lie between the two times; what differs by more than a little is measured a third time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

_AGREE = 1.2  # two times of the same differ by less where nothing disturbs them
_MOST = 3  # times that one thing is measured

Key = TypeVar("Key", bound=Hashable)
Name = tuple[Any, ...]  # of a measurement: what kind it is, then which of them


@dataclass(frozen=True)
class Timed:
    """What some work took.

    Attributes:
        epochs: the seconds of each time that it was done.
        ranks: for each rank the seconds of an epoch by the letter of what was done; empty for what is no training.
        memory: the bytes of the rank that took most.
    """

    epochs: Sequence[float]
    ranks: tuple[Mapping[str, float], ...] = ()
    memory: int = 0

    @property
    def epoch(self) -> float:
        """Give the seconds of an epoch that nothing disturbed much."""
        return low(self.epochs)


# The same work in one or several ways in turn: with all threads and with fewer, say.
Measurement = Callable[[], Sequence[Timed]]


def low(values: Sequence[float]) -> float:
    """Give the value a third of the way up: what is disturbed is longer, and what is shortest may be luck."""
    return sorted(values)[len(values) // 3]


def shortest(runs: Sequence[Timed]) -> Timed:
    """Give the least of everything, of runs of the same work."""
    ranks = tuple(
        {letter: min(letters[letter] for letters in same) for letter in same[0]}
        for same in zip(*(run.ranks for run in runs), strict=True)
    )
    return Timed([min(run.epoch for run in runs)], ranks, runs[0].memory)


@dataclass
class Settled(Mapping[Key, Timed]):
    """Measurements that were repeated: by key, the shortest time of the first way.

    Attributes:
        runs: by key, all times, each in all its ways.
    """

    runs: dict[Key, list[Sequence[Timed]]]

    def __getitem__(self, key: Key) -> Timed:
        return shortest([run[0] for run in self.runs[key]])

    def __iter__(self) -> Iterator[Key]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def doubtful(self) -> list[Key]:
        """Name what was measured as often as may be, and whose shortest time was not reached twice."""
        return [key for key, runs in self.runs.items() if not _agree(runs)]

    @property
    def doubt(self) -> float:
        """Give the share of the measurements that is doubtful."""
        return len(self.doubtful) / len(self.runs)


def settle(measurements: Mapping[Key, Measurement]) -> Settled[Key]:
    """Measure everything twice, and again what differs."""
    settled: Settled[Key] = Settled({key: [] for key in measurements})
    for _ in range(_MOST):
        for key, measure in measurements.items():
            if not _agree(settled.runs[key]):
                settled.runs[key].append(measure())
    return settled


def _agree(runs: Sequence[Sequence[Timed]]) -> bool:
    """Whether the two shortest times of each way are the same but for a little."""
    if len(runs) < 2:
        return False
    shortest_two = [sorted(timed.epoch for timed in way)[:2] for way in zip(*runs, strict=True)]
    return all(second <= _AGREE * first for first, second in shortest_two)
