"""`plan`: which layout is best for a model and its data on so many devices; and what a run does with the answer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from trisect.config import Config, TrainOptions
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.models.source import ModelSource
from trisect.ops.memory import free_bytes
from trisect.plan.cluster import Cluster, Device, Link, read_cluster
from trisect.plan.estimate import Estimate, estimate
from trisect.plan.presets import find_cluster
from trisect.plan.quantities import show_seconds
from trisect.plan.search import PlanChoice, search
from trisect.plan.workload import Workload
from trisect.tasks import Task
from trisect.train.from_config import ConfiguredData
from trisect.train.job import named_model
from trisect.train.workloads import DescribedData, workload_of, workload_of_description

CLUSTER_VARIABLE = "TRISECT_CLUSTER"


def cluster_path() -> Path:
    """Say where the cluster file of this machine is kept."""
    asked = os.environ.get(CLUSTER_VARIABLE)
    if asked:
        return Path(asked).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "trisect" / "cluster.yaml"


def local_cluster() -> Cluster:
    """Give this machine as it was calibrated, or else a guess; its memory is what is free now."""
    path, free = cluster_path(), free_bytes(torch.device("cpu"))
    if path.exists():
        measured = read_cluster(path)
        return replace(measured, device=replace(measured.device, memory=free))
    cores = os.cpu_count() or 1
    device = Device(
        flops=4e10 * cores,
        gather={16: 2e9 * cores, 64: 4e9 * cores, 256: 6e9 * cores},
        gather_cached={16: 5e9 * cores, 64: 1e10 * cores, 256: 1.5e10 * cores},
        cache=1 << 20,
        elementwise=5e9 * cores,
        memory=free,
    )
    inside = Link(bandwidth=4e9, latency=3e-5, message=1e-4, copies=True)
    between = Link(bandwidth=1.25e8, latency=1e-4, message=1e-4)
    # one rank uses all cores with its threads; several divide them
    shares = {ranks: 1.0 / ranks for ranks in range(1, cores + 1)}
    return Cluster("this machine", device, inside, between, devices=cores, shares=shares, source="guessed")


def cluster_of(name: str | Path | Cluster | None) -> Cluster:
    """Give a cluster by name, file or value; None: this machine."""
    if isinstance(name, Cluster):
        return name
    return local_cluster() if name is None else find_cluster(str(name))


def plan(
    model: Any,
    graph: Any,
    task: str | Mapping[str, Any] | Task = "node-classification",
    *,
    devices: int | None = None,
    cluster: str | Path | Cluster | None = None,
    approximate: bool = False,
    **options: Any,
) -> PlanChoice:
    """Say what training a model on a graph or timeline would cost under each layout, the best first.

        >>> choice = trisect.plan("gcnii", graph, devices=8, cluster="8xa100", layers=32)    # doctest: +SKIP
        >>> choice.layout, choice.best[0].seconds.total, choice.reason                       # doctest: +SKIP

    Args:
        model, graph, task: as for `fit`.
        devices: how many there are; by default those of the cluster.
        cluster: the name of a preset, a cluster file, a `Cluster`; None: this machine.
        approximate: whether layouts are allowed whose result is not that of one process.
        **options: of training and of the model, as for `fit`.
    """
    from trisect.train.fit import as_data, model_maker  # which ends where this begins

    names = [field.name for field in fields(TrainOptions)]
    training = TrainOptions(**{key: options.pop(key) for key in names if key in options})
    workload = workload_of(model_maker(model, options, training.seed), as_data(graph), task, training)
    return plan_workload(workload, cluster, devices, approximate=approximate)


def plan_workload(
    workload: Workload,
    cluster: str | Path | Cluster | None = None,
    devices: int | None = None,
    *,
    approximate: bool = False,
) -> PlanChoice:
    """Search the layouts of a workload."""
    chosen = cluster_of(cluster)
    count = chosen.hosts * chosen.devices if devices is None else devices
    return search(workload, chosen, count, approximate=approximate)


def configured_workload(config: Config, data: Graph | Timeline | None = None) -> Workload:
    """Give the workload of a resolved configuration; `data` where they are read already."""
    maker, task = named_model(config), config.task.model_dump()
    described = described_data(config)
    if described is not None:
        pairs = config.task.name in ("link-prediction", "edge-classification")
        return workload_of_description(maker, described, config.train, pairs=pairs)
    read = ConfiguredData(config)() if data is None else data
    return workload_of(maker, read, task, config.train)


def described_data(config: Config) -> DescribedData | None:
    """Give the sizes of data that are described; None where they have a source."""
    if not config.data.described:
        return None
    smoothing = config.data.smoothing
    return DescribedData.of_section(config.data.options, 1 if smoothing is None else smoothing.length)


def choose_layout(
    maker: ModelSource, data: Graph | Timeline, task: Any, options: TrainOptions, devices: int
) -> tuple[Layout, str, PlanChoice]:
    """Give the best exact layout of this machine for so many ranks, and one sentence that says so."""
    choice = plan_workload(workload_of(maker, data, task, options), None, devices)
    layout = choice.layout
    name = "one rank" if layout.world == 1 else str(layout)
    seconds = choice.best[0].seconds
    expected = "" if seconds is None else f", about {show_seconds(seconds.total)} an epoch"
    return layout, f"Layout: {name}{expected}. {choice.reason}", choice


def estimate_run(workload: Workload, layout: Layout) -> Estimate | None:
    """Give what a run under a layout is expected to cost on this machine."""
    return estimate(workload, layout, local_cluster())
