"""Reduce: ranks that hold the same layers add up the gradients of their parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from trisect.exchanges.base import Exchange
from trisect.exchanges.facts import Facts
from trisect.exchanges.rank_block import RankBlock
from trisect.schedule.action import Action, Verb


class Reduce(Exchange):
    """The parts and runs of a stage sum their gradients, all parameters in one bucket, before the optimiser steps."""

    name: ClassVar[str] = "reduce"
    # all ranks of a stage take part, along the vertex and the time axis
    axis: ClassVar[str] = "weights"

    def end_pass(self, at: RankBlock) -> Iterator[Action]:
        """Where several ranks hold the same layers, they add up before the optimiser steps."""
        if at.facts.layout.time * at.facts.parts > 1:
            yield Action(Verb.REDUCE, at.stage)

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """As a ring moves them: each rank sends its bucket twice, less its own share."""
        ranks, weights = facts.layout.time * facts.layout.vertex, stage_bytes(facts)
        return {"reduce": sum(2 * weights[action.stage] * (ranks - 1) // ranks for _, action in posts)}


def stage_bytes(facts: Facts) -> list[int]:
    """Give the bytes of the parameters of each stage; head and decoder belong to the last."""
    counts = [
        sum(layer.parameters for layer in facts.layers[first:last])
        for first, last in zip(facts.bounds, facts.bounds[1:], strict=False)
    ]
    counts[-1] += (facts.head or 0) + facts.extra
    return [count * facts.dtype.itemsize for count in counts]
