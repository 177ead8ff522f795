"""`Calls`: the exchanges that a rank took part in along its axes, in order, and an alarm where ranks differ.

Ranks of an axis match their exchanges by order, so that all of them must begin the same ones. Each exchange has a
number (`trisect.views.verbs`), which its sender writes into the message and into a log that others can read. A receiver
that finds another number, and a rank that waits for long, compare logs; where these differ, all ranks raise the same
`MismatchError`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Protocol

from trisect.errors import MismatchError

Axis = Literal["vertex", "time"]
CALL_AXES: tuple[Axis, ...] = ("vertex", "time")
UNNAMED, ENDED, LEFT = 0, 14, 15  # numbers that name no verb; those of verbs have other last four bits
LOG_BYTES = 4096  # of one rank, both axes
ALARM_BYTES = 4096
_SHARE = LOG_BYTES // 8 // len(CALL_AXES)  # integers of an axis: a count, and the latest numbers
_KEPT = _SHARE - 1
_SETTLE = 0.3  # seconds in which the other ranks of an axis come to the exchange in which two differ

Numbers = Mapping[int, int]  # index of the exchange along an axis → number
Pending = tuple[int, int, int, bool]  # peer, tag and bytes of a message of the network; whether it is sent


class OtherCallError(Exception):
    """A message of another exchange arrived than the one that is waited for."""

    def __init__(self, rank: int, number: int) -> None:
        super().__init__(rank, number)
        self.rank, self.number = rank, number


class Words(Protocol):
    """Describes the number of an exchange; `fully`: with all that it says."""

    def __call__(self, number: int, *, fully: bool = False) -> str:
        """Return words such as "aggregate 2 of layer 1 (GCNLayer(16, 3))"."""


class Log:
    """The latest numbers of one rank along one axis.

    Args:
        words: int64, in memory that other processes may read.
    """

    def __init__(self, words: memoryview) -> None:
        self._words, self._count = words, 0

    def add(self, number: int) -> None:
        """Append a number."""
        count = self._count
        self._words[1 + count % _KEPT] = number
        self._words[0] = self._count = count + 1

    @property
    def count(self) -> int:
        """Number of exchanges so far."""
        return int(self._words[0])

    def read(self) -> dict[int, int]:
        """Return the latest numbers by index."""
        count, numbers = self.count, self._words[1:].tolist()
        # one more than were counted may be written by now
        first = max(0, self.count - _KEPT + 1)
        return {index: numbers[index % _KEPT] for index in range(first, count)}


def logs_in(memory: memoryview) -> dict[Axis, Log]:
    """Return the logs of a rank, by axis, in memory of `LOG_BYTES`."""
    words = memory.cast("q")
    return {axis: Log(words[at * _SHARE : (at + 1) * _SHARE]) for at, axis in enumerate(CALL_AXES)}


class Notes(Protocol):
    """A place beyond this host where ranks leave logs and an alarm."""

    def tell(self, sentence: str) -> None:
        """Let all ranks know of an alarm."""

    def told(self) -> str | None:
        """Return the alarm of another rank, or None."""

    def logs(self, rank: int) -> Mapping[str, Numbers]:
        """Return the logs that a rank has left, by axis; empty where it has left none."""


class Calls:
    """The exchanges of one rank, and what it can read of those of others.

    Args:
        axes: by axis, its ranks, this one among them.
        own: memory of this rank, a log of `LOG_BYTES` and an alarm of `ALARM_BYTES`; others of this host map it.
        others: the same of the other ranks of this host, all of them.

    Attributes:
        words: describes a number.
        alarm: the sentence with which all ranks end.
        pending: returns the messages that this rank waits for through the network; None where it waits for none.
        notes: for ranks of other hosts; None where there are none.
        seen: whether others may know for what this rank waits, so that they may complete it with nothing.
    """

    def __init__(
        self, rank: int, axes: Mapping[Axis, Sequence[int]], own: memoryview, others: Mapping[int, memoryview]
    ) -> None:
        self.rank, self.axes = rank, axes
        self.words: Words = plain_words
        self.alarm: str | None = None
        self.pending: Callable[[], list[Pending]] | None = None
        self.notes: Notes | None = None
        self.seen = False
        self._looked = 0.0
        self._own, self._others = own, others
        self._logs = logs_in(own[:LOG_BYTES])
        self._mapped = {other: logs_in(memory[:LOG_BYTES]) for other, memory in others.items()}
        self._waits = _Waits(self)

    def note(self, axis: Axis, number: int) -> None:
        """Begin an exchange along an axis."""
        self._logs[axis].add(number)

    def note_all(self, number: int) -> None:
        """Begin something that all ranks do together, outside of verbs."""
        for log in self._logs.values():
            log.add(number)

    def counts(self) -> tuple[int, ...]:
        """Number of exchanges along each axis so far."""
        return tuple(log.count for log in self._logs.values())

    def read(self) -> dict[Axis, dict[int, int]]:
        """Return the own logs."""
        return {axis: log.read() for axis, log in self._logs.items()}

    # Alarms

    def look(self) -> None:
        """Raise where another rank raised an alarm, or logs differ; for a rank that waits for long.

        Raises:
            MismatchError: with the sentence that all ranks end with.
        """
        sentence = self.find()
        if sentence is not None:
            raise self.failed(sentence)

    def glance(self) -> None:
        """As `look`; where a store has to be asked, once a second."""
        if self.notes is None or time.monotonic() - self._looked > 1.0:
            self._looked = time.monotonic()
            self.look()

    def find(self) -> str | None:
        """Return the alarm of another rank, or a sentence where logs differ."""
        if self.alarm is not None:
            return self.alarm
        told = self._told()
        return self._compared() if told is None else told

    def differs(self, axis: Axis, own: int, rank: int, number: int) -> MismatchError:
        """Return the error for a message of another exchange than the one that is waited for."""
        end = time.monotonic() + _SETTLE
        while (sentence := self._told()) is None and time.monotonic() < end and not self._complete(axis):
            time.sleep(0.01)
        sentence = sentence or self._compared() or self._sentence({self.rank: own, rank: number})
        return self.failed(sentence)

    def failed(self, sentence: str) -> MismatchError:
        """Let all ranks know of an alarm; return the error to raise."""
        self.raise_alarm(sentence)
        if self.notes is not None:
            time.sleep(1.0)  # others find it in a store that may end with this rank
        return MismatchError(sentence)

    def raise_alarm(self, sentence: str) -> None:
        """Let all ranks know of an alarm."""
        if self.alarm is None:
            self.alarm = sentence
            text = sentence.encode()[: ALARM_BYTES - 8]
            self._own[LOG_BYTES + 8 : LOG_BYTES + 8 + len(text)] = text
            self._own[LOG_BYTES : LOG_BYTES + 8] = len(text).to_bytes(8, "little")
            if self.notes is not None:
                self.notes.tell(sentence)

    def waits(self, pending: Callable[[], list[Pending]]) -> _Waits:
        """Return a context in which this rank waits for messages of the network."""
        self.pending = pending
        return self._waits

    def _told(self) -> str | None:
        for memory in self._others.values():
            size = int.from_bytes(memory[LOG_BYTES : LOG_BYTES + 8], "little")
            if size:
                return bytes(memory[LOG_BYTES + 8 : LOG_BYTES + 8 + size]).decode(errors="replace")
        return None if self.notes is None else self.notes.told()

    # Comparing

    def _all(self, axis: Axis) -> dict[int, Numbers]:
        """Return the logs of all ranks of an axis, as far as they are known."""
        logs: dict[int, Numbers] = {}
        for rank in self.axes[axis]:
            if rank == self.rank:
                logs[rank] = self._logs[axis].read()
            elif rank in self._mapped:
                logs[rank] = self._mapped[rank][axis].read()
            elif self.notes is not None:
                logs[rank] = self.notes.logs(rank).get(axis, {})
        return logs

    def _complete(self, axis: Axis) -> bool:
        """Whether all ranks of an axis on this host have come as far as this one."""
        count = self._logs[axis].count
        return all(self._mapped[rank][axis].count >= count for rank in self.axes[axis] if rank in self._mapped)

    def _compared(self) -> str | None:
        for axis in CALL_AXES:
            logs = self._all(axis)
            own = logs[self.rank]
            differing = [i for log in logs.values() for i, number in log.items() if own.get(i, number) != number]
            if differing:
                first = min(differing)
                return self._sentence({rank: log[first] for rank, log in logs.items() if first in log})
        return None

    def _sentence(self, asked: Mapping[int, int]) -> str:
        by_number: dict[int, list[int]] = {}
        for rank in sorted(asked):
            by_number.setdefault(asked[rank], []).append(rank)
        words = [self.words(number) for number in by_number]
        if len(set(words)) < len(words):
            words = [self.words(number, fully=True) for number in by_number]
        parts = [f"{_ranks(ranks)} {word}" for ranks, word in zip(by_number.values(), words, strict=True)]
        return f"{', '.join(parts)}; forward must ask the same of the view on every rank, in the same order."


class _Waits:
    """A wait for the network: an error of it that an alarm explains is raised as that alarm."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        calls = self._calls
        calls.pending = None
        if calls.alarm is not None:
            raise calls.failed(calls.alarm) from error
        if isinstance(error, RuntimeError) or calls.seen:
            calls.seen = False
            calls.look()


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def plain_words(number: int, *, fully: bool = False) -> str:
    """Describe the numbers that name no verb."""
    known = {
        UNNAMED: "moved rows outside of any verb",
        ENDED: "came to the end of a pass or to a call of all ranks",
        LEFT: "came to its end",
    }
    return known.get(number) or f"asked exchange {number}"


def nothing_pending() -> list[Pending]:
    """Return no messages: a rank waits in an operation of a group."""
    return []


def no_memory() -> memoryview:
    """Return memory for a rank that shares none."""
    return memoryview(bytearray(LOG_BYTES + ALARM_BYTES))
