"""`Estimate`: what a layout would cost: seconds, bytes by axis, memory by component; made before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trisect.layout import Layout
from trisect.partition.method import cut_bytes
from trisect.partition.timeline import MOST_EVENTS
from trisect.plan.build import schedule_of
from trisect.plan.cluster import Cluster
from trisect.plan.costs import CostModel
from trisect.plan.memory import Memory, MemoryModel
from trisect.plan.timing import Seconds, epoch_seconds, representative
from trisect.plan.volume import volume
from trisect.plan.workload import Workload
from trisect.schedule.action import Verb
from trisect.views.exchange import LETTERS
from trisect.views.plan import Plan

AXES = ("vertex", "layer", "time", "weights")
# Worlds of so many ranks have their bytes added up rank by rank; of larger ones a part stands for the rest.
_WHOLE = 64


@dataclass(frozen=True)
class Estimate:
    """What a layout would cost in an epoch.

    Attributes:
        layout: with its exchanges chosen.
        seconds: of an epoch, evaluation apart; None where it does not fit, or was not worked out.
        bytes_by_axis: that leave all ranks.
        exact_bytes: whether they are what the ledger will count: of data that are here, cut as they will be.
        memory: of the rank that takes most; `room`: what it may take.
        exact: whether the result is that of one process.
        launch: bytes that the cut of the vertices takes in the process that starts the ranks, before they do.
    """

    layout: Layout
    seconds: Seconds | None
    bytes_by_axis: dict[str, int]
    exact_bytes: bool
    memory: Memory
    room: int
    exact: bool
    launch: int = 0

    @property
    def fits(self) -> bool:
        """Say whether every rank has the memory that it needs."""
        return self.memory.total <= self.room

    @property
    def total_bytes(self) -> int:
        """All bytes of an epoch."""
        return sum(self.bytes_by_axis.values())

    def plain(self) -> dict[str, Any]:
        """Give the estimate as plain data."""
        seconds = self.seconds
        return {
            "layout": str(self.layout),
            "world": self.layout.world,
            "exact": self.exact,
            "fits": self.fits,
            "seconds_per_epoch": None if seconds is None else seconds.total,
            "seconds": None
            if seconds is None
            else {
                "compute": seconds.compute,
                "communication": seconds.communication,
                "bubble": seconds.bubble,
                "overhead": seconds.overhead,
            },
            "bytes_per_epoch": self.total_bytes,
            "bytes_by_axis": self.bytes_by_axis,
            "bytes_are_exact": self.exact_bytes,
            "memory_bytes": round(self.memory.total),
            "memory": self.memory.plain(),
            "memory_room_bytes": self.room,
            "launch_memory_bytes": self.launch,
        }


def is_exact(layout: Layout, *, timeline: bool) -> bool:
    """Say whether a layout gives the result of one process: no chunk reads history, and nothing is rounded."""
    return (timeline or layout.recipe is None) and layout.wire == "float32"


def estimate(
    workload: Workload, layout: Layout, cluster: Cluster, memory: MemoryModel | None = None, *, timed: bool = True
) -> Estimate:
    """Work out what a layout would cost.

    Args:
        memory: of the same workload, so that layers are looked at once.
        timed: whether seconds are worked out too.
    """
    return estimate_plan(workload, workload.plan(layout), cluster, memory, timed=timed)


def estimate_plan(
    workload: Workload, plan: Plan, cluster: Cluster, memory: MemoryModel | None = None, *, timed: bool = True
) -> Estimate:
    """Work out what plan would cost, which a run may have made from its data as they were cut."""
    model, layout = MemoryModel(workload) if memory is None else memory, plan.layout
    sized = cluster.resized(layout.world)
    seconds = epoch_seconds(workload, plan, sized) if timed else None
    moved, exact_bytes = bytes_by_axis(workload, plan, sized) if timed else (dict.fromkeys(AXES, 0), False)
    return Estimate(
        layout=plan.layout,
        seconds=seconds,
        bytes_by_axis=moved,
        exact_bytes=exact_bytes,
        memory=model.of(plan, sized.device),
        room=sized.memory_of_rank(layout.world),
        exact=is_exact(layout, timeline=workload.timeline),
        launch=_launch_bytes(workload, plan),
    )


def _launch_bytes(workload: Workload, plan: Plan) -> int:
    """What the partitioner takes; nothing where rows are turned into columns, or nothing is cut by vertex."""
    pieces = plan.parts if plan.timeline else plan.parts * plan.layout.chunks
    if pieces == 1 or plan.across == "redistribute":
        return 0
    entries = min(2 * workload.events, 2 * MOST_EVENTS) if workload.timeline else max(workload.entries)
    return cut_bytes(workload.vertices, entries, plan.layout.partition)


def bytes_by_axis(workload: Workload, plan: Plan, cluster: Cluster) -> tuple[dict[str, int], bool]:
    """Give the bytes that leave all ranks in an epoch by axis, and whether they are exact."""
    total = dict.fromkeys(AXES, 0)
    if plan.layout.world <= _WHOLE:
        for (axis, _), size in volume(plan, schedule_of(plan), workload.fetched_rows(plan.layout)).items():
            total[axis] += size
        return total, workload.parts(plan.parts).measured and not plan.fetches and not workload.described
    few = representative(plan, min(plan.layout.time, 8), stale=8)
    costs = CostModel(workload, plan, cluster, few)
    pieces = plan.layout.chunks / few.layout.chunks if plan.stale else 1.0
    factor = {
        "vertex": pieces * plan.parts * plan.layout.time / (few.parts * few.layout.time),
        "layer": pieces * plan.parts * plan.layout.time / (few.parts * few.layout.time),
        "weights": plan.parts * plan.layout.time / (few.parts * few.layout.time),
        # states cross between runs: one time fewer than there are runs
        "time": plan.parts * max(1, plan.layout.time - 1) / (few.parts * max(1, few.layout.time - 1)),
    }
    sums = dict.fromkeys(AXES, 0.0)
    for rank, actions in enumerate(schedule_of(few).ranks):
        for action in actions:
            if action.verb in (Verb.POST, Verb.REDUCE):
                axis = "weights" if action.verb is Verb.REDUCE else LETTERS[str(action.exchange)].axis
                sums[axis] += costs.bytes(rank, action)
    return {axis: round(sums[axis] * factor[axis]) for axis in AXES}, False
