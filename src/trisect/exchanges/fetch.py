"""Fetch: output rows of other parts that the loss reads cross before it, and their gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from trisect.exchanges.base import Exchange, crossings
from trisect.exchanges.facts import Facts
from trisect.nn.halves import HalfKind
from trisect.schedule.action import Action


class Fetch(Exchange):
    """Tasks on pairs: each part's loss reads its own rows and the rows of others at the far ends of its pairs."""

    name: ClassVar[str] = "fetch"
    axis: ClassVar[str] = "vertex"
    letter: ClassVar[str] = "f"
    moves = "output"

    def stands_before(self, facts: Facts, half: int) -> bool:
        """It comes before the half that hands outputs to the loss."""
        return facts.halves[half].kind is HalfKind.OUTPUT and facts.fetches and facts.parts > 1

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """What the loss samples decides how many rows cross at each step."""
        total = 0
        for (_, block, _), count in crossings(posts).items():
            rows = sum(fetched[step] for step in facts.steps(block)) if fetched else 0
            total += count * facts.wire_bytes(rows, facts.out_channels)
        return {"fetch": total}
