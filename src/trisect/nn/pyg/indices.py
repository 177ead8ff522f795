"""`Indices`: which integer tensors of a forward number the sources of edges, and which their targets."""

from __future__ import annotations

from torch import Tensor, int64

SOURCES, TARGETS = 0, 1


class Indices:
    """Facts about integer tensors while a module runs.

    Every `edge_index` is taken apart into its rows: from there on, copies, pieces and concatenations of a row number
    sources or targets as the row does.
    """

    def __init__(self) -> None:
        # tensors are kept, so that no other one gets the id of one of them
        self._known: dict[int, tuple[Tensor, int]] = {}
        self._pairs: dict[int, Tensor] = {}

    def side(self, index: object) -> int | None:
        """Return `SOURCES`, `TARGETS` or None (not known), what an index numbers; of an edge_index, its first row."""
        return self._known[id(index)][1] if id(index) in self._known else None

    def note(self, index: Tensor, side: int | None) -> Tensor:
        """Note what an index numbers, and return it."""
        if side is not None:
            self._known[id(index)] = (index, side)
        return index

    @staticmethod
    def is_pair(tensor: object) -> bool:
        """Whether a tensor has the form of an edge_index."""
        return isinstance(tensor, Tensor) and tensor.dtype == int64 and tensor.dim() == 2 and tensor.shape[0] == 2

    def split(self, pair: Tensor) -> tuple[int, int]:
        """Note that an edge_index is taken apart; return what its rows number."""
        turned = self.side(pair) == TARGETS
        if not turned:
            self._pairs[pair.shape[1]] = pair
        return (TARGETS, SOURCES) if turned else (SOURCES, TARGETS)

    def pair(self, edges: int) -> Tensor | None:
        """Return the latest edge_index of so many edges."""
        return self._pairs.get(edges)
