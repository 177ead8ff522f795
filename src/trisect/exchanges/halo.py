"""Halo: rows that other parts read cross between prepare and combine, and their gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from trisect.comm.incoming import Swap
from trisect.comm.rows import Rows, Shape
from trisect.exchanges.base import Exchange, crossings
from trisect.exchanges.facts import Facts
from trisect.exchanges.port import Port
from trisect.nn.halves import HalfKind
from trisect.schedule.action import Action


class Halo(Exchange[Swap]):
    """Each part gets the rows of others that its own rows read.

    With a symmetric matrix, the vertices that read our rows are exactly our halo, so their gradients arrive through the
    same lists; otherwise the gradients of halo rows go back to their owners, who add them up.
    """

    name: ClassVar[str] = "halo"
    axis: ClassVar[str] = "vertex"
    letter: ClassVar[str] = "h"
    option: ClassVar[str] = "halo"
    moves = "board"
    hides: ClassVar[bool] = True
    allows_history: ClassVar[bool] = True

    def stands_before(self, facts: Facts, half: int) -> bool:
        """It comes before each combine that reads neighbours, unless their sum is kept."""
        layer = facts.layer_at(half, HalfKind.COMBINE)
        return layer is not None and self.serves(layer) and not facts.halves[half].aggregated

    def needs_board(self, facts: Facts, layer: int) -> bool:
        """Rows of other parts stand behind the own ones."""
        return self.serves(facts.layers[layer])

    def returns(self, facts: Facts, half: int) -> bool:
        """Gradients cross where the message is made with parameters, or of rows that are trained."""
        layer = facts.layer_of(half)
        return facts.layers[layer].multiplies or facts.reads_trained(layer)

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """R·M each time, with R the rows that all parts together read of others at the steps of the block."""
        total = {"halo": 0, "halo-gradients": 0}
        for (half, block, back), count in crossings(posts).items():
            width = facts.layers[facts.halves[half].layer].message_channels
            rows = sum(facts.remote[step] for step in facts.steps(block))
            total["halo-gradients" if back else "halo"] += count * facts.wire_bytes(rows, width)
        return total

    def post(self, action: Action, port: Port) -> Swap:
        """Let rows of the board, or gradients, go."""
        layer, boards = port.facts.layer_of(action.half), port.boards
        crossing, slices = boards.crossing(action.chunk), boards.halo_slices(action.chunk)
        kind = "halo-gradients" if action.back else "halo"
        if action.back and not boards.pulls:
            outgoing: Sequence[Tensor | Rows] = boards.halo_gradients(layer, action.chunk)
            shapes: list[Tensor | Shape] = [
                Shape(rows.numel(), outgoing[0].shape[1], port.dtype) for rows in crossing.sends
            ]
            return port.transport.begin_swap(outgoing, shapes, kind, port.key(action), once=port.rare)
        buffer = boards.gradient_buffer(layer) if action.back else boards.buffer(layer)
        outgoing = [Rows(buffer, rows) for rows in crossing.sends]
        if slices is None or (not action.back and boards.blends):
            room: list[Tensor | Shape] = [Shape(count, buffer.shape[1], port.dtype) for count in crossing.receives]
        else:
            room = [buffer[part] for part in slices]
        return port.transport.begin_swap(outgoing, room, kind, port.key(action), once=port.rare, stay=boards.in_place)

    def wait(self, action: Action, port: Port, posted: Swap) -> None:
        """Put halo rows, or gradients, where they are read."""
        layer, boards = port.facts.layer_of(action.half), port.boards
        received = posted.wait()
        if action.back and not boards.pulls:
            boards.add_gradients(layer, action.chunk, received)
            return
        slices = boards.halo_slices(action.chunk)
        if slices is None:
            buffer = boards.gradient_buffer(layer) if action.back else boards.buffer(layer)
            halo = buffer[boards.steps * boards.rows :]
            boards.scatter(halo, received)
            if action.back:
                boards.extend_gradients(layer, halo)
            return
        if not action.back and boards.blends:
            for part, rows in zip(slices, received, strict=True):
                boards.write_halo(layer, part, rows)
            return
        if boards.steps > 1 or boards.in_place:
            halo = received[1 - port.mesh.part_index]
            if action.back:
                boards.extend_gradients(layer, halo)
            else:
                boards.extend(layer, halo)
