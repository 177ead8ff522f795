"""`RankBlock`: one rank in one block of a pass, for which exchanges say what it does."""

from __future__ import annotations

from dataclasses import dataclass

from trisect.exchanges.facts import Facts
from trisect.schedule.action import Pass


@dataclass(frozen=True)
class RankBlock:
    """Where and when actions are to be done.

    Attributes:
        pass_: the pass forward that the block is gone through in.
    """

    facts: Facts
    rank: int
    block: int
    pass_: Pass

    @property
    def stage(self) -> int:
        """The stage that the rank belongs to."""
        return self.rank // self.facts.parts % self.facts.layout.layer

    @property
    def run(self) -> int:
        """Which run of a block is the rank's."""
        return self.rank // (self.facts.parts * self.facts.layout.layer)

    @property
    def steps(self) -> range:
        """The rank's own steps of the block."""
        return self.facts.runs[self.block][self.run]

    def number(self, block: int | None = None) -> int | None:
        """Give the number of this or another block as actions name it: a static graph has none."""
        return (self.block if block is None else block) if self.facts.timeline else None

    def rank_of_run(self, run: int) -> int:
        """Give the rank of the same part and stage that has another run."""
        return self.rank + (run - self.run) * self.facts.parts * self.facts.layout.layer
