"""`require_memory`: refuse a run that cannot fit the memory of its ranks, by the sizes of its data, before it begins.

What is compared with the free memory is less than the planner expects: files that ranks map together count once, rows
of other parts not at all (nothing was cut yet), nor snapshots, of which a run keeps what fits; and a quarter more than
what is free is let pass. So a run that fits is not refused.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from trisect.comm.world import world_from_environment
from trisect.config import TrainOptions
from trisect.errors import DataError, LayoutError, TrisectError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.models.source import ModelSource
from trisect.ops.memory import free_bytes
from trisect.plan.cluster import Cluster
from trisect.plan.estimate import estimate
from trisect.plan.memory import Memory, MemoryModel
from trisect.plan.parts import Parts, described_parts, effective_degree, equal_rows
from trisect.plan.quantities import show_size
from trisect.plan.search import layouts, worlds
from trisect.plan.timing import least_seconds
from trisect.plan.workload import Workload
from trisect.tasks import Task
from trisect.train.blocks import block_counts
from trisect.train.checks import is_cut
from trisect.train.clusters import local_cluster
from trisect.train.job import Job
from trisect.train.processes.memory import rss_bytes
from trisect.train.sizes import least_bytes, sizes_before_reading, sizes_of
from trisect.train.workloads import LOCALITY, DescribedData, workload_of_description
from trisect.views.plan import Plan

VARIABLE = "TRISECT_MEMORY_CHECK"
# A run is refused where it needs this much more than is free.
SLACK = 1.25
# Ranks of a host map these from the same files, and the code of libraries: beside it, a rank has so much of its own.
_MAPPED = ("features", "adjacency", "labels")
_LIBRARIES = 150 << 20
# A run on a device keeps these on its host.
_ON_HOST = ("libraries", "labels", "reading")


@dataclass(frozen=True)
class Shortage:
    """What a layout lacks: the bytes that it needs at least, those that are free, and what takes most of them."""

    needed: float
    free: int
    largest: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        unit, factor = ("GiB", 2.0**30) if self.needed >= 2**30 else ("MiB", 2.0**20)
        parts = ", ".join(f"{name} {size / factor:,.1f}" for name, size in self.largest)
        return f"needs about {self.needed / factor:,.1f} {unit}, and {self.free / factor:,.1f} are free ({parts})"


def checking() -> bool:
    """Say whether runs are compared with the free memory; `TRISECT_MEMORY_CHECK=0` switches that off."""
    return os.environ.get(VARIABLE, "1") != "0"


def shortage(workload: Workload, layout: Layout, cluster: Cluster, *, held: int = 0) -> Shortage | None:
    """Say what a layout lacks on one host of a cluster; None where it fits, or may fit.

    Args:
        held: bytes that this process has already, of which a run in one process takes no more.
    """
    model = MemoryModel(workload)
    lacking: list[Shortage] = []
    for choice in with_each_blocks(workload, layout):
        lack = _shortage(workload.plan(choice), model, cluster.resized(layout.world), held)
        if lack is None:
            return None
        lacking.append(lack)
    return min(lacking, key=lambda each: each.needed)


def with_each_blocks(workload: Workload, layout: Layout) -> list[Layout]:
    """Give the layout with each number of blocks that may be chosen for it."""
    if not isinstance(layout.blocks, str):
        return [layout]
    counts = block_counts(workload.training, layout.time) if workload.timeline else [1]
    return [replace(layout, blocks=count) for count in counts]


def _shortage(plan: Plan, model: MemoryModel, cluster: Cluster, held: int) -> Shortage | None:
    layout, device = plan.layout, cluster.device
    ranks = cluster.ranks_on_host(layout.world)
    stages = [replace(model.of_stage(plan, device, stage), snapshots=0.0) for stage in range(layout.layer)]
    heaviest = max(stages, key=lambda memory: memory.total)
    if not cluster.is_cpu:
        needed = max(memory.total - _sum(memory, _ON_HOST) for memory in stages)
    elif not is_cut(layout):
        needed = heaviest.total - min(held, _sum(heaviest, ("libraries", "reading", *_MAPPED)))
    else:
        own = [memory.total - _sum(memory, ("libraries", *_MAPPED)) + _LIBRARIES for memory in stages]
        own = [own[rank // layout.vertex % layout.layer] for rank in range(ranks)]
        needed = sum(own) + min(ranks, layout.vertex) * max(_sum(memory, _MAPPED) for memory in stages)
    if needed <= SLACK * device.memory:
        return None
    largest = list(heaviest.largest())
    if cluster.is_cpu and is_cut(layout):
        largest.append((f"libraries of {ranks} ranks", float(ranks * _LIBRARIES)))
    return Shortage(needed, device.memory, tuple(sorted(largest, key=lambda part: -part[1])[:3]))


def _sum(memory: Memory, names: tuple[str, ...]) -> float:
    return float(sum(getattr(memory, name) for name in names))


def remedy(workload: Workload, layout: Layout, cluster: Cluster, devices: int, *, all_devices: bool = False) -> str:
    """Say which layout would fit instead of one that does not, or that none does.

    Layouts of as many ranks are looked at first, then of the fewest; nothing is cut for it.

    Args:
        all_devices: whether there must be as many ranks as devices.
    """
    guessed = _with_guessed_parts(workload)
    memory = MemoryModel(guessed)
    counts = [devices] if all_devices else dict.fromkeys((layout.world, *worlds(devices)))
    for count in counts:
        fitting = []
        for each in layouts(guessed, [count], approximate=False):
            with suppress(LayoutError):
                fitting.append(estimate(guessed, each, cluster, memory, timed=False))
        fitting = [each for each in fitting if each.fits]
        if fitting:
            best = min(
                fitting,
                key=lambda each: least_seconds(guessed, guessed.plan(each.layout), cluster.resized(each.layout.world)),
            )
            return f"use the layout {best.layout}, which needs {show_size(best.memory.total)} a rank"
    return (
        f"no layout of {devices} device{'s' if devices > 1 else ''} fits; use more or larger devices, or make the model"
        " or the data smaller"
    )


def _with_guessed_parts(workload: Workload) -> Workload:
    """The same with the parts that were cut already, and all others as if their neighbours were spread alike."""
    cut_before = {count: parts for count, parts in workload._parts.items() if count > 1}
    degree = LOCALITY * sum(workload.entries) / workload.steps / workload.vertices
    if cut_before:
        count = max(cut_before)
        remote = sum(cut_before[count].remote) / len(cut_before[count].remote)
        degree = effective_degree(remote / workload.vertices, count)

    def cut(count: int) -> Parts:
        return described_parts(workload.vertices, workload.steps, count, degree)

    return replace(workload, parts_of=cut, _parts=dict(workload._parts))


def checked_data(job: Job, read: Callable[[], Graph | Timeline]) -> Callable[[], Graph | Timeline]:
    """Compare a job with the free memory by the sizes of its data; where only the data tell them, when they are read.

    Under torchrun the first rank of each host compares.
    """
    world = world_from_environment()
    if not checking() or job.layout.auto or (world is not None and world.local_rank != 0):
        return read
    sizes = None if job.config is None else sizes_before_reading(job.config)
    if sizes is not None:
        require_reading(sizes)
        require_memory(job.model, sizes, job.task, job.options, job.layout)
        return read

    def read_and_compare() -> Graph | Timeline:
        data = read()
        require_memory(job.model, sizes_of(data), job.task, job.options, job.layout)
        return data

    return read_and_compare


def require_reading(sizes: DescribedData | None) -> None:
    """Raise a DataError where not even the arrays of the data fit this process, which has to read and cut them."""
    free = free_bytes(torch.device("cpu"), bounded=False)
    if sizes is not None and checking() and least_bytes(sizes) > SLACK * free:
        raise DataError(
            f"The data have {sizes.vertices:,} vertices and {sizes.edges:,} edges, which take at least "
            f"{show_size(least_bytes(sizes))} to be read, and {show_size(free)} are free; make them smaller, or use a "
            f"larger machine ({VARIABLE}=0 lets it try)."
        )


def require_memory(maker: ModelSource, sizes: DescribedData, task: Task, options: TrainOptions, layout: Layout) -> None:
    """Raise a LayoutError where a layout cannot fit this machine, with the layout that would."""
    world = world_from_environment()
    # TRISECT_MEMORY bounds what is planned with, and not what there is
    cluster = local_cluster(options.device, bounded=False)
    if world is not None and world.local_size < world.size:
        cluster = replace(cluster, hosts=-(-world.size // world.local_size), devices=world.local_size)
    try:
        workload = described_workload(maker, sizes, task, options, cluster.device.memory)
        if layout.layer > len(workload.layers) or layout.vertex * layout.chunks > sizes.vertices:
            return  # refused where the ranks are made
        lacking = shortage(_apart(workload), layout, cluster, held=rss_bytes())
    except TrisectError:  # of a model or a layout that does not fit the data: that is said where they meet
        return
    except Exception as error:  # a layer of the user's, perhaps; an estimate must not end a run
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        warnings.warn(f"the memory of the run was not estimated ({words}); it goes on without.", stacklevel=2)
        return
    if lacking is None:
        return
    devices = max(layout.world, cluster.hosts * cluster.devices) if world is None else world.size
    fitting = remedy(workload, layout, cluster, devices, all_devices=world is not None)
    raise LayoutError(f"The layout {layout} {lacking}; {fitting} ({VARIABLE}=0 lets it try).")


def described_workload(
    maker: ModelSource, sizes: DescribedData, task: Task, options: TrainOptions, free: int
) -> Workload:
    """Give the workload of data of which only the sizes are known.

    Args:
        free: bytes; a quarter of them may be taken by the first layer's sums over neighbours in all steps.
    """
    split = task.options().get("split")
    share = split[0] if isinstance(split, (list, tuple)) and split and isinstance(split[0], (int, float)) else 0.7
    sizes = replace(sizes, train=float(share) if share < 1 else min(1.0, share / sizes.steps))
    pairs = task.name in ("link-prediction", "edge-classification")
    workload = workload_of_description(maker, sizes, options, pairs=pairs)
    kept = sizes.steps * sizes.vertices * sizes.features * options.dtype.itemsize <= free // 4
    return replace(workload, aggregated=workload.aggregated and (kept or not workload.timeline), _parts={})


def _apart(workload: Workload) -> Workload:
    """The same as if parts were equal and read nothing of each other."""

    def cut(count: int) -> Parts:
        return Parts(equal_rows(workload.vertices, count), (0,) * workload.steps, measured=False, boundary=0.0)

    return replace(workload, parts_of=cut, _parts={})
