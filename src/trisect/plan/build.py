"""From segments and exchanges to actions: what every rank does in a pass, in order.

A static graph is one block of one step. Its chunks go forward one after the other and backward in exactly the reverse
order. The steps of a timeline are cut into blocks: forward keeps only what came in from outside (the state before each
run, and a stage's input), the last block is gone through with all that backward needs, and every other one is computed
again when backward, in reverse, comes to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from trisect.exchanges.facts import Facts
from trisect.nn.halves import HalfKind
from trisect.plan.segments import Segment, overlaps, segments_of
from trisect.schedule.action import Action, Pass, Side, Verb
from trisect.schedule.schedule import Schedule

# For so many messages of a peer there is room at a time.
AHEAD = 8

# plain: only states and inputs are kept; full: all that backward needs; again: the same once more; outputs: evaluation
Mode = Literal["plain", "full", "again", "outputs"]


def schedule_of(facts: Facts, *, pass_: Pass = Pass.TRAIN) -> Schedule:
    """Give one pass of every rank: an epoch of training, or a pass forward."""
    world = range(facts.layout.world)
    return Schedule(tuple(tuple(expect_early(_Rank(facts, rank, pass_).actions())) for rank in world), facts.layout)


def in_order(actions: Sequence[Action], order: Sequence[int]) -> list[Action]:
    """Give the same actions with the chunks in another order: where chunk k was, chunk order[k] is.

    Chunks differ in their number alone, so that a schedule that is sound stays sound.
    """
    return [
        action if action.verb in _WITHOUT_CHUNK else replace(action, chunk=order[action.chunk]) for action in actions
    ]


_WITHOUT_CHUNK = (Verb.REDUCE, Verb.STEP)


def expect_early(actions: Iterator[Action]) -> list[Action]:
    """Put before each wait for a peer's message, some waits earlier, the action that makes room for it."""
    listed = list(actions)
    waits = [k for k, action in enumerate(listed) if action.verb is Verb.WAIT and action.peer is not None]
    early: dict[int, list[Action]] = {}
    for turn, position in enumerate(waits):
        at = waits[turn - AHEAD] if turn >= AHEAD else 0
        early.setdefault(at, []).append(replace(listed[position], verb=Verb.EXPECT))
    return [step for k, action in enumerate(listed) for step in (*early.get(k, ()), action)]


class _Rank:
    """The actions of one rank."""

    def __init__(self, facts: Facts, rank: int, pass_: Pass) -> None:
        layout = facts.layout
        self.facts, self.layout, self.rank, self.pass_ = facts, layout, rank, pass_
        self.parts = layout.vertex
        self.stage = rank // self.parts % layout.layer
        self.run = rank // (self.parts * layout.layer)
        self.is_last = self.stage == layout.layer - 1
        self.segments = segments_of(facts, self.stage)
        self.sides = (Side.BOUNDARY, Side.INTERIOR) if overlaps(facts, self.stage) else (None,)
        self.last_group = self.segments[-1].group

    def rank_at(self, run: int) -> int:
        return self.rank + (run - self.run) * self.parts * self.layout.layer

    def actions(self) -> Iterator[Action]:
        last = self.facts.blocks - 1
        if self.pass_ is not Pass.TRAIN:
            for block in range(last + 1):
                yield from self.forward(block, 0, "outputs")
            return
        chunks = range(1 if self.facts.timeline else self.layout.chunks)
        for block in range(last + 1):
            for chunk in chunks:
                yield from self.forward(block, chunk, "full" if block == last else "plain")
        for block in reversed(range(last + 1)):
            if block < last:
                yield from self.forward(block, 0, "again")
            for chunk in reversed(chunks):
                yield from self.backward(block, chunk)
        if self.layout.time * self.parts > 1:
            yield Action(Verb.REDUCE, self.stage)
        yield Action(Verb.STEP, self.stage)

    # Forward

    def forward(self, block: int, chunk: int, mode: Mode) -> Iterator[Action]:
        steps = self.facts.runs[block][self.run]
        if self.stage > 0 and steps and mode != "again":
            yield self.boundary(Verb.WAIT, block, chunk, back=False, peer=self.rank - self.parts, incoming=True)
        end = self.end_of_plain(block) if mode == "plain" and self.is_last else self.segments[-1].last
        yield from self.segments_forward(range(len(self.segments)), block, chunk, mode, end)
        if not self.is_last and steps and mode != "again":
            yield self.boundary(Verb.POST, block, chunk, back=False, peer=self.rank + self.parts)

    def end_of_plain(self, block: int) -> int:
        """Where only the states after a block are wanted, give the last half that is needed for them."""
        mine = self.facts.stage_halves(self.stage)
        temporal = [k for k in mine if self.facts.halves[k].kind is HalfKind.TEMPORAL]
        return temporal[-1] if temporal else mine.start - 1

    def segments_forward(
        self, which: range, block: int, chunk: int, mode: Mode, end: int, *, regroup: bool = False
    ) -> Iterator[Action]:
        """Some segments forward; `regroup`: of a group of which nothing was kept."""
        for k in which:
            segment = self.segments[k]
            if end < segment.first <= segment.last:
                return
            after = self.segments[k + 1] if k + 1 in which else None
            if after is not None and end < after.first <= after.last:
                after = None
            verb, pass_ = self.verb_of(segment, mode, regroup)
            arrives = segment.arrives if k > which.start else ""
            if segment.temporal is not None:
                yield from self.temporal(segment, after, block, verb, pass_, mode, regroup, arrives)
                continue
            yield from self.windows_early(k, block, mode, regroup)
            if not self.does(segment, block):
                continue
            # a weight evolves on a rank without steps too, which has no rows to exchange
            crosses = bool(self.facts.runs[block][self.run])
            if arrives and crosses:
                yield self.collective(Verb.WAIT, arrives, segment.first, block, chunk, pass_)
            last = min(segment.last, end)
            for side in self.sides if segment.first <= segment.last else ():
                yield self.cell(verb, segment.first, last, block, chunk, side, pass_)
                leaves = after is not None and after.arrives and after.temporal is None and crosses
                if after is not None and leaves and side is self.sides[0]:
                    yield self.collective(Verb.POST, after.arrives, after.first, block, chunk, pass_)
            if after is not None and after.temporal is not None and after.arrives and crosses:
                yield self.collective(Verb.POST, after.arrives, after.first, block, chunk, pass_)

    def verb_of(self, segment: Segment, mode: Mode, regroup: bool) -> tuple[Verb, Pass]:
        if regroup:
            return Verb.AGAIN, Pass.AGAIN
        if mode == "again":
            return (Verb.AGAIN if segment.group == self.last_group else Verb.FORWARD), Pass.AGAIN
        return Verb.FORWARD, self.pass_

    def does(self, segment: Segment, block: int) -> bool:
        """Say whether the rank has work in a segment: steps of its own, or a weight that evolves everywhere."""
        if self.facts.runs[block][self.run]:
            return True
        return any(
            self.facts.halves[k].kind is HalfKind.TEMPORAL
            and self.facts.layers[self.facts.halves[k].layer].state == "weight"
            and self.facts.layers[self.facts.halves[k].layer].along == "none"
            for k in range(segment.first, segment.last + 1)
        )

    def temporal(
        self,
        segment: Segment,
        after: Segment | None,
        block: int,
        verb: Verb,
        pass_: Pass,
        mode: Mode,
        regroup: bool,
        arrives: str,
    ) -> Iterator[Action]:
        """A temporal half whose state crosses ranks, chunk by chunk, each after the state that it begins with."""
        layer = self.facts.layers[segment.temporal if segment.temporal is not None else -1]
        steps, moves = self.facts.runs[block][self.run], mode != "again" and not regroup
        if layer.along == "redistribute":
            if not steps and arrives:
                yield self.collective(Verb.POST, arrives, segment.first, block, 0, pass_)
            if arrives:
                yield self.collective(Verb.WAIT, arrives, segment.first, block, 0, pass_)
            yield self.cell(verb, segment.first, segment.last, block, 0, None, pass_)
            if after is not None:
                yield self.collective(Verb.POST, after.arrives, after.first, block, 0, pass_)
                if not steps and after.temporal is None:
                    yield self.collective(Verb.WAIT, after.arrives, after.first, block, 0, pass_)
            return
        if not steps:
            if layer.along == "window" and moves:
                yield from self.windows(segment, block, late=True, back=False)
            return
        if arrives:
            yield self.collective(Verb.WAIT, arrives, segment.first, block, 0, pass_)
        if layer.along == "window" and moves:
            yield from self.windows(segment, block, late=True, back=False)
        before, successor = self.facts.before(block, self.run), self.facts.after(block, self.run)
        for chunk in range(segment.chunks):
            if layer.along == "carry" and moves and before is not None and before[1] != self.run:
                yield self.carry(Verb.WAIT, segment, block, chunk, before[1], back=False, incoming=True)
            yield self.cell(verb, segment.first, segment.last, block, chunk, None, pass_)
            if layer.along == "carry" and moves and successor is not None and successor[1] != self.run:
                yield self.carry(Verb.POST, segment, successor[0], chunk, successor[1], back=False)
        if after is not None and after.arrives:
            yield self.collective(Verb.POST, after.arrives, after.first, block, 0, pass_)

    def windows_early(self, k: int, block: int, mode: Mode, regroup: bool) -> Iterator[Action]:
        """Frames of earlier blocks that earlier runs read need not wait for this block's spatial half."""
        if mode == "again" or regroup or k + 1 >= len(self.segments):
            return
        after = self.segments[k + 1]
        if after.temporal is not None and self.facts.layers[after.temporal].along == "window":
            yield from self.windows(after, block, late=False, back=False)

    def windows(self, segment: Segment, block: int, *, late: bool, back: bool) -> Iterator[Action]:
        """Frames that runs read of the steps before them; one message from each run to each other in a block.

        What a run has for those before it are frames of earlier blocks: they need not wait for its spatial half.
        """
        window = self.facts.layers[segment.temporal if segment.temporal is not None else -1].window
        others = [other for other in range(self.layout.time) if other != self.run]
        gives = [
            self.carry(Verb.WAIT if back else Verb.POST, segment, block, 0, other, back=back, incoming=back, letter="w")
            for other in others
            if (other > self.run) == late and self.facts.read_before(block, other, self.run, window)
        ]
        takes = [
            self.carry(
                Verb.POST if back else Verb.WAIT, segment, block, 0, other, back=back, incoming=not back, letter="w"
            )
            for other in others
            if late and self.facts.read_before(block, self.run, other, window)
        ]
        yield from takes + gives if back else gives + takes

    # Backward

    def backward(self, block: int, chunk: int) -> Iterator[Action]:
        steps = self.facts.runs[block][self.run]
        if not self.is_last and steps:
            yield self.boundary(Verb.WAIT, block, chunk, back=True, peer=self.rank + self.parts, incoming=True)
        for group in reversed(range(self.last_group + 1)):
            which = [k for k, segment in enumerate(self.segments) if segment.group == group]
            if group < self.last_group:
                span = range(which[0], which[-1] + 1)
                end = self.segments[which[-1]].last
                yield from self.segments_forward(span, block, chunk, "full", end, regroup=True)
            for k in reversed(which):
                yield from self.segment_backward(k, block, chunk)
        if self.stage > 0 and steps:
            yield self.boundary(Verb.POST, block, chunk, back=True, peer=self.rank - self.parts)

    def segment_backward(self, k: int, block: int, chunk: int) -> Iterator[Action]:
        segment = self.segments[k]
        after = self.segments[k + 1] if k + 1 < len(self.segments) else None
        letter = "" if k == 0 else segment.arrives
        if segment.temporal is not None:
            yield from self.temporal_backward(segment, after, block, letter)
            return
        crosses = bool(self.facts.runs[block][self.run])
        if not self.does(segment, block):
            yield from self.windows_late(after, block)
            return
        if after is not None and after.arrives and crosses:
            yield self.collective(Verb.WAIT, after.arrives, after.first, block, chunk, Pass.TRAIN, back=True)
        if segment.last < segment.first:
            yield self.collective(Verb.POST, letter, segment.first, block, chunk, Pass.TRAIN, back=True)
            return
        for side in self.sides:
            yield self.cell(Verb.BACKWARD, segment.first, segment.last, block, chunk, side, Pass.TRAIN)
            if letter and crosses and side is self.sides[0]:
                yield self.collective(Verb.POST, letter, segment.first, block, chunk, Pass.TRAIN, back=True)
        yield from self.windows_late(after, block)

    def windows_late(self, after: Segment | None, block: int) -> Iterator[Action]:
        """Gradients of frames of earlier blocks that earlier runs read: as late as those frames were early."""
        following = None if after is None else after.temporal
        if after is not None and following is not None and self.facts.layers[following].along == "window":
            yield from self.windows(after, block, late=False, back=True)

    def temporal_backward(self, segment: Segment, after: Segment | None, block: int, letter: str) -> Iterator[Action]:
        layer = self.facts.layers[segment.temporal if segment.temporal is not None else -1]
        steps = self.facts.runs[block][self.run]
        if layer.along == "redistribute":
            if after is not None:
                if not steps and after.temporal is None:
                    yield self.collective(Verb.POST, after.arrives, after.first, block, 0, Pass.TRAIN, back=True)
                yield self.collective(Verb.WAIT, after.arrives, after.first, block, 0, Pass.TRAIN, back=True)
            yield self.cell(Verb.BACKWARD, segment.first, segment.last, block, 0, None, Pass.TRAIN)
            if letter:
                yield self.collective(Verb.POST, letter, segment.first, block, 0, Pass.TRAIN, back=True)
                if not steps:
                    yield self.collective(Verb.WAIT, letter, segment.first, block, 0, Pass.TRAIN, back=True)
            return
        if not steps:
            if layer.along == "window":
                yield from self.windows(segment, block, late=True, back=True)
            return
        if after is not None and after.arrives:
            yield self.collective(Verb.WAIT, after.arrives, after.first, block, 0, Pass.TRAIN, back=True)
        before, successor = self.facts.before(block, self.run), self.facts.after(block, self.run)
        for chunk in reversed(range(segment.chunks)):
            if layer.along == "carry" and successor is not None and successor[1] != self.run:
                yield self.carry(Verb.WAIT, segment, block, chunk, successor[1], back=True, incoming=True)
            yield self.cell(Verb.BACKWARD, segment.first, segment.last, block, chunk, None, Pass.TRAIN)
            if layer.along == "carry" and before is not None and before[1] != self.run:
                yield self.carry(Verb.POST, segment, before[0], chunk, before[1], back=True)
        if layer.along == "window":
            yield from self.windows(segment, block, late=True, back=True)
        if letter:
            yield self.collective(Verb.POST, letter, segment.first, block, 0, Pass.TRAIN, back=True)

    # Actions

    def block_of(self, block: int) -> int | None:
        return block if self.facts.timeline else None

    def cell(self, verb: Verb, first: int, last: int, block: int, chunk: int, side: Side | None, pass_: Pass) -> Action:
        mine = self.facts.stage_halves(self.stage)
        whole = first == mine.start and last == mine.stop - 1
        return Action(
            verb,
            self.stage,
            chunk,
            None if whole else first,
            None if whole else last,
            side,
            self.block_of(block),
            pass_=pass_,
        )

    def collective(
        self, verb: Verb, letter: str, first: int, block: int, chunk: int, pass_: Pass, *, back: bool = False
    ) -> Action:
        return Action(
            verb, self.stage, chunk, first, block=self.block_of(block), exchange=letter, back=back, pass_=pass_
        )

    def carry(
        self,
        verb: Verb,
        segment: Segment,
        block: int,
        chunk: int,
        run: int,
        *,
        back: bool,
        incoming: bool = False,
        letter: str = "c",
    ) -> Action:
        return Action(
            verb,
            self.stage,
            chunk,
            segment.first,
            block=self.block_of(block),
            exchange=letter,
            back=back,
            peer=self.rank_at(run),
            incoming=incoming,
            pass_=Pass.TRAIN if back else self.pass_,
        )

    def boundary(self, verb: Verb, block: int, chunk: int, *, back: bool, peer: int, incoming: bool = False) -> Action:
        return Action(
            verb,
            self.stage,
            chunk,
            block=self.block_of(block),
            exchange="b",
            back=back,
            peer=peer,
            incoming=incoming,
            pass_=Pass.TRAIN if back else self.pass_,
        )
