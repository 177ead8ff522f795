"""The schedule of a timeline cut by time, blocks, vertex and layer.

Steps are cut into blocks, and each block into runs, one a moment of the `time` axis. Forward goes over the blocks in
order and keeps only what came in from outside: the state before each run, and a stage's input frames. The last block
is gone through with all that backward needs; every other one is computed again when backward, in reverse, comes to it.

A layer of a block is done in halves: spatial (inside each snapshot) and temporal (along time); for a layer whose state
is its weight, the temporal half comes first. Between ways the rows that others read cross between `prepare` and the
spatial half. What crosses the `time` axis is the layer's choice (`LayerPlan.along`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.schedule.action import Action, Half, Kind, Phase
from trisect.schedule.schedule import Schedule

Along = Literal["none", "carry", "halo", "redistribute"]
StateKind = Literal["vertex", "window", "weight"]


@dataclass(frozen=True)
class LayerPlan:
    """What the schedule must know of a dynamic layer.

    Attributes:
        along: how its state crosses the `time` axis.
        state: what its state is (see `trisect.nn.dynamic.DynamicLayer`).
        window: of a window state, the number of frames that a step reads, its own included.
        summarises: whether its state reads a summary of all vertices (EvolveGCN-H).
    """

    along: Along
    state: StateKind
    window: int = 1
    summarises: bool = False


@dataclass(frozen=True)
class TimelinePlan:
    """How a dynamic model goes over a timeline: a plain value, the same on all ranks.

    Attributes:
        runs: runs[block][moment], consecutive ranges of steps; a run may be empty, a block not.
        bounds: stage s has the layers bounds[s] .. bounds[s+1]-1.
        layers: of the whole model.
        rows: of each way's part.
        chunks: vertex chunks that a carry crosses in.
        aggregated: whether Â·x of the first layer is kept, so that it reads no snapshot.
        fixed: whether the features are the same in all steps, [rows, features].
        fetches: whether the loss reads output rows of other ways.
    """

    runs: tuple[tuple[range, ...], ...]
    bounds: tuple[int, ...]
    layers: tuple[LayerPlan, ...]
    rows: tuple[int, ...] = (1,)
    chunks: int = 1
    aggregated: bool = False
    fixed: bool = False
    fetches: bool = False

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return len(self.runs)

    def steps(self, block: int) -> range:
        """All steps of a block."""
        return range(self.runs[block][0].start, self.runs[block][-1].stop)

    def chunks_of(self, layer: int) -> int:
        """In how many vertex chunks the temporal half of a layer is done."""
        plan = self.layers[layer]
        return self.chunks if plan.along == "carry" and plan.state != "weight" else 1

    def before(self, block: int, moment: int) -> tuple[int, int] | None:
        """(block, moment) of the run that comes before, empty ones left out."""
        return self._next(block, moment, -1)

    def after(self, block: int, moment: int) -> tuple[int, int] | None:
        """(block, moment) of the run that comes after, empty ones left out."""
        return self._next(block, moment, 1)

    def _next(self, block: int, moment: int, way: int) -> tuple[int, int] | None:
        times = len(self.runs[0])
        place = block * times + moment + way
        while 0 <= place < self.blocks * times:
            if self.runs[place // times][place % times]:
                return place // times, place % times
            place += way
        return None

    def read_before(self, block: int, moment: int, owner: int, window: int) -> tuple[int, ...]:
        """Of the window-1 steps before a run, those that moment `owner` has."""
        start = self.runs[block][moment].start
        if not self.runs[block][moment]:
            return ()
        has = (self.runs[b][owner] for b in range(block + 1))
        return tuple(step for run in has for step in range(max(run.start, start - (window - 1)), min(run.stop, start)))


Pass = Literal["plain", "full", "again", "outputs"]


def timeline_schedule(layout: Layout, plan: TimelinePlan, *, train: bool = True) -> Schedule:
    """One epoch of every rank, or (`train` false) one pass over all blocks that gives the outputs."""
    _check(layout, plan)
    return Schedule(tuple(tuple(_Rank(layout, plan, rank).actions(train)) for rank in range(layout.world)), layout)


def _check(layout: Layout, plan: TimelinePlan) -> None:
    if len(plan.bounds) != layout.layer + 1:
        raise LayoutError(f"layout.layer is {layout.layer}, but {len(plan.bounds) - 1} stages were given")
    if {"carry", "halo"} <= {layer.along for layer in plan.layers}:
        raise LayoutError(
            "some layers carry their state and others read a halo of frames, whose messages would overtake each other; "
            "let all carry"
        )
    for block, runs in enumerate(plan.runs):
        if len(runs) != layout.time:
            raise LayoutError(f"layout.time is {layout.time}, but block {block} has {len(runs)} runs")
        if not any(runs):
            raise LayoutError(f"block {block} of {plan.blocks} has no steps; set layout.blocks to fewer blocks")


@dataclass(frozen=True)
class _Rank:
    """Builds the actions of one rank."""

    layout: Layout
    plan: TimelinePlan
    rank: int

    @property
    def ways(self) -> int:
        return self.layout.vertex

    @property
    def stage(self) -> int:
        return self.rank // self.ways % self.layout.layer

    @property
    def moment(self) -> int:
        return self.rank // (self.ways * self.layout.layer)

    @property
    def final(self) -> bool:
        return self.stage == self.layout.layer - 1

    @property
    def numbers(self) -> range:
        """The layers of the stage, as numbers in the model."""
        return range(self.plan.bounds[self.stage], self.plan.bounds[self.stage + 1])

    def at(self, moment: int) -> int:
        """The rank of another moment, same stage and way."""
        return self.rank + (moment - self.moment) * self.ways * self.layout.layer

    def actions(self, train: bool) -> Iterator[Action]:
        last = self.plan.blocks - 1
        if not train:
            for block in range(last + 1):
                yield from self.forward(block, "outputs")
            return
        for block in range(last + 1):
            yield from self.forward(block, "full" if block == last else "plain")
        yield from self.backward(last)
        for block in reversed(range(last)):
            yield from self.forward(block, "again")
            yield from self.backward(block)
        if self.layout.time * self.ways > 1:
            yield Action(Kind.REDUCE, self.stage)
        yield Action(Kind.STEP, self.stage)

    def forward(self, block: int, mode: Pass) -> Iterator[Action]:
        run = self.plan.runs[block][self.moment]
        kind = Kind.RECOMPUTE if mode == "again" else Kind.FORWARD
        if self.stage > 0 and run and mode != "again":
            yield Action(Kind.RECEIVE, self.stage, block=block, phase=Phase.FORWARD, peer=self.rank - self.ways)
        for number in self.numbers:
            yield from self._layer(block, number, kind, mode)
        if not run:
            return
        if self.final and mode != "plain":
            top = len(self.numbers)
            yield self._do(kind, block, top, Half.OUTPUT)
            if self.fetches and mode != "outputs":
                yield self._halo(block, top, Half.OUTPUT, Phase.FORWARD)
                yield self._do(kind, block, top, Half.LOSS)
        elif not self.final and mode != "again":
            yield Action(Kind.SEND, self.stage, block=block, phase=Phase.FORWARD, peer=self.rank + self.ways)

    def _layer(self, block: int, number: int, kind: Kind, mode: Pass) -> Iterator[Action]:
        run, plan, k = self.plan.runs[block][self.moment], self.plan.layers[number], number - self.numbers.start
        # where only the state after the block is wanted, what would follow it in the last layer is left out
        ends = mode == "plain" and self.final and number == self.numbers[-1]
        if plan.state == "weight":
            if run and plan.summarises:
                yield self._do(kind, block, k, Half.SUMMARY)
                if self.ways > 1:
                    yield self._halo(block, k, Half.SUMMARY, Phase.FORWARD)
            yield from self._recur(block, number, kind, mode)
            if run and not ends:
                yield from self._convolve(block, number, kind)
            return
        if plan.along == "halo" and mode != "again":
            yield from self._window(block, number, Phase.FORWARD, late=False)
        if run:
            yield from self._convolve(block, number, kind)
        if plan.along == "redistribute":
            yield Action(Kind.REDISTRIBUTE, self.stage, layer=k, block=block, phase=Phase.FORWARD, half=Half.SPATIAL)
            yield self._do(kind, block, k, Half.TEMPORAL)
            if not ends:
                yield Action(
                    Kind.REDISTRIBUTE, self.stage, layer=k, block=block, phase=Phase.FORWARD, half=Half.TEMPORAL
                )
            return
        if plan.along == "halo" and mode != "again":
            yield from self._window(block, number, Phase.FORWARD, late=True)
        yield from self._recur(block, number, kind, mode)

    def _convolve(self, block: int, number: int, kind: Kind) -> Iterator[Action]:
        k = number - self.numbers.start
        if self.reads(number):
            yield self._do(kind, block, k, Half.PREPARE)
            yield self._halo(block, k, Half.PREPARE, Phase.FORWARD)
        yield self._do(kind, block, k, Half.SPATIAL)

    def _recur(self, block: int, number: int, kind: Kind, mode: Pass) -> Iterator[Action]:
        """The temporal half chunk by chunk, each after the state that it begins with has come."""
        run, along, k = self.plan.runs[block][self.moment], self.plan.layers[number].along, number - self.numbers.start
        if along == "none" or (along == "halo" and run):
            yield self._do(kind, block, k, Half.TEMPORAL)
        elif along == "carry" and run:
            before, after = self.plan.before(block, self.moment), self.plan.after(block, self.moment)
            for chunk in range(self.plan.chunks_of(number)):
                if before is not None and before[1] != self.moment and mode != "again":
                    yield self._carry(block, k, chunk, Phase.FORWARD, before[1], incoming=True)
                yield self._do(kind, block, k, Half.TEMPORAL, chunk)
                if after is not None and after[1] != self.moment and mode != "again":
                    yield self._carry(after[0], k, chunk, Phase.FORWARD, after[1], incoming=False)

    def _window(self, block: int, number: int, phase: Phase, *, late: bool) -> Iterator[Action]:
        """Frames that runs read of the steps before them; one message from each moment to each other in a block.

        What a moment has for those before it are frames of earlier blocks: they need not wait for its spatial half.
        """
        k, window = number - self.numbers.start, self.plan.layers[number].window
        gives = [
            self._carry(block, k, 0, phase, other, incoming=phase is Phase.BACKWARD)
            for other in range(self.layout.time)
            if other != self.moment
            and (other > self.moment) == late
            and self.plan.read_before(block, other, self.moment, window)
        ]
        takes = [
            self._carry(block, k, 0, phase, other, incoming=phase is Phase.FORWARD)
            for other in range(self.layout.time)
            if late and other != self.moment and self.plan.read_before(block, self.moment, other, window)
        ]
        yield from gives + takes if phase is Phase.FORWARD else takes + gives

    def backward(self, block: int) -> Iterator[Action]:
        run = self.plan.runs[block][self.moment]
        top = len(self.numbers)
        if run and self.final:
            if self.fetches:
                yield self._do(Kind.BACKWARD, block, top, Half.LOSS)
                yield self._halo(block, top, Half.OUTPUT, Phase.BACKWARD)
            yield self._do(Kind.BACKWARD, block, top, Half.OUTPUT)
        elif run:
            yield Action(Kind.RECEIVE, self.stage, block=block, phase=Phase.BACKWARD, peer=self.rank + self.ways)
        for number in reversed(self.numbers):
            yield from self._layer_back(block, number)
        if self.stage > 0 and run:
            yield Action(Kind.SEND, self.stage, block=block, phase=Phase.BACKWARD, peer=self.rank - self.ways)

    def _layer_back(self, block: int, number: int) -> Iterator[Action]:
        run, plan, k = self.plan.runs[block][self.moment], self.plan.layers[number], number - self.numbers.start
        if plan.state == "weight":
            if run:
                yield from self._convolve_back(block, number)
            yield from self._recur_back(block, number)
            if run and plan.summarises:
                if self.ways > 1:
                    yield self._halo(block, k, Half.SUMMARY, Phase.BACKWARD)
                yield self._do(Kind.BACKWARD, block, k, Half.SUMMARY)
            return
        if plan.along == "redistribute":
            yield Action(Kind.REDISTRIBUTE, self.stage, layer=k, block=block, phase=Phase.BACKWARD, half=Half.TEMPORAL)
            yield self._do(Kind.BACKWARD, block, k, Half.TEMPORAL)
            yield Action(Kind.REDISTRIBUTE, self.stage, layer=k, block=block, phase=Phase.BACKWARD, half=Half.SPATIAL)
        else:
            yield from self._recur_back(block, number)
        if plan.along == "halo":
            yield from self._window(block, number, Phase.BACKWARD, late=True)
        if run:
            yield from self._convolve_back(block, number)
        if plan.along == "halo":
            yield from self._window(block, number, Phase.BACKWARD, late=False)

    def _convolve_back(self, block: int, number: int) -> Iterator[Action]:
        k = number - self.numbers.start
        yield self._do(Kind.BACKWARD, block, k, Half.SPATIAL)
        if self.reads(number):
            yield self._halo(block, k, Half.PREPARE, Phase.BACKWARD)
            yield self._do(Kind.BACKWARD, block, k, Half.PREPARE)

    def _recur_back(self, block: int, number: int) -> Iterator[Action]:
        run, along, k = self.plan.runs[block][self.moment], self.plan.layers[number].along, number - self.numbers.start
        if along == "none" or (along == "halo" and run):
            yield self._do(Kind.BACKWARD, block, k, Half.TEMPORAL)
        elif along == "carry" and run:
            before, after = self.plan.before(block, self.moment), self.plan.after(block, self.moment)
            for chunk in reversed(range(self.plan.chunks_of(number))):
                if after is not None and after[1] != self.moment:
                    yield self._carry(block, k, chunk, Phase.BACKWARD, after[1], incoming=True)
                yield self._do(Kind.BACKWARD, block, k, Half.TEMPORAL, chunk)
                if before is not None and before[1] != self.moment:
                    yield self._carry(before[0], k, chunk, Phase.BACKWARD, before[1], incoming=False)

    @property
    def fetches(self) -> bool:
        return self.plan.fetches and self.ways > 1

    def reads(self, number: int) -> bool:
        """Whether rows of other ways are read by a layer."""
        return self.ways > 1 and not (number == 0 and self.plan.aggregated)

    def _do(self, kind: Kind, block: int, k: int, half: Half, chunk: int = 0) -> Action:
        return Action(kind, self.stage, chunk, layer=k, block=block, half=half)

    def _halo(self, block: int, k: int, half: Half, phase: Phase) -> Action:
        return Action(Kind.HALO, self.stage, layer=k, block=block, phase=phase, half=half)

    def _carry(self, block: int, k: int, chunk: int, phase: Phase, moment: int, *, incoming: bool) -> Action:
        return Action(
            Kind.CARRY,
            self.stage,
            chunk,
            layer=k,
            block=block,
            phase=phase,
            peer=self.at(moment),
            incoming=incoming,
        )
