"""A time that an epoch under a layout cannot be below, worked out without simulating its schedule.

The search simulates the layouts with the smallest bound first, and ends when no bound is below the times that it has.
"""

from __future__ import annotations

import math
from dataclasses import replace

from trisect.plan.build import schedule_of
from trisect.plan.cluster import Cluster
from trisect.plan.costs import CostModel
from trisect.plan.timing import representative
from trisect.plan.workload import Workload
from trisect.schedule.action import Action, Verb
from trisect.views.carry import Carry
from trisect.views.exchange import Work
from trisect.views.halo import Halo
from trisect.views.plan import Plan


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
