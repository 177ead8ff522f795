"""Redistribute by rows: parts exchange rows for feature columns, sum over neighbours with the whole matrix, and back.

A layer whose neighbours' part is a sum does its row work on an equal share of the rows. An all-to-all turns rows into
columns: each rank then has all rows of its share of the features, sums them up with the whole matrix, and a second
all-to-all turns the sums back. There is no halo, no partitioner, and the balance is perfect; 2·N·M·(P-1)/P elements
cross in a layer and pass, whatever the graph and almost whatever P, where a halo grows with P.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, product
from typing import ClassVar

from trisect.exchanges.base import Exchange, crossings
from trisect.exchanges.facts import Facts, LayerFacts, equal_shares
from trisect.nn.halves import HalfKind
from trisect.schedule.action import Action


class RedistributeRows(Exchange):
    """Rows to columns before the sum over neighbours, columns to rows after it; gradients the other way."""

    name: ClassVar[str] = "redistribute rows"
    axis: ClassVar[str] = "vertex"
    letter: ClassVar[str] = "r"
    option: ClassVar[str] = "redistribute"
    sums_apart: ClassVar[bool] = True
    moves = "message"

    def stands_before(self, facts: Facts, half: int) -> bool:
        """Rows turn into columns before the half that sums them up, and back before the combine."""
        layer = facts.layer_at(half, HalfKind.AGGREGATE) or facts.layer_at(half, HalfKind.COMBINE)
        return layer is not None and self.serves(layer) and not facts.halves[half].aggregated

    @classmethod
    def refusal(cls, layer: LayerFacts) -> str | None:
        """Attention and the like weigh neighbours by whole rows."""
        return None if layer.collects else "it does more with its neighbours' rows than sum them up"

    def returns(self, facts: Facts, half: int) -> bool:
        """Gradients cross where the message is made with parameters, or of rows that are trained."""
        layer = facts.layer_of(half)
        return facts.layers[layer].multiplies or facts.reads_trained(layer)

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """N·M·(P-1)/P elements each time: each part sends all but its own share of its rows' columns."""
        total = sum(
            count * len(facts.steps(block)) * crossing_bytes(facts, facts.halves[half].layer)
            for (half, block, _), count in crossings(posts).items()
        )
        return {"redistribute": total}


def crossing_bytes(facts: Facts, layer: int) -> int:
    """Bytes that leave all parts when the rows of one step turn into columns; as many when they turn back."""
    bounds = equal_shares(facts.layers[layer].message_channels, facts.parts)
    widths = [high - low for low, high in pairwise(bounds)]
    # of many parts, most have as many rows and columns as others
    every = product(Counter(facts.rows).items(), Counter(widths).items())
    total = sum(many * times * facts.wire_bytes(rows, width) for (rows, many), (width, times) in every)
    kept = Counter(zip(facts.rows, widths, strict=True))
    return total - sum(times * facts.wire_bytes(rows, width) for (rows, width), times in kept.items())
