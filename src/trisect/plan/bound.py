"""A time that an epoch under a layout cannot be below, worked out without simulating its schedule.

The search simulates the layouts with the smallest bound first, and ends when no bound is below the times that it has.
"""

from __future__ import annotations

import math

from trisect.exchanges.carry import Carry
from trisect.exchanges.catalogue import LETTERS
from trisect.exchanges.facts import Facts
from trisect.exchanges.rank_block import RankBlock
from trisect.nn.halves import HalfKind
from trisect.plan.cluster import Cluster
from trisect.plan.costs import CostModel
from trisect.plan.segments import overlaps, segments_of
from trisect.plan.timing import representative
from trisect.plan.workload import Workload
from trisect.schedule.action import Action, Pass, Verb


def least_seconds(workload: Workload, facts: Facts, cluster: Cluster) -> float:
    """Give the least time of an epoch: all pieces on the busiest stage, and one piece on each of the others.

    A piece is a chunk or a block: what a stage works on while another has the one before.
    """
    few = representative(facts, min(facts.layout.time, 2))
    costs = CostModel(workload, facts, cluster, few)
    stages = [_stage_seconds(costs, few, stage) for stage in range(facts.layout.layer)]
    busiest = max(stages)
    return busiest + (sum(stages) - busiest) / _pieces(facts)


def least_of_any(workload: Workload, alone: Facts, cluster: Cluster) -> float:
    """Give the work of an epoch in the seconds of one rank whose rows all lie in the cache; ranks can only divide it.

    Args:
        alone: the facts of one rank.
    """
    costs = CostModel(workload, alone, cluster, alone)
    number = 0 if alone.timeline else None
    work = sum(costs.compute(0, Action(verb, 0, block=number)) for verb in (Verb.FORWARD, Verb.BACKWARD))
    device = cluster.device
    if device.gather_cached is None:
        return work
    widths = {*device.gather, *device.gather_cached}
    return work * min(device.gather_rate(width, math.inf) / device.gather_rate(width, 0.0) for width in widths)


def _pieces(facts: Facts) -> int:
    """Give how many chunks or blocks go through the stages."""
    return facts.blocks if facts.timeline else (facts.layout.chunks if facts.stale else 1)


def _stage_seconds(costs: CostModel, few: Facts, stage: int) -> float:
    """Give the seconds that a rank of a stage works, and waits for rows that nothing hides."""
    rank, pieces = stage * few.parts, _pieces(few)
    segments = segments_of(few, stage)
    groups = segments[-1].group + 1
    compute = crossing = 0.0
    # blocks are equal by their work, so that the first stands for all
    again = 1.0 - 1.0 / (groups if few.blocks == 1 else few.blocks)
    for verb, times in ((Verb.FORWARD, 1.0), (Verb.BACKWARD, 1.0), (Verb.AGAIN, again)):
        action = Action(verb, stage, block=0 if few.timeline else None)
        compute += times * pieces * (costs.compute(rank, action) + costs.overhead(rank, action))
    at = RankBlock(few, rank, 0, Pass.TRAIN)
    for segment in segments:
        exchange = LETTERS.get(segment.arrives)
        if exchange is not None and exchange.takes_part(at):
            for back in (False, True):
                post = exchange.crossing(Verb.POST, at, segment.first, 0, back=back)
                crossing += (1.0 if back else 1.0 + again) * pieces * costs.transfer(rank, post)
    total = max(compute, crossing) if overlaps(few, stage) else compute + crossing
    total += _carried(costs, few, stage, rank)
    step = Action(Verb.STEP, stage)
    total += costs.compute(rank, step) + costs.overhead(rank, step)
    if few.layout.time * few.parts > 1:
        total += costs.transfer(rank, Action(Verb.REDUCE, stage))
    return total


def _carried(costs: CostModel, few: Facts, stage: int, rank: int) -> float:
    """Give the time of all chunks but the first of the states that a stage carries from run to run, and of their
    messages; and how long the last run waits until the first chunk of a layer has gone through all runs before it.
    """
    facts, peer, chunks = costs.facts, rank + few.parts * few.layout.layer, []
    for half in few.stage_halves(stage):
        layer = few.layer_at(half, HalfKind.TEMPORAL)
        if layer is not None and layer.along == Carry.option and layer.state != "weight":
            post = Action(Verb.POST, stage, 0, half, block=0, exchange=Carry.letter, peer=peer)
            cells = [Action(verb, stage, 0, half, half, block=0) for verb in (Verb.FORWARD, Verb.BACKWARD)]
            work = sum(costs.compute(rank, action) + costs.overhead(rank, action) for action in cells)
            chunks.append(work + len(cells) * costs.overhead(rank, post))
    runs = (facts.layout.time - 1) * few.carry_chunks / facts.carry_chunks
    return sum(chunks) * (few.carry_chunks - 1) * _pieces(few) + max(chunks, default=0.0) * runs
