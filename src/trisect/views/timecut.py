"""`TimeCut`: which rank has which steps of a timeline, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Runs = Sequence[Sequence[range]]


@dataclass(frozen=True)
class TimeCut:
    """The steps of a timeline in blocks, and those of each block in runs.

    Attributes:
        runs: runs[block][run], consecutive ranges of steps; a run may be empty, a block not.
        run: that of this rank.
        chunks: of rows in which a state crosses runs, one after the other.
    """

    runs: Runs
    run: int = 0
    chunks: int = 1

    @property
    def times(self) -> int:
        """How many runs a block has."""
        return len(self.runs[0])

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return len(self.runs)

    def steps(self, block: int) -> range:
        """Return all steps of a block."""
        return range(self.runs[block][0].start, self.runs[block][-1].stop)

    def before(self, block: int, run: int) -> tuple[int, int] | None:
        """Return (block, run) of the run that comes before, empty ones left out."""
        return self._neighbour(block, run, -1)

    def after(self, block: int, run: int) -> tuple[int, int] | None:
        """Return (block, run) of the run that comes after, empty ones left out."""
        return self._neighbour(block, run, 1)

    def _neighbour(self, block: int, run: int, direction: int) -> tuple[int, int] | None:
        index = block * self.times + run + direction
        while 0 <= index < self.blocks * self.times:
            place = divmod(index, self.times)
            if self.runs[place[0]][place[1]]:
                return place
            index += direction
        return None

    def read_before(self, block: int, run: int, owner: int, window: int) -> tuple[int, ...]:
        """Return those of the window-1 steps before a run that the run `owner` has, in this block or before."""
        if not self.runs[block][run]:
            return ()
        start = self.runs[block][run].start
        owned = (self.runs[b][owner] for b in range(block + 1))
        return tuple(
            step for own in owned for step in range(max(own.start, start - (window - 1)), min(own.stop, start))
        )


def equal_shares(total: int, count: int) -> list[int]:
    """Return where `count` equal shares of `total` rows begin, and the last one ends."""
    return [total * k // count for k in range(count + 1)]
