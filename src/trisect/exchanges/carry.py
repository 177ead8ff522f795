"""Carry: the recurrent state goes from the rank of the earlier steps to the next, vertex chunk by vertex chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from trisect.exchanges.base import Exchange
from trisect.exchanges.facts import Facts, equal_shares
from trisect.exchanges.rank_block import RankBlock
from trisect.schedule.action import Action, Verb


class Carry(Exchange):
    """Exact, since vertices are independent in the recurrent part; ranks work as a pipeline along time."""

    name: ClassVar[str] = "carry"
    axis: ClassVar[str] = "time"
    letter: ClassVar[str] = "c"
    paired: ClassVar[bool] = True
    hands_on: ClassVar[bool] = True
    option: ClassVar[str] = "carry"

    def half_chunks(self, facts: Facts, layer: int) -> int:
        """The more chunks, the shorter a run waits for the one before it; a weight has no rows to cut."""
        return 1 if facts.layers[layer].state == "weight" else facts.carry_chunks

    def before_cell(self, at: RankBlock, half: int, chunk: int, *, back: bool) -> Iterator[Action]:
        """Wait for the state that a chunk begins with, or for the gradient of the one that it ended with."""
        other = _other_run(at, later=back)
        if other is not None:
            yield self.transfer(Verb.WAIT, at, half, chunk, at.rank_of_run(other[1]), back=back)

    def after_cell(self, at: RankBlock, half: int, chunk: int, *, back: bool) -> Iterator[Action]:
        """Post the state that a chunk ended with, or the gradient of the one that it began with."""
        other = _other_run(at, later=not back)
        if other is not None:
            yield self.transfer(Verb.POST, at, half, chunk, at.rank_of_run(other[1]), back=back, block=other[0])

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """A state of the chunk's rows a message, forward and back."""
        total = 0
        for rank, action in posts:
            layer = facts.halves[action.half].layer
            rows = self._chunk(facts, layer, rank % facts.parts, action.chunk)
            count, width = facts.layers[layer].state_shape(rows.stop - rows.start)
            total += count * width * facts.dtype.itemsize
        return {"carry": total}

    def _chunk(self, facts: Facts, layer: int, part: int, chunk: int) -> slice:
        bounds = equal_shares(facts.rows[part], self.half_chunks(facts, layer))
        return slice(bounds[chunk], bounds[chunk + 1])


def _other_run(at: RankBlock, *, later: bool) -> tuple[int, int] | None:
    """Give (block, run) of the run before or after this one, where another rank has it."""
    other = at.facts.after(at.block, at.run) if later else at.facts.before(at.block, at.run)
    return None if other is None or other[1] == at.run else other
