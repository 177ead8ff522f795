"""Redistribute by steps: P1's two all-to-alls around the recurrent part.

(Own steps × all rows) become (all steps of a block × an own share of the rows), and back. It fits every temporal
module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from trisect.exchanges.base import Exchange, crossings
from trisect.exchanges.facts import Facts, LayerFacts, equal_shares
from trisect.exchanges.rank_block import RankBlock
from trisect.nn.halves import HalfKind
from trisect.schedule.action import Action


class RedistributeSteps(Exchange):
    """Rows by steps to steps by rows before a temporal half, and back after it; their gradients the other way."""

    name: ClassVar[str] = "redistribute steps"
    axis: ClassVar[str] = "time"
    letter: ClassVar[str] = "t"
    option: ClassVar[str] = "redistribute"

    def stands_before(self, facts: Facts, half: int) -> bool:
        """It comes before a temporal half."""
        return self.sets_apart(facts, half)

    def stands_after(self, facts: Facts, half: int) -> bool:
        """What leaves the temporal half is by steps again, even where the stage ends."""
        return self.sets_apart(facts, half)

    def half_steps(self, facts: Facts, block: int, run: int) -> range:
        """A rank does all steps of the block."""
        return facts.steps(block)

    def half_rows(self, facts: Facts, part: int, run: int) -> slice:
        """It does them for an equal share of the rows."""
        bounds = equal_shares(facts.rows[part], facts.layout.time)
        return slice(bounds[run], bounds[run + 1])

    def takes_part(self, at: RankBlock) -> bool:
        """A rank without steps still does its rows of the steps of all others."""
        return True

    @classmethod
    def refusal(cls, layer: LayerFacts) -> str | None:
        """A weight has no rows that could be dealt out."""
        return "its state is a weight matrix, which has no vertices to deal out" if layer.state == "weight" else None

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """Σ over runs of steps · (rows that other runs do), times what crosses."""
        total = 0
        for (half, block, back), count in crossings(posts).items():
            rows = 0
            # of many parts, most have as many rows as others
            for part, many in Counter(facts.rows).items():
                bounds = equal_shares(part, facts.layout.time)
                for run, steps in enumerate(facts.runs[block]):
                    rows += many * len(steps) * (part - (bounds[run + 1] - bounds[run]))
            total += count * facts.wire_bytes(rows, _width(facts, half, back=back))
        return {"redistribute": total}


def _spreads(facts: Facts, half: int) -> bool:
    """Whether rows by steps become steps by rows before a half."""
    layer = facts.layer_at(half, HalfKind.TEMPORAL)
    return layer is not None and layer.along == RedistributeSteps.option


def _widths(facts: Facts, half: int, *, back: bool) -> list[int]:
    """How wide each value is that crosses before a half."""
    number = facts.halves[half].layer
    if not _spreads(facts, half):
        previous = facts.layers[facts.halves[half - 1].layer]
        return [previous.out_channels]
    layer = facts.layers[number]
    widths = [layer.inside_channels]
    if layer.concat and not (number == 0 and (facts.fixed or back)):
        widths.append(layer.in_channels)
    return widths


def _width(facts: Facts, half: int, *, back: bool) -> int:
    return sum(_widths(facts, half, back=back))
