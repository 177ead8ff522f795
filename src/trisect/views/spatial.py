"""`Spatial`: how the rows of a view read rows of other vertices of the same step. One subclass an exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.views.door import Door
from trisect.views.ending import Ending
from trisect.views.exchange import Exchange


class Spatial(Exchange, ABC):
    """The spatial side of a view, on frames [steps, rows, channels] and outside of autograd.

    `views.aggregate` and `views.gather` make it part of autograd: they call a method ending in `_gradient` in backward,
    in the reverse order, with what the forward one left. Where rows cross ranks, all ranks call in the same order.

    A `call` says which verb of the cell it is: a layer, and which of its calls.

    Attributes:
        rows: of a step; `steps`: how many.
        blocks: the matrix of each step, [rows, columns]; its columns are in the order of `gather`.
        moves: whether rows cross ranks.
        stale: whether some of the rows that are read are of an earlier pass.
        pieces: the sizes of consecutive pieces of own rows whose sums are kept apart; empty: there is one piece.
        door, part_rows: where rows cross ranks, the way to other parts, and the rows of each part.
        heed: is called in every verb, forward and backward; None where a request to stop cannot come.
    """

    rows: int
    steps: int
    moves: bool = False
    stale: bool = False
    pieces: Sequence[int] = ()
    door: Door | None = None
    part_rows: Sequence[int] = ()
    heed: Callable[[], None] | None = None

    @property
    @abstractmethod
    def blocks(self) -> Sequence[Adjacency]:
        """Return the matrix of each step."""

    def column_ids(self, step: int) -> Tensor | None:
        """Return the user's ids of the columns that `gather` gives at a step; None: the positions of the rows."""
        return None

    def room(self, call: Hashable, like: Tensor, width: int) -> Tensor | None:
        """Return where `sum` reads own rows, [steps, rows, width], so that they are made there; None: anywhere."""
        return None

    def gradient_room(self, call: Hashable, like: Tensor, width: int) -> Tensor | None:
        """Return where `sum_gradient` reads the gradient, [steps, rows, width]; None: anywhere."""
        return None

    @abstractmethod
    def sum(
        self,
        call: Hashable,
        x: Tensor,
        out: Tensor,
        *,
        alpha: float = 1.0,
        add: Tensor | None = None,
        beta: float = 1.0,
        bias: Tensor | None = None,
        ending: Ending = Ending.NONE,
        trained: bool = False,
    ) -> Any:
        """Write ending(alpha · Â·x + beta · add + bias) to `out`; return what `sum_gradient` needs.

        Args:
            x: [steps, rows, channels]; of equal frames, the steps may share memory.
            trained: whether a backward will follow.
        """

    @abstractmethod
    def sum_gradient(self, call: Hashable, gradient: Tensor, trail: Any, *, alpha: float = 1.0) -> Tensor:
        """Return alpha · Âᵀ·gradient, [steps, rows, channels]."""

    def ended_gradient(
        self, gradient: Tensor, trail: Any, ending: Ending, out: Tensor, *, want_bias: bool
    ) -> tuple[Tensor, Tensor | None] | None:
        """Return Âᵀ·g and the sum of g, which is the gradient before the ending, a relu whose result is `out`, in one
        pass; None: it takes two.
        """
        return None

    @abstractmethod
    def gather(self, call: Hashable, x: Tensor) -> list[Tensor]:
        """Return of each step the rows that own rows read, own rows first: [columns of the step, channels]."""

    @abstractmethod
    def gather_gradient(self, call: Hashable, gradients: Sequence[Tensor]) -> Tensor:
        """Return the gradients of own rows, [steps, rows, channels], from those of all columns."""

    def total(self, call: Hashable, sums: Tensor) -> Tensor:
        """Return the sum over all rows of each step, [steps, channels], from those of own pieces of rows.

        Args:
            sums: [steps, pieces, channels].
        """
        return sums[:, 0]

    def total_gradient(self, call: Hashable, gradient: Tensor) -> Tensor:
        """Return the gradient that every own row gets, from that of the total."""
        return gradient
