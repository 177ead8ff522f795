"""Boundary: what one stage gives the next crosses between two ranks, and its gradient back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from trisect.exchanges.base import Exchange
from trisect.exchanges.facts import Facts
from trisect.exchanges.rank_block import RankBlock
from trisect.schedule.action import Action, Verb


class Boundary(Exchange):
    """The rows of a chunk, or of the steps of a run, and the shared inputs that later stages read, side by side."""

    name: ClassVar[str] = "boundary"
    axis: ClassVar[str] = "layer"
    letter: ClassVar[str] = "b"
    paired: ClassVar[bool] = True

    def enter_stage(self, at: RankBlock, chunk: int, *, back: bool) -> Iterator[Action]:
        """Wait for what the stage before gives, or for the gradients of what the one after was given."""
        peer = _neighbour(at, 1 if back else -1)
        if peer is not None and at.steps:
            yield self.transfer(Verb.WAIT, at, None, chunk, peer, back=back)

    def leave_stage(self, at: RankBlock, chunk: int, *, back: bool) -> Iterator[Action]:
        """Post what the stage after reads, or the gradients of what the one before gave."""
        peer = _neighbour(at, -1 if back else 1)
        if peer is not None and at.steps:
            yield self.transfer(Verb.POST, at, None, chunk, peer, back=back)

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """N·H of the boundary, forward and back, once for every step; as much again for each shared input."""
        total = {"activations": 0, "gradients": 0}
        for rank, action in posts:
            rows = _rows(facts, rank, action)
            width = sum(facts.boundary_widths(action.stage if action.back else action.stage + 1))
            total["gradients" if action.back else "activations"] += facts.wire_bytes(rows, width)
        return total


def _neighbour(at: RankBlock, direction: int) -> int | None:
    """Give the rank of the stage before (-1) or after (1); None where there is none."""
    return at.rank + direction * at.facts.parts if 0 <= at.stage + direction < at.facts.layout.layer else None


def _rows(facts: Facts, rank: int, action: Action) -> int:
    """How many rows of a part a message has: a chunk's of one step, or all of the own steps of a block."""
    part, run = rank % facts.parts, rank // (facts.parts * facts.layout.layer)
    if facts.timeline:
        return len(facts.runs[action.block or 0][run]) * facts.rows[part]
    bounds = facts.chunk_rows[part]
    if len(bounds) == 2 or facts.layout.chunks == 1:
        return facts.rows[part]
    return bounds[action.chunk + 1] - bounds[action.chunk]
