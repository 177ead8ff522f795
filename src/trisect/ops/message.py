"""`Message` holds what rows read of other rows, and where a cut wants their gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.ops.spmm.collect import Collector


@dataclass(frozen=True, eq=False)
class Message:
    """What rows read of others: the rows themselves, and where the gradient of sums over them goes.

    One process gives the rows alone. A cut may give more, which `ops.aggregate`, `ops.convolve` and
    `ops.convolve_dense` obey.

    Attributes:
        rows: [columns, channels].
        last_rows: [last columns, channels], read instead of the last rows of `rows`, which may hold anything.
        sink: takes the gradient of sums over the rows; autograd then gets no gradient of them.
        own: gives the block's own rows, where a cut keeps their gradient apart from that of the sums.
    """

    rows: Tensor
    last_rows: Tensor | None = None
    sink: Collector | None = None
    own: Callable[[], Tensor] | None = None

    def of_block(self, adjacency: Adjacency) -> Tensor:
        """Give the rows that belong to the block itself, [rows, channels]."""
        if self.own is not None:
            return self.own()
        if adjacency.rows == self.rows.shape[0]:
            return self.rows  # a slice of everything has a gradient that is copied
        return self.rows[adjacency.self_start : adjacency.self_start + adjacency.rows]


def as_message(rows: Tensor | Message) -> Message:
    """Wrap plain rows; a message stays what it is."""
    return rows if isinstance(rows, Message) else Message(rows)
