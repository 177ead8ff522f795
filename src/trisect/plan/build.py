"""What every rank does in a pass, in order: the loop of `pipeline.rank` over cells, and the verbs that layers ask for.

A static graph is one block of one step. Its chunks go forward one after the other and backward in exactly the reverse
order. The steps of a timeline are cut into blocks: forward keeps only what came in from outside (the state before each
run, and a stage's input), the last block is gone through with all that backward needs, and every other one is computed
again when backward, in reverse, comes to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from trisect.schedule.action import Action, Pass, Verb
from trisect.schedule.pieces import Pieces
from trisect.schedule.schedule import Schedule
from trisect.views.catalogue import options_on
from trisect.views.exchange import Crossing, Exchange, Place, Work, crossing
from trisect.views.fetch import Fetch
from trisect.views.plan import Plan
from trisect.views.stay import Stay
from trisect.views.top import Top
from trisect.views.total import Total
from trisect.views.trace import Call

# For so many messages of a peer there is room at a time.
AHEAD = 8


class Item(NamedTuple):
    """A transfer or some work of a layer, in a cell.

    Attributes:
        call: the verb that it is of; None: it is of no layer's.
        again: whether it is on the way forward in a group that is computed again.
    """

    step: Crossing | Work
    layer: int
    call: Call | None = None
    exchange: type[Exchange] | None = None
    back: bool = False
    again: bool = False


def schedule_of(plan: Plan, *, pass_: Pass = Pass.TRAIN, order: Sequence[int] | None = None) -> Schedule:
    """Return one pass of every rank: an epoch of training, or a pass forward.

    Args:
        order: of the chunks; None: ascending.
    """
    ranks = (_Rank(plan, rank, pass_, order) for rank in range(plan.layout.world))
    return Schedule(tuple(tuple(expect_early(rank.actions())) for rank in ranks), plan.layout)


def expect_early(actions: Iterable[Action]) -> list[Action]:
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

    def __init__(self, plan: Plan, rank: int, pass_: Pass, order: Sequence[int] | None) -> None:
        self.plan, self.rank, self.pass_, self.order = plan, rank, pass_, order
        self.stage = Place(plan, rank).stage
        self.is_last = self.stage == plan.layout.layer - 1
        self.groups = plan.groups(self.stage)
        self.numbers = [number for group in self.groups for number in group] or [plan.bounds[self.stage]]

    def actions(self) -> Iterator[Action]:
        plan, trains = self.plan, self.pass_ is Pass.TRAIN
        cells = list(range(plan.blocks) if plan.timeline else self.order or range(plan.chunks))
        plain = [plan.timeline and number != cells[-1] for number in cells]
        for number, states in zip(cells, plain, strict=True):
            yield from self.boundary(Verb.WAIT, number, -1, back=False)
            yield from self.forward(number, Verb.FORWARD, self.pass_, ends=states and trains and self.is_last)
            yield from self.boundary(Verb.POST, number, 1, back=False)
        if not trains:
            return
        for number, states in zip(reversed(cells), reversed(plain), strict=True):
            if states:
                yield from self.forward(number, Verb.AGAIN, Pass.AGAIN)
            yield from self.boundary(Verb.WAIT, number, 1, back=True)
            pieces = Pieces(self.numbers[-1], self.numbers[0])
            yield from self.cell(Verb.BACKWARD, number, Pass.TRAIN, self.backward(number), pieces)
            yield from self.boundary(Verb.POST, number, -1, back=True)
        if plan.layout.time * plan.parts > 1:
            yield Action(Verb.REDUCE, self.stage)
        yield Action(Verb.STEP, self.stage)

    def boundary(self, verb: Verb, number: int, direction: int, *, back: bool) -> Iterator[Action]:
        """Yield a transfer with the stage before (-1) or after (1), where there is one and the cell has rows."""
        at = self.at(number)
        if 0 <= self.stage + direction < self.plan.layout.layer and at.steps:
            chunk, block = (0, number) if self.plan.timeline else (number, None)
            yield Action(
                verb,
                self.stage,
                chunk,
                block=block,
                exchange="b",
                back=back,
                peer=self.rank + direction * self.plan.parts,
                incoming=verb is Verb.WAIT,
                pass_=Pass.TRAIN if back else self.pass_,
            )

    def at(self, number: int, layer: int = 0, *, again: bool = False, ends: bool = False) -> Place:
        return Place(self.plan, self.rank, number if self.plan.timeline else 0, layer, again, ends)

    # Cells

    def forward(self, number: int, verb: Verb, pass_: Pass, *, ends: bool = False) -> Iterator[Action]:
        """Yield a cell on its way forward; `ends`: behind the last use of `recur`, since states alone are wanted."""
        last = self.plan.last_recurrent(self.stage) if ends else None
        items: list[Item] = []
        if last is not None or not ends:
            items += self.layers(number, self.numbers, last, again=verb is Verb.AGAIN)
        if self.is_last and not ends:
            items += self.loss(number, back=False)
        end = self.numbers[-1] if last is None else last[0]
        yield from self.cell(verb, number, pass_, items, Pieces(self.numbers[0], end))

    def backward(self, number: int) -> Iterator[Item]:
        """Yield what a cell does on its way back; a group of which nothing was kept goes forward again before."""
        if self.is_last:
            yield from self.loss(number, back=True)
        for group in reversed(self.groups):
            if group is not self.groups[-1]:
                yield from self.layers(number, group, again=True)
            for layer in reversed(group):
                yield from self.layer(self.at(number, layer), back=True)

    def layers(
        self, number: int, layers: Sequence[int], last: tuple[int, int] | None = None, *, again: bool
    ) -> Iterator[Item]:
        """Yield what some layers do forward, up to the use of `recur` behind which nothing is wanted."""
        for layer in layers:
            yield from self.layer(self.at(number, layer, again=again), back=False, last=last)
            if last is not None and last[0] == layer:
                return

    def layer(self, at: Place, *, back: bool, last: tuple[int, int] | None = None) -> Iterator[Item]:
        """Yield what the verbs of a layer do, and its work."""
        calls, uses = self.plan.calls(at.layer, trains=self.pass_ is not Pass.EVALUATE), 0
        if not any(call.verb in ("aggregate", "gather", "recur") for call in calls):
            yield Item(Work(at.layer, "local"), at.layer)
        for call in reversed(calls) if back else calls:
            uses += call.verb == "recur"
            ends = call.verb == "recur" and last == (at.layer, uses)
            exchange = exchange_for(at, call)
            for step in steps_of(replace(at, ends=ends), call, exchange, back=back):
                yield Item(step, at.layer, call, exchange, back, at.again)
            if ends:
                return

    def loss(self, number: int, *, back: bool) -> Iterator[Item]:
        """Yield what the last stage does with its outputs."""
        layer, plan = self.numbers[-1], self.plan
        work = Item(Work(len(plan.layers) + 1, "loss"), layer)
        if back:
            yield work
        if plan.fetches and plan.parts > 1 and self.at(number).steps and self.pass_ is Pass.TRAIN:
            yield from (Item(step, layer, None, Fetch, back) for step in crossing(plan.out_channels))
        if not back:
            yield work

    def cell(self, verb: Verb, number: int, pass_: Pass, items: Iterable[Item], pieces: Pieces) -> Iterator[Action]:
        """Yield a cell as pieces of work between what it posts and waits for."""
        chunk, block = (0, number) if self.plan.timeline else (number, None)
        works: list[Work] = []
        for item in items:
            if isinstance(item.step, Work):
                works.append(item.step)
                continue
            span = pieces.until(item.layer)
            yield Action(verb, self.stage, chunk, *span, block, pass_=pass_, works=tuple(works))
            works.clear()
            yield self.transfer(item, item.step, chunk, block, Pass.AGAIN if item.again else pass_)
        yield Action(verb, self.stage, chunk, *pieces.rest(), block, pass_=pass_, works=tuple(works))

    def transfer(self, item: Item, step: Crossing, chunk: int, block: int | None, pass_: Pass) -> Action:
        return Action(
            step.verb,
            self.stage,
            chunk if step.chunk is None else step.chunk,
            item.layer,
            block=block if step.block is None else step.block,
            exchange=None if item.exchange is None else item.exchange.letter,
            back=item.back,
            peer=step.peer,
            incoming=step.peer is not None and step.verb is Verb.WAIT,
            pass_=Pass.TRAIN if item.back else pass_,
            call=item.call,
            width=step.width,
        )


def exchange_for(at: Place, call: Call) -> type[Exchange] | None:
    """Return the exchange by which a verb crosses ranks; None: its rows stay on the rank."""
    layer, cut = at.plan.layers[at.layer], at.plan.parts > 1 and bool(at.steps)
    if call.verb == "recur":
        return next((exchange for exchange in options_on("time") if exchange.option == layer.along), Stay)
    if call.verb in ("sum", "top"):
        return None if not cut else Total if call.verb == "sum" else Top
    if call.kept or not cut:
        return None
    return next((exchange for exchange in options_on("vertex") if exchange.option == layer.across), None)


def steps_of(at: Place, call: Call, exchange: type[Exchange] | None, *, back: bool) -> list[Crossing | Work]:
    """Return what a use of a verb posts, waits for and computes."""
    inside = [] if exchange is None else list(exchange.expand(at, call, back=back))
    outside: list[Crossing | Work] = [Work(at.layer, "top")] if call.verb == "top" else []
    if call.kept:
        inside = [Work(at.layer, "ready")]
    elif call.verb in ("aggregate", "gather"):
        inside, outside = inside or [Work(at.layer, "behind", at.share)], [Work(at.layer, "before", at.share)]
    return [*inside, *outside] if back else [*outside, *inside]
