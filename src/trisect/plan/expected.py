"""What each rank is expected to do when in an epoch: the whole schedule, simulated with the cost model."""

from __future__ import annotations

from trisect.plan.build import schedule_of
from trisect.plan.cluster import Cluster
from trisect.plan.costs import CostModel
from trisect.plan.timing import costs_of
from trisect.plan.workload import Workload
from trisect.schedule.simulate import Span, simulate
from trisect.views.plan import Plan

# Of larger worlds nothing is drawn, and no more spans than this are kept of all ranks together.
MOST_RANKS = 64
MOST_SPANS = 20_000


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
