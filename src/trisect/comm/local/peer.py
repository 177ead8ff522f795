"""`Peer`: another process of this host, which is waited for as long as it lives and the run's timeout allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trisect.comm.cores import usable_cores
from trisect.comm.local.words import words

_LOOK = 0.05  # seconds between two looks at whether the process lives
_LONG = 0.15  # seconds after which a rank that waits asks whether it waits in vain
_SPIN = 10_000  # nanoseconds; longer gains nothing, and keeps others from work where cores are shared


@dataclass(frozen=True)
class Peer:
    """A rank of this host.

    Attributes:
        rank, process: its number in the world, and in the system.
        started: when the process started, in ticks; another process may have its number later.
        timeout: seconds that it may be silent.
        spin: nanoseconds to look for a message before going to sleep.
        looks: are called now and then by a rank that waits for long; they raise where the wait is in vain.
    """

    rank: int
    process: int
    started: int
    timeout: float
    spin: int
    looks: list[Callable[[], None]] = field(default_factory=list, compare=False)

    @classmethod
    def of(cls, rank: int, process: int, timeout: float, ranks_here: int) -> Peer:
        """Give the peer of a process that runs now.

        Args:
            ranks_here: how many ranks this host has; with more ranks than cores, looking keeps others from work.
        """
        state = _state(process)
        spin = _SPIN if ranks_here <= usable_cores() else 0
        return cls(rank, process, -1 if state is None else state[1], timeout, spin)

    @property
    def lives(self) -> bool:
        """Say whether the process has not ended (one that is stopped lives)."""
        state = _state(self.process)
        return state is not None and state[0] not in "ZX" and state[1] == self.started

    def wait(self, word: int, old: int) -> int:
        """Wait until the peer has published another value than `old`, and return it.

        Raises:
            RuntimeError: the peer ended, or was silent for longer than the timeout.
        """
        wait = words().wait
        value = wait(word, old, self.spin, _LOOK)
        if value != old:
            return value
        start = time.monotonic()
        deadline = start + self.timeout - _LOOK
        while True:
            lives = self.lives
            # what it published before it ended counts
            value = wait(word, old, 0, _LOOK if lives else 0.0)
            if value != old:
                return value
            if not lives or time.monotonic() - start > _LONG:
                for look in self.looks:
                    look()
            if not lives:
                raise RuntimeError(f"Connection closed by rank {self.rank} (process {self.process} has ended)")
            if time.monotonic() > deadline:
                raise RuntimeError(f"Timed out after {self.timeout:g} s of waiting for rank {self.rank}")


def _state(process: int) -> tuple[str, int] | None:
    """Give a letter for the state of a process and when it started; None where there is no such process."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return fields[0], int(fields[19])
