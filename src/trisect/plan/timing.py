"""The time of an epoch: the real schedule, simulated with the cost model; of a large world, a part that stands for it.

All parts of a stage do the same at the same time, so that two of them, each with the rows of the heaviest, take as long
as all. Along time a carry fills its pipeline, and an epoch grows linearly with the ranks once there are several, so
that two small numbers of ranks give a large one; under other exchanges it does not grow. Two small numbers of chunks
that go through stages, each of the size that it has in truth, give a large one too. Tests compare all of them with
simulations of whole worlds.

`least_seconds` is a time that an epoch cannot be below, worked out without a simulation. The search simulates the
layouts with the smallest such bound first, and ends when no bound is below the times that it has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trisect.plan.build import schedule_of
from trisect.plan.cluster import Cluster
from trisect.plan.costs import CostModel
from trisect.plan.workload import Workload
from trisect.schedule.action import COMPUTE, Action, Verb
from trisect.schedule.simulate import Cost, Span, simulate
from trisect.views.carry import Carry
from trisect.views.exchange import Work
from trisect.views.halo import Halo
from trisect.views.plan import Plan

# Runs along time that are simulated, where there are more; chunks of a carry likewise, more of them where all runs are.
_RUNS = (4, 8)
_FEW_CHUNKS, _CHUNKS = 16, 64
_APART = 256
# Chunks that read history which are simulated, where there are more.
_STALE = (4, 8)
# Of larger worlds nothing is drawn, and no more spans than this are kept of all ranks together.
MOST_RANKS = 64
MOST_SPANS = 20_000


@dataclass(frozen=True)
class Seconds:
    """The seconds of an epoch by what they are spent on, on the rank that works longest.

    Attributes:
        compute: cells and the optimiser.
        communication: how much longer the epoch takes since rows need time on links.
        bubble: waiting for ranks that have more to do, or do it earlier.
        overhead: what actions cost whatever their size.
    """

    compute: float
    communication: float
    bubble: float
    overhead: float

    @property
    def total(self) -> float:
        """Give the seconds of the whole epoch."""
        return self.compute + self.communication + self.bubble + self.overhead

    def plus(self, other: Seconds, factor: float) -> Seconds:
        """Add another, times a factor."""
        return Seconds(
            self.compute + factor * other.compute,
            self.communication + factor * other.communication,
            self.bubble + factor * other.bubble,
            self.overhead + factor * other.overhead,
        )


def epoch_seconds(workload: Workload, plan: Plan, cluster: Cluster, *, whole: bool = False) -> Seconds:
    """Give the time of an epoch under the plan of a layout.

    Args:
        whole: simulate every rank, however many there are.
    """
    times, chunks = plan.layout.time, plan.layout.chunks
    if plan.stale and chunks > _STALE[1] and not whole:
        less, some = (_simulated(workload, plan, cluster, representative(plan, stale=count)) for count in _STALE)
        return some.plus(some.plus(less, -1.0), (chunks - _STALE[1]) / (_STALE[1] - _STALE[0]))
    if whole or times <= _RUNS[1]:
        return _simulated(workload, plan, cluster, plan if whole else representative(plan))
    if not any(layer.along == "carry" for layer in plan.layers):
        return _simulated(workload, plan, cluster, representative(plan, _runs_apart(plan)))
    acting = [representative(plan, runs) for runs in _RUNS]
    few, more = (_simulated(workload, plan, cluster, smaller) for smaller in acting)
    # what an epoch takes longer for each further run is the time of a chunk, of which there are more in truth
    between = 1.0 / (_RUNS[1] - _RUNS[0])
    shorter = acting[1].carry_chunks / plan.carry_chunks
    return more.plus(more.plus(few, -1.0), between * ((times - 1) * shorter - (_RUNS[1] - 1)))


def _runs_apart(plan: Plan) -> int:
    """Say how many runs are simulated where none waits for all before it.

    Under a window runs differ in how many others they read: all of them, as long as they are few enough.
    """
    window = max(layer.window for layer in plan.layers)
    if window > 1 and plan.blocks * plan.layout.time <= _APART:
        return plan.layout.time
    return max(_RUNS[1], 2 * window)


def representative(plan: Plan, runs: int | None = None, stale: int | None = None) -> Plan:
    """Give a smaller world of the same stages: at most two parts, so many runs along time, and so many of the chunks
    that read history.
    """
    layout, parts = plan.layout, min(2, plan.parts)
    pieces = layout.chunks if stale is None or not plan.stale else min(stale, layout.chunks)
    chunks = min(plan.carry_chunks, _CHUNKS if runs is None else _FEW_CHUNKS)
    runs = layout.time if runs is None else min(runs, layout.time)
    if parts == plan.parts and runs == layout.time and plan.carry_chunks == chunks and pieces == layout.chunks:
        return plan
    return replace(
        plan,
        layout=replace(layout, vertex=parts, time=runs, chunks=pieces),
        rows=(max(plan.rows),) * parts,
        chunk_rows=plan.chunk_rows[:parts],
        runs=tuple(block[:runs] for block in plan.runs),
        carry_chunks=chunks,
    )


def _simulated(workload: Workload, plan: Plan, cluster: Cluster, acting: Plan) -> Seconds:
    schedule = schedule_of(acting)
    costs = CostModel(workload, plan, cluster, acting)

    link, busy = costs_of(costs)

    def alone(rank: int, action: Action) -> float:
        return 0.0 if action.verb in (Verb.POST, Verb.REDUCE) else link(rank, action)

    with_links = simulate(schedule, link, busy)
    without = simulate(schedule, alone, costs.overhead)
    ends = [row[-1].end if row else 0.0 for row in with_links]
    total, unlinked = max(ends), max(row[-1].end if row else 0.0 for row in without)
    sums = [
        (
            sum(costs.compute(rank, action) for action in actions if action.verb in COMPUTE),
            sum(costs.overhead(rank, action) for action in actions if action.verb is not Verb.EXPECT),
        )
        for rank, actions in enumerate(schedule.ranks)
    ]
    compute, overhead = max(sums, key=sum)
    return Seconds(compute, max(0.0, total - unlinked), max(0.0, unlinked - compute - overhead), overhead)


def costs_of(costs: CostModel) -> tuple[Cost, Cost]:
    """Give what `simulate` asks for: the time of an action, or of its rows on a link; and how long a rank is busy."""

    def link(rank: int, action: Action) -> float:
        if action.verb is Verb.POST:
            return 0.0 if costs.copies(rank, action) else costs.transfer(rank, action)
        if action.verb is Verb.REDUCE:
            return costs.transfer(rank, action)
        return costs.compute(rank, action) + costs.overhead(rank, action)

    def busy(rank: int, action: Action) -> float:
        moved = costs.transfer(rank, action) if action.verb is Verb.POST and costs.copies(rank, action) else 0.0
        return costs.overhead(rank, action) + moved

    return link, busy


def expected_spans(workload: Workload, plan: Plan, cluster: Cluster) -> list[list[Span]] | None:
    """Give the spans of each rank in an epoch, those that take no time left out; None for worlds of many ranks.

    Where there are too many, the longest are given.
    """
    if plan.layout.world > MOST_RANKS:
        return None
    costs = CostModel(workload, plan, cluster.resized(plan.layout.world), plan)
    spans = simulate(schedule_of(plan), *costs_of(costs))
    return [_longest(rank, MOST_SPANS // len(spans)) for rank in spans]


def _longest(spans: tuple[Span, ...], count: int) -> list[Span]:
    seen = [span for span in spans if span.end > span.start]
    longest = sorted(range(len(seen)), key=lambda k: seen[k].start - seen[k].end)[:count]
    return [seen[k] for k in sorted(longest)]


# The least time


def least_seconds(workload: Workload, plan: Plan, cluster: Cluster) -> float:
    """Return the least time of an epoch: all pieces on the busiest stage, and one piece on each of the others.

    A piece is a chunk or a block: what a stage works on while another has the one before.
    """
    few = representative(plan, min(plan.layout.time, 2), stale=1)
    # blocks are equal by their work, so that the first stands for all
    costs = CostModel(workload, plan, cluster, replace(few, runs=few.runs[:1]))
    stages = [_stage_seconds(costs, stage) for stage in range(plan.layout.layer)]
    busiest = max(stages)
    return busiest + (sum(stages) - busiest) / _pieces(plan)


def least_of_any(workload: Workload, alone: Plan, cluster: Cluster) -> float:
    """Return the work of an epoch in the seconds of one rank whose rows all lie in the cache; ranks can only divide it.

    Args:
        alone: the plan of one rank.
    """
    costs = CostModel(workload, alone, cluster, alone)
    cells = [action for action in schedule_of(alone).ranks[0] if action.verb in (Verb.FORWARD, Verb.BACKWARD)]
    work = sum(costs.compute(0, action) for action in cells if action.block in (None, alone.blocks - 1))
    device = cluster.device
    if device.gather_cached is None:
        return work
    widths = {*device.gather, *device.gather_cached}
    return work * min(device.gather_rate(width, math.inf) / device.gather_rate(width, 0.0) for width in widths)


def _pieces(plan: Plan) -> int:
    """Return how many chunks or blocks go through the stages."""
    return plan.blocks if plan.timeline else plan.chunks


def _stage_seconds(costs: CostModel, stage: int) -> float:
    """Return the seconds that a rank of a stage works, and waits for rows whose way nothing overlaps."""
    plan, few = costs.plan, costs.acting
    rank, pieces = stage * few.parts, _pieces(plan)
    again = 1.0 - 1.0 / plan.blocks if plan.timeline else 0.0
    compute = crossing = 0.0
    for action in schedule_of(few).ranks[rank]:
        times = pieces * (1.0 + again if action.verb is Verb.FORWARD or (not action.back and action.exchange) else 1.0)
        if action.verb is Verb.REDUCE:
            crossing += costs.transfer(rank, action)
        elif action.verb is Verb.STEP:
            compute += costs.compute(rank, action) + costs.overhead(rank, action)
        elif action.verb in (Verb.FORWARD, Verb.BACKWARD):
            compute += times * (costs.compute(rank, action) + costs.overhead(rank, action))
        elif action.verb is Verb.POST and action.peer is None and not (action.exchange == "h" and Halo.overlaps(few)):
            crossing += times * costs.transfer(rank, action)
    return compute + crossing + _filled(costs, stage, rank)


def _filled(costs: CostModel, stage: int, rank: int) -> float:
    """Return how long the last run waits until the first chunk of a state has gone through all runs before it."""
    plan, few, longest = costs.plan, costs.acting, 0.0
    peer, steps = rank + few.parts * few.layout.layer, few.runs[0][0]
    for number in range(few.bounds[stage], few.bounds[stage + 1]):
        layer = few.layers[number]
        if layer.along == Carry.option and layer.state != "weight":
            post = Action(Verb.POST, stage, 0, number, block=0, exchange=Carry.letter, peer=peer)
            work = Work(number, "recur", 1.0 / few.carry_chunks)
            each = (sum(costs.work(work, steps, few.steps(0), back=back)) for back in (False, True))
            longest = max(longest, sum(each) + 2 * costs.overhead(rank, post))
    return longest * (plan.layout.time - 1) * few.carry_chunks / plan.carry_chunks
