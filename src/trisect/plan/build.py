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

from trisect.exchanges.base import Exchange
from trisect.exchanges.catalogue import CATALOGUE, LETTERS
from trisect.exchanges.facts import NONE, Facts
from trisect.exchanges.rank_block import RankBlock
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
    return ChunkOrders(actions).in_order(order)


class ChunkOrders:
    """The actions of a rank, to be given with the chunks in an order that changes from epoch to epoch.

    All orders are made of the same actions, since what is done for one chunk is done for every other.

    Attributes:
        actions: as they were given, chunks in ascending order.
    """

    def __init__(self, actions: Sequence[Action]) -> None:
        self.actions = actions
        by_chunk: dict[Action, dict[int, Action]] = {}
        self._turns: list[tuple[Action, dict[int, Action] | None]] = []
        for action in actions:
            if action.verb in _WITHOUT_CHUNK:
                self._turns.append((action, None))
                continue
            like = by_chunk.setdefault(replace(action, chunk=0), {})
            like[action.chunk] = action
            self._turns.append((action, like))

    def in_order(self, order: Sequence[int]) -> list[Action]:
        """Give the actions with chunk order[k] where chunk k was."""
        return [action if like is None else like[order[action.chunk]] for action, like in self._turns]


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
    """Writes down the actions of one rank in one pass."""

    def __init__(self, facts: Facts, rank: int, pass_: Pass) -> None:
        self.facts, self.rank, self.pass_ = facts, rank, pass_
        self.stage = self.at(0).stage
        self.is_last = self.stage == facts.layout.layer - 1
        self.segments = segments_of(facts, self.stage)
        self.sides = (Side.BOUNDARY, Side.INTERIOR) if overlaps(facts, self.stage) else (None,)
        self.last_group = self.segments[-1].group

    def at(self, block: int) -> RankBlock:
        return RankBlock(self.facts, self.rank, block, self.pass_)

    def actions(self) -> Iterator[Action]:
        last = self.facts.blocks - 1
        if self.pass_ is not Pass.TRAIN:
            for block in range(last + 1):
                yield from self.forward(self.at(block), 0, "outputs")
            return
        chunks = range(1 if self.facts.timeline else self.facts.layout.chunks)
        for block in range(last + 1):
            for chunk in chunks:
                yield from self.forward(self.at(block), chunk, "full" if block == last else "plain")
        for block in reversed(range(last + 1)):
            if block < last:
                yield from self.forward(self.at(block), 0, "again")
            for chunk in reversed(chunks):
                yield from self.backward(self.at(block), chunk)
        for exchange in CATALOGUE:
            yield from exchange.end_pass(self.at(last))
        yield Action(Verb.STEP, self.stage)

    # Forward

    def forward(self, at: RankBlock, chunk: int, mode: Mode) -> Iterator[Action]:
        for exchange in CATALOGUE if mode != "again" else ():
            yield from exchange.enter_stage(at, chunk, back=False)
        end = self.end_of_plain() if mode == "plain" and self.is_last else self.segments[-1].last
        yield from self.segments_forward(range(len(self.segments)), at, chunk, mode, end)
        for exchange in CATALOGUE if mode != "again" else ():
            yield from exchange.leave_stage(at, chunk, back=False)

    def end_of_plain(self) -> int:
        """Where only the states after a block are wanted, give the last half that is needed for them."""
        mine = self.facts.stage_halves(self.stage)
        temporal = [k for k in mine if self.facts.halves[k].kind is HalfKind.TEMPORAL]
        return temporal[-1] if temporal else mine.start - 1

    def segments_forward(
        self, which: range, at: RankBlock, chunk: int, mode: Mode, end: int, *, regroup: bool = False
    ) -> Iterator[Action]:
        """Some segments up to the half `end`; `regroup`: of a group of which nothing was kept."""
        # states that crossed once are kept, and do not cross again
        first_time = mode != "again" and not regroup
        for k in which:
            segment = self.segments[k]
            if segment.begins_after(end):
                return
            before = self.segments[k - 1] if k > which.start else None
            after = self.segments[k + 1] if k + 1 in which else None
            if after is not None and after.begins_after(end):
                after = None
            verb, pass_ = self.verb_of(segment, mode, regroup)
            does = self.does(segment, at)
            if first_time:
                yield from self.around_inputs(k, at, back=False)
            if does and before is not None:
                yield from self.arrive(segment, at, chunk, pass_, back=False)
            if segment.apart and first_time:
                yield from LETTERS[segment.apart].around_half(at, segment.first, back=False)
            cells = self.cells(segment, at, chunk, verb, pass_, end, moves=first_time) if does else ([], [])
            # what others wait for leaves as soon as it is made, before the rows that nobody waits for
            yield from cells[0]
            if after is not None:
                yield from self.leave(after, segment, after, at, chunk, pass_, back=False)
            yield from cells[1]
            if regroup and k + 1 not in which:
                yield from self.return_rows(k, at, chunk, pass_)

    def return_rows(self, k: int, at: RankBlock, chunk: int, pass_: Pass) -> Iterator[Action]:
        """Of a group that is computed again and ends with rows dealt out, bring them back to their steps."""
        reader = self.segments[k + 1] if k + 1 < len(self.segments) else None
        exchange = None if reader is None else LETTERS.get(reader.arrives)
        if reader is not None and exchange is not None and self.segments[k].apart == exchange.letter:
            for verb in (Verb.POST, Verb.WAIT):
                yield exchange.crossing(verb, at, reader.first, chunk, back=False, pass_=pass_)

    def verb_of(self, segment: Segment, mode: Mode, regroup: bool) -> tuple[Verb, Pass]:
        if regroup:
            return Verb.AGAIN, Pass.AGAIN
        if mode == "again":
            return (Verb.AGAIN if segment.group == self.last_group else Verb.FORWARD), Pass.AGAIN
        return Verb.FORWARD, self.pass_

    def does(self, segment: Segment, at: RankBlock) -> bool:
        """Say whether the rank has work in a segment: steps of its own, or a weight that evolves everywhere."""
        if segment.apart:
            return LETTERS[segment.apart].takes_part(at)
        if at.steps:
            return True
        temporal = (self.facts.layer_at(k, HalfKind.TEMPORAL) for k in range(segment.first, segment.last + 1))
        return any(layer is not None and layer.state == "weight" and layer.along == NONE for layer in temporal)

    # Backward

    def backward(self, at: RankBlock, chunk: int) -> Iterator[Action]:
        for exchange in CATALOGUE:
            yield from exchange.enter_stage(at, chunk, back=True)
        for group in reversed(range(self.last_group + 1)):
            which = [k for k, segment in enumerate(self.segments) if segment.group == group]
            if group < self.last_group:
                span = range(which[0], which[-1] + 1)
                end = self.segments[which[-1]].last
                yield from self.segments_forward(span, at, chunk, "full", end, regroup=True)
            for k in reversed(which):
                yield from self.segment_backward(k, at, chunk)
        for exchange in CATALOGUE:
            yield from exchange.leave_stage(at, chunk, back=True)

    def segment_backward(self, k: int, at: RankBlock, chunk: int) -> Iterator[Action]:
        segment, does = self.segments[k], self.does(self.segments[k], at)
        before = self.segments[k - 1] if k > 0 else None
        after = self.segments[k + 1] if k + 1 < len(self.segments) else None
        cells: tuple[list[Action], list[Action]] = ([], [])
        if after is not None and self.crosses_late(k + 1):
            yield from self.leave(after, after, segment, at, chunk, Pass.TRAIN, back=True)
        if does:
            if after is not None:
                yield from self.arrive(after, at, chunk, Pass.TRAIN, back=True)
            cells = self.cells(segment, at, chunk, Verb.BACKWARD, Pass.TRAIN, segment.last, moves=True)
        yield from cells[0]
        if segment.apart:
            yield from LETTERS[segment.apart].around_half(at, segment.first, back=True)
        if before is not None and not self.crosses_late(k):
            yield from self.leave(segment, segment, before, at, chunk, Pass.TRAIN, back=True)
        yield from cells[1]
        yield from self.around_inputs(k, at, back=True)

    def crosses_late(self, k: int) -> bool:
        """Whether gradients before a segment cross when the group before it was computed again: its last layer dealt
        rows out, and brings their gradients back too.
        """
        before, reader = self.segments[k - 1] if k else None, self.segments[k]
        return before is not None and before.group != reader.group and reader.arrives == before.apart != ""

    # What crosses before a segment, and its cells

    def leave(
        self, reader: Segment, own: Segment, other: Segment, at: RankBlock, chunk: int, pass_: Pass, *, back: bool
    ) -> Iterator[Action]:
        """Post what crosses before `reader` on its way from the segment `own` to the `other`.

        A rank without work in `own` posts all the same, here, where the ranks that have work do: what crosses an axis
        is matched by its order. One without work in the `other` waits at once.
        """
        exchange = self.crosses(reader, back=back)
        reads = self.does(other, at)
        if exchange is not None and exchange.takes_part(at) and (reads or self.does(own, at)):
            yield exchange.crossing(Verb.POST, at, reader.first, chunk, back=back, pass_=pass_)
            if not reads:
                yield exchange.crossing(Verb.WAIT, at, reader.first, chunk, back=back, pass_=pass_)

    def arrive(self, reader: Segment, at: RankBlock, chunk: int, pass_: Pass, *, back: bool) -> Iterator[Action]:
        """Wait for what crosses before `reader`."""
        exchange = self.crosses(reader, back=back)
        if exchange is not None and exchange.takes_part(at):
            yield exchange.crossing(Verb.WAIT, at, reader.first, chunk, back=back, pass_=pass_)

    def crosses(self, reader: Segment, *, back: bool) -> Exchange | None:
        """Return the exchange before a segment; None where nothing crosses, or no gradient is wanted."""
        exchange = LETTERS.get(reader.arrives)
        returns = exchange is not None and (not back or exchange.returns(self.facts, reader.first))
        return exchange if returns else None

    def around_inputs(self, k: int, at: RankBlock, *, back: bool) -> Iterator[Action]:
        """What the exchange of the segment after has to do around the cells that feed it."""
        after = self.segments[k + 1] if k + 1 < len(self.segments) else None
        if after is not None and after.apart:
            yield from LETTERS[after.apart].around_inputs(at, after.first, back=back)

    def cells(
        self, segment: Segment, at: RankBlock, chunk: int, verb: Verb, pass_: Pass, end: int, *, moves: bool
    ) -> tuple[list[Action], list[Action]]:
        """Give a segment's cells: those that others wait for, with the states that cross (`moves`), and the rest."""
        first, last, back = segment.first, min(segment.last, end), verb is Verb.BACKWARD
        if segment.last < segment.first:
            return [], []
        if not segment.apart:
            cells = [self.cell(verb, first, last, at, chunk, side, pass_) for side in self.sides]
            return cells[:1], cells[1:]
        exchange = LETTERS[segment.apart]
        actions: list[Action] = []
        for own in reversed(range(segment.chunks)) if back else range(segment.chunks):
            actions += exchange.before_cell(at, first, own, back=back) if moves else ()
            actions.append(self.cell(verb, first, last, at, own, None, pass_))
            actions += exchange.after_cell(at, first, own, back=back) if moves else ()
        return actions, []

    def cell(
        self, verb: Verb, first: int, last: int, at: RankBlock, chunk: int, side: Side | None, pass_: Pass
    ) -> Action:
        mine = self.facts.stage_halves(self.stage)
        if first == mine.start and last == mine.stop - 1:
            return Action(verb, self.stage, chunk, side=side, block=at.number(), pass_=pass_)
        return Action(verb, self.stage, chunk, first, last, side, at.number(), pass_=pass_)
