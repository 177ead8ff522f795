"""`Pieces`: the layers of each piece of a cell, between what the cell posts and waits for."""

from __future__ import annotations


class Pieces:
    """Names the pieces of one cell, as they are planned and as they run.

    Args:
        begin, end: the layers with which the cell begins and ends.
    """

    def __init__(self, begin: int, end: int) -> None:
        self._at, self._end, self._crossed = begin, end, False

    def until(self, layer: int | None) -> tuple[int, int]:
        """Return the first and last layer of the piece that ends at a transfer of a layer's verb."""
        before, self._crossed = self._at, True
        self._at = before if layer is None else layer
        return min(before, self._at), max(before, self._at)

    def rest(self) -> tuple[int | None, int | None]:
        """Return those of the last piece; none where nothing crossed, so that it is the whole cell."""
        return (min(self._at, self._end), max(self._at, self._end)) if self._crossed else (None, None)
