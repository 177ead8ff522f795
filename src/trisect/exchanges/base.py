"""`Exchange`: what every exchange between two cells has to say and to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from torch import Tensor

from trisect.exchanges.facts import Facts, LayerFacts
from trisect.exchanges.rank_block import RankBlock
from trisect.layout import EXCHANGES
from trisect.nn.halves import HalfKind
from trisect.schedule.action import Action, Letter, Pass, Verb, declare


class Exchange(ABC):
    """One way in which rows, states or their gradients cross ranks. One subclass a file.

    A subclass says where it stands and which actions ranks do for it, and how many bytes these move by formula; the
    ledger is compared with it. What moves them is in `trisect.views`.

    Attributes:
        name, letter: in words, and in the text of an action; without a letter where no action names it.
        axis: the mesh axis that it goes along.
        paired: whether it is between two ranks; otherwise all ranks along the axis take part.
        hands_on: whether it carries the state that a half makes; otherwise what the half reads.
        option: the word by which `layout.spatial` (vertex axis) or `layout.temporal` (time axis) asks for it; empty
            where it is not one of several to choose from.
        moves: what it brings to the segment behind it: the message or the candidates that halves made, the rows, the
            outputs; or rows of the board, which stay where they are.
        hides: whether interior rows are computed while it is on its way; others read all rows of a part at once.
        sums_apart: whether a rank sums up neighbours in a half of its own, between two crossings.
        allows_history: whether chunks may read rows of an earlier epoch where it has not brought new ones.
    """

    name: ClassVar[str]
    axis: ClassVar[str]
    letter: ClassVar[str] = ""
    paired: ClassVar[bool] = False
    hands_on: ClassVar[bool] = False
    option: ClassVar[str] = ""
    moves: ClassVar[Literal["board", "message", "candidates", "rows", "output"]] = "rows"
    hides: ClassVar[bool] = False
    sums_apart: ClassVar[bool] = False
    allows_history: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.letter:
            declare(cls.letter, Letter(cls.name, cls.axis, cls.paired, cls.hands_on))
        words = EXCHANGES["temporal" if cls.axis == "time" else "spatial"] if cls.option else None
        if words is not None and cls.option not in words:
            words.append(cls.option)

    # Where it stands

    @classmethod
    def refusal(cls, layer: LayerFacts) -> str | None:
        """Say why a layer cannot use the exchange; None where it can."""
        return None

    def serves(self, layer: LayerFacts) -> bool:
        """Say whether it was chosen for a layer, among those of its axis."""
        return bool(self.option) and self.option == (layer.along if self.axis == "time" else layer.across)

    def stands_before(self, facts: Facts, half: int) -> bool:
        """Say whether it crosses before a half, between what makes and what reads it."""
        return False

    def returns(self, facts: Facts, half: int) -> bool:
        """Whether gradients cross back before a half; they do not where nothing that crosses is trained."""
        return True

    def stands_after(self, facts: Facts, half: int) -> bool:
        """Say whether it crosses after a half, even where the stage ends."""
        return False

    def sets_apart(self, facts: Facts, half: int) -> bool:
        """Say whether a temporal half is done apart, since its state crosses runs by this exchange."""
        layer = facts.layer_at(half, HalfKind.TEMPORAL)
        return layer is not None and self.axis == "time" and self.serves(layer)

    def needs_board(self, facts: Facts, layer: int) -> bool:
        """Say whether a layer's rows are read across cells, from a board that the exchange fills."""
        return False

    # A temporal half that is set apart

    def half_steps(self, facts: Facts, block: int, run: int) -> range:
        """Give the steps of a block over which a rank does the half."""
        return facts.runs[block][run]

    def half_rows(self, facts: Facts, part: int, run: int) -> slice:
        """Give the rows of its part for which a rank does the half."""
        return slice(0, facts.rows[part])

    def half_chunks(self, facts: Facts, layer: int) -> int:
        """Say in how many chunks of these rows the half is done, one after the other."""
        return 1

    # Its actions

    def takes_part(self, at: RankBlock) -> bool:
        """Say whether a rank takes part in a block; one without steps has no rows."""
        return bool(at.steps)

    def enter_stage(self, at: RankBlock, chunk: int, *, back: bool) -> Iterator[Action]:
        """Give what is done before a stage begins with a chunk or block, forward or backward."""
        yield from ()

    def leave_stage(self, at: RankBlock, chunk: int, *, back: bool) -> Iterator[Action]:
        """Give what is done when a stage has ended with a chunk or block, forward or backward."""
        yield from ()

    def around_inputs(self, at: RankBlock, half: int, *, back: bool) -> Iterator[Action]:
        """Give what is done before the cells that feed a half set apart go forward, or after they went backward."""
        yield from ()

    def around_half(self, at: RankBlock, half: int, *, back: bool) -> Iterator[Action]:
        """Give what is done before a half set apart goes forward, or after it went backward, with all its chunks."""
        yield from ()

    def before_cell(self, at: RankBlock, half: int, chunk: int, *, back: bool) -> Iterator[Action]:
        """Give what is done before a chunk of a half set apart is computed, forward or backward."""
        yield from ()

    def after_cell(self, at: RankBlock, half: int, chunk: int, *, back: bool) -> Iterator[Action]:
        """Give what is done after a chunk of a half set apart was computed, forward or backward."""
        yield from ()

    def end_pass(self, at: RankBlock) -> Iterator[Action]:
        """Give what is done when all cells of an epoch went backward, before the optimiser steps."""
        yield from ()

    def crossing(
        self, verb: Verb, at: RankBlock, half: int, chunk: int, *, back: bool, pass_: Pass | None = None
    ) -> Action:
        """Give the post or the wait of what crosses along the axis before a half."""
        pass_ = (Pass.TRAIN if back else at.pass_) if pass_ is None else pass_
        number, letter = at.number(), self.letter
        return Action(verb, at.stage, chunk, half, block=number, exchange=letter, back=back, pass_=pass_)

    def transfer(
        self,
        verb: Verb,
        at: RankBlock,
        half: int | None,
        chunk: int,
        peer: int,
        *,
        back: bool,
        block: int | None = None,
    ) -> Action:
        """Give the post or the wait of a message to or from one rank; `block` is the reader's."""
        return Action(
            verb,
            at.stage,
            chunk,
            half,
            block=at.number(block),
            exchange=self.letter,
            back=back,
            peer=peer,
            incoming=verb is not Verb.POST,
            pass_=Pass.TRAIN if back else at.pass_,
        )

    # Its bytes

    @abstractmethod
    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """Give the bytes that leave all ranks in a pass, by kind.

        Args:
            posts: every action of a rank that posts this exchange, with the rank.
            fetched: for each step, output rows that the loss reads of other parts.
        """

    # Moving


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
