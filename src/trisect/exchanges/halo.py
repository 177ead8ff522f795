"""Halo: rows that other parts read cross between prepare and combine, and their gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from trisect.exchanges.base import Exchange, crossings
from trisect.exchanges.facts import Facts
from trisect.nn.halves import HalfKind
from trisect.schedule.action import Action


class Halo(Exchange):
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
