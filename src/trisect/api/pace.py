"""How long an epoch takes, and how long the rest of a run will."""

from __future__ import annotations

import statistics
import time
from collections import deque

_LATEST = 20  # epochs


class Pace:
    """The time of epochs as they end.

    Args:
        epochs: how many the whole run has.
    """

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._seconds: deque[float] = deque(maxlen=_LATEST)
        self._begin = self._latest = time.monotonic()
        self._first: tuple[int, float] | None = None
        self._done = 0

    def epoch(self, number: int, seconds: float | None) -> None:
        """Count an epoch, which took so long."""
        self._done, self._latest = number, time.monotonic()
        if seconds is not None:
            self._seconds.append(seconds)
        if self._first is None or number <= self._first[0]:  # a run may begin at a checkpoint, or go back to one
            self._first = (number, self._latest)

    @property
    def elapsed(self) -> float:
        """Give the seconds since the start."""
        return time.monotonic() - self._begin

    @property
    def each(self) -> float | None:
        """Give the median of the latest epochs; None before the first has ended."""
        return statistics.median(self._seconds) if self._seconds else None

    @property
    def left(self) -> float | None:
        """Give the seconds that the other epochs will take, evaluations included; None where nothing is known."""
        each, since = self.each, self._first
        if each is None or since is None:
            return None
        if self._done > since[0]:
            # epochs that came all at once, out of the file of a run, say nothing by the clock
            each = max(each, (self._latest - since[1]) / (self._done - since[0]))
        return max(0.0, each * (self._epochs - self._done) - (time.monotonic() - self._latest))
