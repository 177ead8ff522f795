"""`Halo`: rows that other parts read cross before the sum, and their gradients back.

Each part has the rows of others that its own rows read behind its own ones. What crosses is R rows of the width that is
summed, with R the rows that all parts together read of others. While it is on its way, interior rows, which read no
other part, are summed up.

With a symmetric matrix, the vertices that read our rows are exactly our halo: their gradients arrive through the same
lists, and are pulled through the matrix's own rows. Otherwise the gradients of halo rows go back to their owners, who
add them up.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from trisect.comm.rows import Rows, Shape
from trisect.graph.adjacency import Adjacency
from trisect.ops.memory import empty
from trisect.ops.spmm.collect import add_rows
from trisect.ops.spmm.sums import aggregate_into
from trisect.partition.halo import PartGraph
from trisect.schedule.action import Action
from trisect.views.door import Door, Posted
from trisect.views.ending import Ending
from trisect.views.exchange import Crossing, Place, Work, crossing
from trisect.views.rows import joined, readable, same_rows
from trisect.views.spatial import Spatial
from trisect.views.total import sum_over_parts

if TYPE_CHECKING:
    from trisect.views.plan import Plan
    from trisect.views.trace import Call

# A split sum costs a few tenths of a millisecond whatever its size; with fewer rows there is nothing to overlap.
OVERLAP_ROWS = 2048


class Halo(Spatial):
    """The rows of one part over some steps.

    Args:
        graphs: of each step, the part's block with its halo lists.
        interior: the own row from which on no row takes part in the exchange at any step; None: it is not known.
        part_rows: of each part; `top` alone asks.
        ids: of each step, the user's ids of the columns.

    Attributes:
        interior: the own row from which on `View.gather` splits rows, since those behind it read no other part; None:
            it does not.
    """

    name: ClassVar[str] = "halo"
    letter: ClassVar[str] = "h"
    option: ClassVar[str] = "halo"
    allows_history: ClassVar[bool] = True
    moves = True
    door: Door

    @classmethod
    def expand(cls, at: Place, call: Call, *, back: bool) -> Iterator[Crossing | Work]:
        """Yield a crossing, and between post and wait interior rows where there are enough."""
        splits = (call.then and at.plan.chunks == 1) if call.verb == "gather" else at.plan.symmetric or not back
        if not splits or not cls.overlaps(at.plan) or (back and not at.trained(call)):
            yield from super().expand(at, call, back=back)
            return
        post, wait = crossing(call.width)
        inner, outer = (Work(at.layer, "behind", at.share, side) for side in ("interior", "boundary"))
        # the gradients of rows that were gathered are found before they leave; those of sums are pulled
        yield from (outer, post, inner, wait) if back and call.verb == "gather" else (post, inner, wait, outer)

    @staticmethod
    def overlaps(plan: Plan) -> bool:
        """Whether interior rows are summed while rows are on their way."""
        return plan.batches == 1 and min(plan.rows) // max(1, len(plan.chunk_rows[0]) - 1) >= OVERLAP_ROWS

    @classmethod
    def bytes_of(cls, at: Place, action: Action, fetched: Sequence[int]) -> tuple[str, float]:
        """R·M, with R the rows that all parts together read of others at the own steps; chunks have equal shares."""
        rows = sum(at.plan.remote[step] for step in at.steps)
        size = at.plan.wire_bytes(rows, action.width) / at.plan.chunks
        return "halo-gradients" if action.back else "halo", size

    def __init__(
        self,
        graphs: Sequence[PartGraph],
        door: Door,
        interior: int | None = None,
        part_rows: Sequence[int] = (),
        ids: Sequence[Tensor | None] = (),
    ) -> None:
        self._graphs, self.door, self.part_rows = graphs, door, part_rows
        self._ids = ids
        self._part, self._parts = door.mesh.part_index, door.mesh.layout.vertex
        self.rows, self.steps = graphs[0].rows, len(graphs)
        rows = self.rows
        self._interior = rows if interior is None or rows < OVERLAP_ROWS else interior
        self.interior = None if self._interior in (0, rows) else self._interior
        self._pulls = all(graph.symmetric for graph in graphs)
        self._halo_rows = [graph.adjacency.columns - rows for graph in graphs]
        self._starts = [0, *accumulate(self._halo_rows)]
        # of each other part, the own rows of all steps that it reads, and how many of its rows are read
        self._sends = [
            torch.cat([chunk + step * rows for step, graph in enumerate(graphs) for chunk in graph.send[other]])
            for other in range(self._parts)
        ]
        self._owned = [
            [(graph.receive[q][0][0], graph.receive[q][-1][1]) for graph in graphs] for q in range(self._parts)
        ]
        self._counts = [sum(high - low for low, high in owned) for owned in self._owned]
        self._rooms: dict[Hashable, Tensor] = {}

    @property
    def blocks(self) -> Sequence[Adjacency]:
        """Return the part's block of each step: own rows × (own rows, then halo rows)."""
        return [graph.adjacency for graph in self._graphs]

    def column_ids(self, step: int) -> Tensor | None:
        """Return the user's ids of own and halo rows."""
        return self._ids[step] if self._ids else None

    # Sums

    def room(self, call: Hashable, like: Tensor, width: int) -> Tensor | None:
        """Return the first rows of a board that has room for the halo behind them."""
        board = self._rooms[call] = self._board(like, width)
        return board[: self.steps * self.rows].view(self.steps, self.rows, width)

    def gradient_room(self, call: Hashable, like: Tensor, width: int) -> Tensor | None:
        """Return the first rows of a board, where gradients are pulled."""
        return self.room(call, like, width) if self._pulls else None

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
        """Write the sums over own and halo rows."""
        self._sum(call, x, out, "halo", alpha=alpha, add=add, beta=beta, bias=bias, ending=ending)

    def _sum(
        self,
        call: Hashable,
        x: Tensor,
        out: Tensor,
        kind: str,
        *,
        alpha: float,
        add: Tensor | None = None,
        beta: float = 1.0,
        bias: Tensor | None = None,
        ending: Ending = Ending.NONE,
    ) -> None:
        board = self._taken(call, x)
        posted = self._begin(call, board, kind, stay=self._in_place)

        def rows(step: int, low: int, high: int, columns: Tensor, halo: Tensor | None) -> None:
            graph, noise = self._graphs[step], ending.noise(step)
            whole = (low, high) == (0, self.rows)
            aggregate_into(
                out[step] if whole else out[step, low:high],
                columns,
                graph.adjacency if whole else graph.piece(low, high),
                alpha=alpha,
                add=None if add is None else add[step] if whole else add[step, low:high],
                beta=beta,
                bias=bias,
                relu=ending.plain_relu,
                slope=ending.slope,
                p=ending.p,
                noise=noise if whole or noise is None else noise.rows(low, high),
                last_rows=halo,
            )

        for step in range(self.steps if self._interior < self.rows else 0):
            rows(step, self._interior, self.rows, self._own_columns(board, step), None)
        halo = self._arrived(board, posted)
        for step in range(self.steps):
            rows(step, 0, self._interior, *self._columns(board, halo, step))

    def sum_gradient(self, call: Hashable, gradient: Tensor, trail: Any, *, alpha: float = 1.0) -> Tensor:
        """Return the gradients of own rows, pulled or sent back."""
        out = empty((self.steps, self.rows, gradient.shape[2]), gradient.dtype, gradient.device)
        if self._pulls:
            self._sum(call, gradient, out, "halo-gradients", alpha=alpha)
            return out
        halo = empty((self._starts[-1], gradient.shape[2]), gradient.dtype, gradient.device)
        for step, graph in enumerate(self._graphs):
            turned = graph.piece(self.rows, graph.adjacency.columns, turned=True)
            aggregate_into(halo[self._starts[step] : self._starts[step + 1]], gradient[step], turned, alpha=alpha)
        posted = self._send_back(call, halo)
        for step, graph in enumerate(self._graphs):
            turned = graph.piece(0, self.rows, turned=True)
            aggregate_into(out[step], gradient[step], turned, alpha=alpha)
        return self.complete(out, posted)

    # Rows themselves

    def gather(self, call: Hashable, x: Tensor) -> list[Tensor]:
        """Return own rows and the halo behind them, of each step."""
        return self.arrived(self.depart(call, x))

    def gather_gradient(self, call: Hashable, gradients: Sequence[Tensor]) -> Tensor:
        """Return the gradients of own rows, those that other parts found included."""
        posted = self.give_back(call, gradients)
        return self.complete(torch.stack([gradient[: self.rows] for gradient in gradients]), posted)

    def sides(self, step: int, low: int) -> tuple[Adjacency, Adjacency]:
        """Return the matrices of the rows before `low`, and of those from it on over own rows alone."""
        return self._graphs[step].piece(0, low), self._graphs[step].inner(low)

    def depart(self, call: Hashable, x: Tensor) -> tuple[Tensor, Posted]:
        """Begin a `gather`; return the board, whose first rows are the own ones, and what is on its way."""
        board = self._taken(call, x)
        return board, self._begin(call, board, "halo", stay=False)

    def arrived(self, away: tuple[Tensor, Posted]) -> list[Tensor]:
        """Wait; return own rows and the halo behind them, of each step."""
        board, halo = away[0], self._arrived(*away)
        if self.steps == 1:
            return [board]
        if halo is None:
            halo = board[self.steps * self.rows :]
        return [
            joined(board[t * self.rows : (t + 1) * self.rows], halo[self._starts[t] : self._starts[t + 1]])
            for t in range(self.steps)
        ]

    def give_back(self, call: Hashable, gradients: Sequence[Tensor]) -> Posted:
        """Begin to send the gradients of halo rows to their owners."""
        halo = [gradient[self.rows :] for gradient in gradients]
        return self._send_back(call, halo[0] if len(halo) == 1 else torch.cat(halo))

    # Sums over all rows

    def total(self, call: Hashable, sums: Tensor) -> Tensor:
        """Return the sum over all parts."""
        return sum_over_parts(self.door, call, sums[:, 0], back=False)

    def total_gradient(self, call: Hashable, gradient: Tensor) -> Tensor:
        """Return the sum of what all parts want of the total."""
        return sum_over_parts(self.door, call, gradient, back=True)

    # Crossing

    def _board(self, like: Tensor, width: int) -> Tensor:
        return empty((self.steps * self.rows + self._starts[-1], width), like.dtype, like.device)

    def _taken(self, call: Hashable, x: Tensor) -> Tensor:
        """Return the board that x was made on, or a new one with a copy of x."""
        board = self._rooms.pop(call, None)
        if board is None or board.data_ptr() != x.data_ptr():
            board = self._board(x, x.shape[2])
            board[: self.steps * self.rows].view(x.shape).copy_(x)
        return board

    @property
    def _in_place(self) -> bool:
        """Whether halo rows are read where they came to lie: one part gives all, and kernels of the CPU sum them up."""
        return self._parts == 2 and self._graphs[0].adjacency.device.type == "cpu"

    def _begin(self, call: Hashable, board: Tensor, kind: str, *, stay: bool) -> Posted:
        own, width = self.steps * self.rows, board.shape[1]
        room: list[Tensor | Shape]
        if self.steps > 1 and self._parts > 2:
            room = [Shape(count, width, board.dtype) for count in self._counts]
        elif self.steps > 1:
            room = [board[own:] if count else board[own:own] for count in self._counts]
        else:
            room = [board[own + low : own + high] for ((low, high),) in self._owned]
        outgoing = [Rows(board, rows) for rows in self._sends]
        return self.door.swap(self.name, call, outgoing, room, kind, back=kind != "halo", key=kind, stay=stay)

    def _arrived(self, board: Tensor, posted: Posted) -> Tensor | None:
        """Wait; return the halo of all steps where it lies elsewhere than on the board."""
        received = posted.wait()
        if self.steps > 1 and self._parts > 2:
            halo, taken = board[self.steps * self.rows :], [0] * self._parts
            for step in range(self.steps):
                for other, owned in enumerate(self._owned):
                    low, high = owned[step]
                    rows = received[other][taken[other] : taken[other] + high - low]
                    taken[other] += high - low
                    halo[self._starts[step] + low : self._starts[step] + high] = rows
            return None
        return received[1 - self._part] if self._in_place and posted.swap.stay else None

    def _own_columns(self, board: Tensor, step: int) -> Tensor:
        """Return columns of a step of which the own rows alone are there."""
        if self.steps == 1:
            return board
        first = step * self.rows
        return same_rows(board, first, first + self.rows + self._halo_rows[step])

    def _columns(self, board: Tensor, halo: Tensor | None, step: int) -> tuple[Tensor, Tensor | None]:
        """Return the columns of a step, and where the last of them are read instead."""
        if self.steps == 1:
            return readable(board, self.rows, halo)
        if halo is None:
            halo = board[self.steps * self.rows :]
        own = same_rows(board, step * self.rows, (step + 1) * self.rows)
        return readable(own, self.rows, halo[self._starts[step] : self._starts[step + 1]])

    def _send_back(self, call: Hashable, halo: Tensor) -> Posted:
        """Begin to send the gradients of halo rows, [halo rows of all steps, width], to their owners."""
        outgoing = []
        for owned in self._owned:
            parts = [halo[start + low : start + high] for start, (low, high) in zip(self._starts, owned, strict=False)]
            outgoing.append(parts[0] if len(parts) == 1 else torch.cat(parts))
        shapes = [Shape(rows.numel(), halo.shape[1], halo.dtype) for rows in self._sends]
        kind = "halo-gradients"
        return self.door.swap(self.name, call, outgoing, shapes, kind, back=True, key=kind)

    def complete(self, own: Tensor, posted: Posted) -> Tensor:
        """Wait for the gradients of own rows that other parts found, and add them."""
        total = own.view(-1, own.shape[2])
        for rows, gradient in zip(self._sends, posted.wait(), strict=True):
            add_rows(total, rows, gradient)
        return own
