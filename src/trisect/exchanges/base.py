"""`Exchange`: what every exchange between two cells has to say and to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

from trisect.exchanges.facts import Facts, LayerFacts
from trisect.schedule.action import EXCHANGES, Action


class Exchange(ABC):
    """One way in which rows, states or their gradients cross ranks. One subclass a file.

    A subclass says which layers it fits and how many bytes its actions move by formula, and does the moving: `post`
    lets own rows go (and makes room for those of others), `wait` ends when those of others are here. An exchange
    between two ranks also has `expect`, which makes room for a message before it is waited for.

    Attributes:
        letter: of the exchange in the text of an action.
    """

    letter: ClassVar[str]

    @property
    def axis(self) -> str:
        """The mesh axis that it goes along."""
        return EXCHANGES[self.letter][1]

    @classmethod
    def refusal(cls, layer: LayerFacts) -> str | None:
        """Say why a layer cannot use the exchange; None where it can."""
        return None

    @abstractmethod
    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """Give the bytes that leave all ranks in a pass, by kind.

        Args:
            posts: every action of a rank that posts this exchange, with the rank.
            fetched: for each step, output rows that the loss reads of other parts.
        """

    @abstractmethod
    def post(self, action: Action, port: Any) -> None:
        """Let own rows, or gradients, go."""

    @abstractmethod
    def wait(self, action: Action, port: Any) -> None:
        """Hand what others sent to the cell that reads it."""

    def expect(self, action: Action, port: Any) -> None:
        """Make room for a message of one peer."""
        raise RuntimeError(f"internal error: {action}: an exchange along a whole axis is posted, not expected")


def crossings(posts: Sequence[tuple[int, Action]]) -> dict[tuple[int, int, bool], int]:
    """Count how often each exchange along a whole axis takes place: by (half, block, whether gradients cross)."""
    counts = Counter(
        (rank, action.chunk, (action.first or 0, action.block or 0, action.back)) for rank, action in posts
    )
    total: dict[tuple[int, int, bool], int] = {}
    for (_, _, crossing), count in counts.items():
        total[crossing] = max(total.get(crossing, 0), count)
    return total
