"""Window: a temporal part that reads the last w frames needs only the w-1 frames before its run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from trisect.exchanges.base import Exchange
from trisect.exchanges.facts import Facts, LayerFacts
from trisect.exchanges.rank_block import RankBlock
from trisect.schedule.action import Action, Verb


class Window(Exchange):
    """One message from each run to each later one that reads its frames, and the gradients of the frames back."""

    name: ClassVar[str] = "window"
    axis: ClassVar[str] = "time"
    letter: ClassVar[str] = "w"
    paired: ClassVar[bool] = True
    option: ClassVar[str] = "halo"

    def around_inputs(self, at: RankBlock, half: int, *, back: bool) -> Iterator[Action]:
        """What a run has for those before it are frames of earlier blocks: they need not wait for its spatial half, and
        their gradients come as late as they were early.
        """
        yield from self._gives(at, half, range(at.run), back=back)

    def around_half(self, at: RankBlock, half: int, *, back: bool) -> Iterator[Action]:
        """One message to each later run that reads own frames, and from each other run whose frames are read."""
        facts, window = at.facts, _window(at.facts, half)
        verb = Verb.POST if back else Verb.WAIT
        gives = self._gives(at, half, range(at.run + 1, facts.layout.time), back=back)
        takes = (
            self.transfer(verb, at, half, 0, at.rank_of_run(other), back=back)
            for other in range(facts.layout.time)
            if other != at.run and facts.read_before(at.block, at.run, other, window)
        )
        yield from (*takes, *gives) if back else (*gives, *takes)

    def _gives(self, at: RankBlock, half: int, others: range, *, back: bool) -> Iterator[Action]:
        verb, window = Verb.WAIT if back else Verb.POST, _window(at.facts, half)
        for other in others:
            if at.facts.read_before(at.block, other, at.run, window):
                yield self.transfer(verb, at, half, 0, at.rank_of_run(other), back=back)

    @classmethod
    def refusal(cls, layer: LayerFacts) -> str | None:
        """Only a window of frames has an end."""
        return None if layer.state == "window" else "it remembers all steps before, not a window of them"

    def volume(self, facts: Facts, posts: Sequence[tuple[int, Action]], fetched: Sequence[int]) -> dict[str, int]:
        """The frames of the part's rows that the reader asks for."""
        total = 0
        for rank, action in posts:
            layer = facts.layers[facts.halves[action.half].layer]
            rows = len(_steps(facts, rank, action)) * facts.rows[rank % facts.parts]
            total += facts.wire_bytes(rows, layer.state_widths[0])
        return {"halo": total}


def _steps(facts: Facts, rank: int, action: Action) -> tuple[int, ...]:
    """Which steps a message has the frames (or their gradients) of."""
    ranks = facts.parts * facts.layout.layer
    own, peer = rank // ranks, (action.peer or 0) // ranks
    reads = action.incoming != action.back
    reader, owner = (own, peer) if reads else (peer, own)
    return facts.read_before(action.block or 0, reader, owner, _window(facts, action.half))


def _window(facts: Facts, half: int) -> int:
    """Give how many frames a step of a half's layer reads, its own included."""
    return facts.layers[facts.layer_of(half)].window
