"""`Schedule`: the actions of every rank, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.schedule.action import Action, Kind

_ONE = Layout()


@dataclass(frozen=True)
class Schedule:
    """One epoch of work: ranks[r] is what rank r does, in order. Built before anything runs.

    `layout` gives the mesh: rank = (time · layers + layer) · ways + way, as in `Layout`.
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
        """How many ranks there are."""
        return len(self.ranks)

    def group(self, rank: int, action: Action) -> tuple[int, ...]:
        """The ranks that take part in a collective action of `rank` (or in a posted one), ascending."""
        layers, ways = self.layout.layer, self.layout.vertex
        way, stage, moment = rank % ways, rank // ways % layers, rank // (ways * layers)
        times = range(self.layout.time) if action.kind in (Kind.REDISTRIBUTE, Kind.REDUCE) else (moment,)
        others = range(ways) if action.kind in (Kind.POST, Kind.HALO, Kind.REDUCE) else (way,)
        return tuple((t * layers + stage) * ways + w for t in times for w in others)

    def __iter__(self) -> Iterator[tuple[Action, ...]]:
        return iter(self.ranks)

    def __str__(self) -> str:
        return "\n".join(" ".join(str(action) for action in actions) for actions in self.ranks)

    @classmethod
    def parse(cls, text: str, layout: Layout | None = None) -> Schedule:
        """The schedule that prints as `text`: a line a rank. Without a layout the ranks are stages of a pipeline."""
        ranks = tuple(tuple(Action.parse(word) for word in line.split()) for line in text.strip().splitlines())
        return cls(ranks, Layout(layer=len(ranks)) if layout is None else layout)
