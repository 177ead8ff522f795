"""Summary: all parts give their candidates for what a weight reads of a snapshot (EvolveGCN-H)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from trisect.exchanges.base import Exchange, crossings
from trisect.exchanges.facts import Facts
from trisect.nn.halves import HalfKind
from trisect.schedule.action import Action


class Summary(Exchange):
    """Every part evolves the same weights and has its own share of their gradient; candidates' gradients go back to
    their owners. Exact on the wire, since all parts must evolve the same weights.
    """

    name: ClassVar[str] = "summary"
    axis: ClassVar[str] = "vertex"
    letter: ClassVar[str] = "m"
    moves = "candidates"

    def stands_before(self, facts: Facts, half: int) -> bool:
        """It comes before a weight evolves that reads a summary of all vertices."""
        layer = facts.layer_at(half, HalfKind.TEMPORAL)
        return layer is not None and layer.summarises and facts.parts > 1

    def returns(self, facts: Facts, half: int) -> bool:
        """Gradients cross where the rows are trained."""
        return facts.reads_trained(facts.layer_of(half))

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """Each part's candidates to all others, of each step."""
        total = 0
        for (half, block, _), count in crossings(posts).items():
            layer = facts.halves[half].layer
            # features that are the same in all steps are looked at once by every run
            once = layer == 0 and facts.fixed
            steps = sum(1 for run in facts.runs[block] if run) if once else len(facts.steps(block))
            rows = sum(_candidates(facts, layer)) * (facts.parts - 1) * steps
            total += count * rows * facts.layers[layer].in_channels * facts.dtype.itemsize
        return {"summary": total}


def _candidates(facts: Facts, layer: int) -> list[int]:
    return [min(rows, facts.layers[layer].out_channels) for rows in facts.rows]
