"""What a run is expected to cost, from the plan that it was cut by: for plan.json, the summary and the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trisect.config import TrainOptions
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.partition.timeline import step_work
from trisect.plan.cluster import Cluster
from trisect.plan.estimate import Estimate, estimate_plan
from trisect.plan.memory import MemoryModel
from trisect.plan.parts import Parts
from trisect.plan.timing import expected_spans
from trisect.plan.workload import Workload
from trisect.schedule.simulate import Span
from trisect.shards.graph_files import Cut
from trisect.shards.timeline_files import TimelineCut
from trisect.train.setup import Setup
from trisect.train.workloads import common


@dataclass(frozen=True, eq=False)
class Expectation:
    """What is expected of a run, as plan.json and the summary have it.

    Attributes:
        memory: bytes of each rank at its peak.
        spans: what each rank does when in an epoch; None where there are too many ranks to be drawn.
        cluster: whose rates it rests on.
    """

    estimate: Estimate
    memory: tuple[int, ...]
    spans: list[list[Span]] | None
    cluster: Cluster

    def plain(self) -> dict[str, Any]:
        """Give the costs as plain data."""
        return {
            **self.estimate.plain(),
            "memory_by_rank": list(self.memory),
            "cluster": {"name": self.cluster.name, "source": self.cluster.source},
        }

    def schedule(self) -> list[list[str]] | None:
        """Give the spans of each rank as plain data: `action start seconds` each."""
        if self.spans is None:
            return None
        return [[f"{span.action} {span.start:.7g} {span.end - span.start:.4g}" for span in rank] for rank in self.spans]


def estimate_setup(
    setup: Setup, data: Graph | Timeline | Cut | TimelineCut, options: TrainOptions, cluster: Cluster
) -> Expectation:
    """Say what an epoch of a rank that is set up, and of all others with it, is expected to cost."""
    program = setup.program
    plan, task = program.plan, setup.task
    if isinstance(data, (Timeline, TimelineCut)):
        timeline = data if isinstance(data, Timeline) else data.timeline
        entries = tuple(step_work(timeline))
        events = int(timeline.src.numel())
    else:
        by_columns = any(layer.across == "redistribute" for layer in plan.layers)
        own = (
            program.shard.all_rows(range(1))[0].entries
            if by_columns
            else program.shard.part_graph(0).adjacency.entries * plan.parts
        )
        entries, events = (own,), own
    parts = Parts(plan.rows, plan.remote or (0,) * len(entries))
    workload = Workload(
        **{**common(program.model, task, options), "dtype": plan.dtype},
        vertices=plan.vertices,
        entries=entries,
        features=plan.layers[0].in_channels,
        events=events,
        parts_of=lambda count: parts,
        training=plan.runs[-1][-1].stop,
        work=entries,
        timeline=plan.timeline,
        aggregated=plan.aggregated,
        fixed=plan.fixed,
        symmetric=plan.symmetric,
        loss_from=task.steps("train").start if plan.timeline else 0,
    )
    memory, layout = MemoryModel(workload), plan.layout
    device = cluster.resized(layout.world).device
    by_stage = [round(memory.of_stage(plan, device, stage).total) for stage in range(layout.layer)]
    return Expectation(
        estimate_plan(workload, plan, cluster, memory),
        tuple(by_stage[rank // layout.vertex % layout.layer] for rank in range(layout.world)),
        expected_spans(workload, plan, cluster),
        cluster,
    )
