"""`Ledger`: every byte that leaves a rank, and every byte brought to the device, by axis and kind."""

from __future__ import annotations

from dataclasses import dataclass

AXES = ("vertex", "layer", "time", "weights")


@dataclass(frozen=True)
class Entry:
    """The bytes and seconds that went over one axis for one reason."""

    axis: str
    kind: str
    bytes: int
    seconds: float
    count: int


class Ledger:
    """Sums since the last `clear`. One a rank; the trainer reads it once an epoch."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], tuple[int, float, int]] = {}
        self.full_bytes = 0
        self.sent_bytes = 0

    def add(self, axis: str, kind: str, size: int, seconds: float = 0.0) -> None:
        """Count one transfer of `size` bytes over a mesh axis (`weights` for the reduction of gradients)."""
        if axis not in AXES:
            raise ValueError(f"axis {axis!r} is none of {', '.join(AXES)}")
        have = self._sums.get((axis, kind), (0, 0.0, 0))
        self._sums[axis, kind] = (have[0] + size, have[1] + seconds, have[2] + 1)

    def add_transfer(self, full: int, sent: int) -> None:
        """Count a snapshot brought to the device: its size as a whole, and what was sent instead."""
        self.full_bytes += full
        self.sent_bytes += sent

    def entries(self) -> list[Entry]:
        """Give all sums, by axis and kind."""
        return [Entry(axis, kind, *sums) for (axis, kind), sums in sorted(self._sums.items())]

    def by_axis(self) -> dict[str, int]:
        """Bytes of each axis, zero where nothing was sent."""
        totals = dict.fromkeys(AXES, 0)
        for (axis, _), (size, _, _) in self._sums.items():
            totals[axis] += size
        return totals

    @property
    def bytes(self) -> int:
        """Give all bytes of all axes."""
        return sum(size for size, _, _ in self._sums.values())

    @property
    def seconds(self) -> float:
        """Give all seconds of all axes."""
        return sum(seconds for _, seconds, _ in self._sums.values())

    def clear(self) -> None:
        """Set all sums to zero, as an epoch begins."""
        self._sums.clear()
        self.full_bytes = self.sent_bytes = 0
