"""`Batches`: the spatial sides of the batches of one rank; those that come again are kept."""

from __future__ import annotations

from torch import Tensor

from trisect.partition.halo import PartGraph
from trisect.views.batch import Batch, Renormalise
from trisect.views.door import Door
from trisect.views.history import Boards


class Batches:
    """Makes a batch from its chunks.

    Args:
        boards: from which rows outside are read; None: edges to them are left out.
        column_ids: the user's ids of the part's columns.
        renormalise: makes the values of a matrix that edges were left out of.
    """

    def __init__(
        self,
        graph: PartGraph,
        door: Door,
        boards: Boards | None,
        column_ids: Tensor | None,
        renormalise: Renormalise | None = None,
    ) -> None:
        self._graph, self._door, self._boards = graph, door, boards
        self._column_ids, self._renormalise = column_ids, renormalise
        self._push: float | None = 0.0
        self._made: dict[tuple[int, ...], Batch] = {}

    def begin(self, *, push: float | None) -> None:
        """Begin a pass; see `Batch.push`."""
        self._push = push

    def __call__(self, chunks: tuple[int, ...]) -> Batch:
        """Return the batch of some chunks."""
        batch = self._made.get(chunks)
        if batch is None:
            # those of several chunks are drawn anew in each epoch
            self._made = {kept: other for kept, other in self._made.items() if len(kept) == 1}
            batch = self._made[chunks] = Batch(
                self._graph,
                chunks,
                self._door,
                self._boards,
                column_ids=self._column_ids,
                renormalise=self._renormalise if self._boards is None else None,
            )
        batch.push = self._push
        return batch
