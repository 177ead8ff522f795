"""`Schedule`: the actions of every rank, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.schedule.action import EXCHANGES, Action, Verb

_ONE = Layout()


@dataclass(frozen=True)
class Schedule:
    """One pass of work: ranks[r] is what rank r does, in order. It is built before anything runs.

    `layout` gives the mesh: rank = (run · layers + stage) · parts + part, as in `Layout`.
    """

    ranks: tuple[tuple[Action, ...], ...]
    layout: Layout = _ONE

    def __post_init__(self) -> None:
        if len(self.ranks) != self.layout.world:
            raise LayoutError(
                f"the schedule has {len(self.ranks)} ranks and its layout {self.layout.world}; they must be equal"
            )

    @property
    def world(self) -> int:
        """How many ranks the schedule is for."""
        return len(self.ranks)

    def group(self, rank: int, action: Action) -> tuple[int, ...]:
        """Give the ranks that take part in a collective action of `rank`, ascending."""
        layers, parts = self.layout.layer, self.layout.vertex
        part, stage, run = rank % parts, rank // parts % layers, rank // (parts * layers)
        axis = "" if action.exchange is None else EXCHANGES[action.exchange].axis
        everyone = action.verb is Verb.REDUCE
        runs = range(self.layout.time) if everyone or axis == "time" else (run,)
        others = range(parts) if everyone or axis == "vertex" else (part,)
        return tuple((t * layers + stage) * parts + p for t in runs for p in others)

    def __iter__(self) -> Iterator[tuple[Action, ...]]:
        return iter(self.ranks)

    def __str__(self) -> str:
        return "\n".join(" ".join(str(action) for action in actions) for actions in self.ranks)

    @classmethod
    def parse(cls, text: str, layout: Layout | None = None) -> Schedule:
        """Give the schedule that prints as `text`: a line a rank. Without a layout the ranks are stages."""
        ranks = tuple(tuple(Action.parse(word) for word in line.split()) for line in text.strip().splitlines())
        return cls(ranks, Layout(layer=len(ranks)) if layout is None else layout)
