"""`Exchange`: what every exchange between two cells has to say and to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from torch import Tensor

from trisect.exchanges.facts import Facts, LayerFacts
from trisect.exchanges.port import Port
from trisect.schedule.action import EXCHANGES, Action

T = TypeVar("T")


class Exchange(ABC, Generic[T]):
    """One way in which rows, states or their gradients cross ranks. One subclass a file.

    A subclass says which layers it fits and how many bytes its actions move by formula, and does the moving: `post`
    lets own rows go, `wait` hands what others sent to the cell that reads it. Between the two the engine keeps what
    `post` gave, of type `T`. An exchange between two ranks makes room for a message in `expect`, and the engine keeps
    what that gave.

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

    def needs_board(self, facts: Facts, layer: int) -> bool:
        """Say whether a layer's rows are read across cells, from a board that the exchange fills."""
        return False

    def begin(self, port: Port) -> None:
        """A pass begins."""

    def turn(self, port: Port) -> None:
        """All cells have gone forward, and backward begins."""

    def end(self, port: Port) -> None:
        """A pass ends."""

    @abstractmethod
    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """Give the bytes that leave all ranks in a pass, by kind.

        Args:
            posts: every action of a rank that posts this exchange, with the rank.
            fetched: for each step, output rows that the loss reads of other parts.
        """

    @abstractmethod
    def post(self, action: Action, port: Port) -> T | None:
        """Let own rows, or gradients, go."""

    @abstractmethod
    def wait(self, action: Action, port: Port, posted: T) -> None:
        """Hand what others sent to the cell that reads it; `posted` is what `post`, or `expect`, gave."""

    def expect(self, action: Action, port: Port) -> T:
        """Make room for a message of one peer."""
        raise RuntimeError(f"internal error: {action}: an exchange along a whole axis is posted, not expected")


def made(rows: Tensor | None, action: Action) -> Tensor:
    """Give the rows that a transfer sends, which its cell must have made."""
    if rows is None:
        raise RuntimeError(f"internal error: {action} ran before the cell that makes its rows; the schedule is wrong")
    return rows


def crossings(posts: Sequence[tuple[int, Action]]) -> dict[tuple[int, int, bool], int]:
    """Count how often each exchange along a whole axis takes place: by (half, block, whether gradients cross)."""
    counts = Counter(
        (rank, action.chunk, (action.first or 0, action.block or 0, action.back)) for rank, action in posts
    )
    total: dict[tuple[int, int, bool], int] = {}
    for (_, _, crossing), count in counts.items():
        total[crossing] = max(total.get(crossing, 0), count)
    return total
