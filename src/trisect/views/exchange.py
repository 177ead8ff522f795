"""`Exchange`: what planning asks of an exchange: where it fits, what ranks post and wait for, and its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from trisect.layout import EXCHANGES
from trisect.schedule.action import Action, Letter, Verb, declare

if TYPE_CHECKING:
    from trisect.views.plan import Plan
    from trisect.views.trace import Call, LayerTrace

# All exchanges by their letter, in the order in which `views.catalogue` imports them.
LETTERS: dict[str, type[Exchange]] = {}


class Work(NamedTuple):
    """Some work of a layer, between two crossings.

    Attributes:
        part: "before" or "behind" a sum over neighbours, "ready" behind a sum that is kept, "sum" of whole columns,
            "recur", "top", "local" or "loss".
        share: of the part that is done.
        side: "interior" or "boundary" where those rows alone are computed; empty: all.
    """

    layer: int
    part: str
    share: float = 1.0
    side: str = ""


class Crossing(NamedTuple):
    """A post or a wait of a verb, on one rank.

    Attributes:
        width: how many channels of a row cross.
        peer: the other rank where it is between two.
        chunk: of rows, where a state crosses chunk by chunk.
        block: the one that reads what crosses, where it is another.
    """

    verb: Verb
    width: int = 0
    peer: int | None = None
    chunk: int | None = None
    block: int | None = None


def crossing(width: int) -> Iterator[Crossing]:
    """Yield the post and the wait of rows that cross a whole axis."""
    yield from (Crossing(Verb.POST, width), Crossing(Verb.WAIT, width))


@dataclass(frozen=True)
class Place:
    """One rank in one cell of a pass.

    Attributes:
        layer: whose verb it is.
        again: whether the cell was gone through before, so that states are known.
        ends: whether the pass ends behind the verb, of which the state alone is wanted.
    """

    plan: Plan
    rank: int
    block: int = 0
    layer: int = 0
    again: bool = False
    ends: bool = False

    @property
    def part(self) -> int:
        """Index of the rank along the vertex axis."""
        return self.rank % self.plan.parts

    @property
    def stage(self) -> int:
        """Index of the rank along the layer axis."""
        return self.rank // self.plan.parts % self.plan.layout.layer

    @property
    def run(self) -> int:
        """Index of the rank along the time axis."""
        return self.rank // (self.plan.parts * self.plan.layout.layer)

    @property
    def steps(self) -> range:
        """Own steps of the block."""
        return self.plan.runs[self.block][self.run]

    @property
    def share(self) -> float:
        """Share of the layer's work that belongs to each of its sums over neighbours."""
        return 1.0 / max(1, len(self.plan.reads(self.layer)))

    def trained(self, call: Call) -> bool:
        """Whether a gradient of what crosses is wanted."""
        return call.trained or self.plan.reads_trained(self.layer)

    def rank_of_run(self, run: int) -> int:
        """Return the rank of the same part and stage that has another run."""
        return self.rank + (run - self.run) * self.plan.parts * self.plan.layout.layer


class Exchange:
    """One way in which rows, states or their gradients cross ranks. One subclass a file.

    Attributes:
        name, letter: in words, and in the text of an action; without a letter where no action names it.
        axis: the mesh axis that it goes along.
        paired: whether it is between two ranks; otherwise all ranks along the axis take part.
        option: the word by which `layout.spatial` (vertex axis) or `layout.temporal` (time axis) asks for it; empty
            where it is not one of several to choose from.
        allows_history: whether chunks may read rows of an earlier epoch where it has not brought new ones.
        by_columns: whether each rank sums up whole columns, so that rows are dealt out equally.
    """

    name: ClassVar[str] = ""
    letter: ClassVar[str] = ""
    axis: ClassVar[str] = "vertex"
    paired: ClassVar[bool] = False
    option: ClassVar[str] = ""
    allows_history: ClassVar[bool] = False
    by_columns: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "letter" in cls.__dict__:
            declare(cls.letter, Letter(cls.name, cls.axis, cls.paired))
            LETTERS[cls.letter] = cls
        words = EXCHANGES["temporal" if cls.axis == "time" else "spatial"] if "option" in cls.__dict__ else None
        if words is not None and cls.option not in words:
            words.append(cls.option)

    @classmethod
    def refusal(cls, layer: LayerTrace) -> str | None:
        """Return why a layer cannot use the exchange; None where it can."""
        return None

    @classmethod
    def expand(cls, at: Place, call: Call, *, back: bool) -> Iterator[Crossing | Work]:
        """Yield what a rank posts, waits for and computes in a use of the exchange, in order."""
        if back:
            yield Work(at.layer, "behind", at.share)
        if not back or at.trained(call):
            yield from crossing(call.width)
        if not back:
            yield Work(at.layer, "behind", at.share)

    @classmethod
    def bytes_of(cls, at: Place, action: Action, fetched: Sequence[int]) -> tuple[str, float]:
        """Return the kind and the bytes of a post: those of its message, or those that leave all ranks of its group.

        Args:
            fetched: for each step, output rows that the loss reads of other parts.
        """
        raise NotImplementedError
