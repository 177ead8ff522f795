"""How much of the cores other programs take, or the host of a virtual machine does: what disturbs a measurement."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE, _STOLEN = (3, 4), 8  # columns of idle cores; those from the ninth on are counted in others too


class Others:
    """The cores that others took since this was made."""

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
    """Seconds that the cores have worked, for anyone."""
    try:
        columns = [int(word) for word in _STAT.read_text().splitlines()[0].split()[1:]]
        return sum(ticks for k, ticks in enumerate(columns[:_STOLEN]) if k not in _IDLE) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _own() -> float:
    return sum(os.times()[:4])
