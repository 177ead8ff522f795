"""How much of the cores other programs take, or the host of a virtual machine does: what disturbs a measurement."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_COLUMNS, _IDLE = 8, (3, 4)  # time of guests, behind these columns, is counted in the first of them too


class Others:
    """The cores that others took since this was made, of those that this process may use."""

    def __init__(self) -> None:
        self._begin = time.monotonic(), _busy(), _own()

    def cores(self) -> float | None:
        """Give how many cores they took on average; None where the system does not tell.

        What children of this process took is known once they have ended.
        """
        begin, busy, own = self._begin
        now, elapsed = _busy(), time.monotonic() - begin
        if busy is None or now is None or elapsed <= 0.0:
            return None
        return max(0.0, (now - busy - (_own() - own)) / elapsed)


def _busy() -> float | None:
    """Seconds that the cores which this process may use have worked, for anyone."""
    try:
        mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        rows = [line.split() for line in _STAT.read_text().splitlines()]
        ticks = [[int(word) for word in words[1 : 1 + _COLUMNS]] for words in rows if words and words[0] in mine]
        working = sum(each for row in ticks for k, each in enumerate(row) if k not in _IDLE)
        return working / os.sysconf("SC_CLK_TCK") if ticks else None
    except (OSError, ValueError, AttributeError):
        return None


def _own() -> float:
    return sum(os.times()[:4])
