"""`plan`: which layout is best for a model and its data on so many devices; and what a run does with the answer."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from trisect.comm.cores import usable_cores
from trisect.comm.world import meet, world_from_environment
from trisect.config import Config, TrainOptions
from trisect.errors import ConfigError, LayoutError, TrisectError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout, parse_layout
from trisect.nn.models.source import ModelSource
from trisect.plan.cluster import DISTURBED, GUESSED, PRESET, QUICK, Cluster
from trisect.plan.quantities import show_seconds
from trisect.plan.search import PlanChoice, search
from trisect.plan.workload import Workload
from trisect.settings.synonyms import with_our_names
from trisect.settings.writing import to_json
from trisect.tasks import Task, make_task
from trisect.train.clusters import calibrated_cluster, cluster_of
from trisect.train.from_config import ConfiguredData
from trisect.train.job import named_model
from trisect.train.memory_check import require_reading
from trisect.train.sizes import described_data, sizes_before_reading, too_large_to_read
from trisect.train.workloads import DescribedData, workload_of, workload_of_description

Say = Callable[[str], None]

# Tasks whose loss reads pairs of vertices.
_OF_PAIRS = ("link-prediction", "edge-classification")
# what is said of a choice that rests on rates which may be far off
_RATES = {
    DISTURBED: " (by a calibration that was disturbed)",
    QUICK: " (by rates that were measured for some seconds)",
    GUESSED: " (by guessed rates; trisect plan --calibrate measures them)",
    PRESET: " (by a preset's rates)",
}


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
        model: as for `fit`.
        task: as for `fit`.
        graph: as for `fit`; or a description of data that are not here, with the keys of the configuration's `data`
            (`{"vertices": 10**9, "edges": 10**11}`).
        devices: how many there are; by default those of the cluster.
        cluster: the name of a preset, a cluster file, a `Cluster`; None: this machine.
        approximate: whether layouts are allowed whose result is not that of one process.
        **options: of training and of the model, as for `fit`.
    """
    from trisect.train.fit import as_data, model_maker  # which ends where this begins

    options = with_our_names(options, "the call")
    names = [field.name for field in fields(TrainOptions)]
    training = TrainOptions(**{key: options.pop(key) for key in names if key in options})
    if isinstance(graph, Mapping):
        graph = DescribedData.of_section(graph)
    graph = graph if isinstance(graph, DescribedData) else as_data(graph)
    maker = model_maker(model, options, training.seed, None if isinstance(graph, DescribedData) else graph)
    if isinstance(graph, DescribedData):
        workload = workload_of_description(maker, graph, training, pairs=make_task(task).name in _OF_PAIRS)
    else:
        workload = workload_of(maker, graph, task, training)
    return plan_workload(workload, cluster, devices, approximate=approximate, device=training.device)


def plan_workload(
    workload: Workload,
    cluster: str | Path | Cluster | None = None,
    devices: int | None = None,
    *,
    approximate: bool = False,
    device: str = "cpu",
    say: Say = lambda sentence: None,
) -> PlanChoice:
    """Search the layouts of a workload.

    Args:
        device: what ranks of this machine compute on.
        say: is told where this machine was measured for it.
    """
    if devices is not None and devices < 1:
        raise ConfigError(f"devices is {devices}; it must be at least 1.")
    chosen = calibrated_cluster(device, say) if cluster is None else cluster_of(cluster, device)
    count = chosen.hosts * chosen.devices if devices is None else devices
    return search(workload, chosen, count, approximate=approximate)


def configured_workload(config: Config, data: Graph | Timeline | DescribedData | None = None) -> Workload:
    """Give the workload of a resolved configuration; `data` where they are read already, or to be taken as described.

    Data that would not fit here when they are generated are not: their sizes follow from the generator's arguments.
    """
    maker, task = named_model(config), config.task.model_dump()
    if data is None:
        data = described_data(config) or too_large_to_read(config)
    if isinstance(data, DescribedData):
        return workload_of_description(maker, data, config.train, pairs=config.task.name in _OF_PAIRS)
    read = ConfiguredData(config)() if data is None else data
    return workload_of(maker, read, task, config.train)


def choose_layout(
    maker: ModelSource,
    data: Graph | Timeline,
    task: Any,
    options: TrainOptions,
    devices: int | None = None,
    *,
    all_devices: bool = False,
    hosts: int = 1,
    say: Say = lambda sentence: None,
) -> tuple[Layout, str]:
    """Give the best exact layout on this machine, and one sentence that says what it is and why.

    Args:
        devices: how many ranks there may be; None: a rank for each core, or for each device.
        all_devices: whether it must be so many, as under torchrun.
        hosts: on how many hosts like this one the ranks are.
        say: is told where this machine was measured for it.
    """
    workload = workload_of(maker, data, task, options)
    count = devices_here(options.device) if devices is None else devices
    cluster = calibrated_cluster(options.device, say)
    if hosts > 1:
        cluster = replace(cluster, hosts=hosts, devices=-(-count // hosts))
    choice = search(workload, cluster, count, all_devices=all_devices)
    layout = choice.layout
    seconds = choice.best[0].seconds
    rates = _RATES.get(cluster.source, "")
    expected = "" if seconds is None else f", about {show_seconds(seconds.total)} an epoch{rates}"
    name = "one rank" if layout.world == 1 else str(layout)
    reason = choice.reason[0].lower() + choice.reason[1:]
    started = f" of all {count} ranks that were started" if all_devices and count > 1 else ""
    return layout, f"Layout {name}{started}{expected}: {reason}"


def agreed_layout(
    maker: ModelSource,
    read: Callable[[], Graph | Timeline],
    task: Any,
    options: TrainOptions,
    devices: int | None,
    say: Say = lambda sentence: None,
) -> tuple[Layout, str]:
    """Choose a layout as `choose_layout` does; of the ranks of torchrun the first chooses, and the others are told.

    Args:
        read: gives the data; only the rank that chooses calls it.
        say: as for `choose_layout`.
    """
    world = world_from_environment()
    if world is None:
        return choose_layout(maker, read(), task, options, devices, say=say)
    # every rank comes by here, and finds what the first one left
    store = meet(world)
    if world.rank == 0:
        hosts = -(-world.size // world.local_size)
        try:
            layout, said = choose_layout(
                maker, read(), task, options, world.size, all_devices=True, hosts=hosts, say=say
            )
        except TrisectError as error:
            store.set(_PLANNED, to_json({"refused": str(error)}))
            raise
        store.set(_PLANNED, to_json({"layout": str(layout), "said": said}))
        return layout, said
    # reading the data may take the first one longer than ranks wait for each other later
    store.wait([_PLANNED], _LONGEST_PLANNING)
    told = json.loads(store.get(_PLANNED))
    if "refused" in told:
        raise LayoutError(f"Rank 0 chose no layout: {told['refused']}")
    return parse_layout(told["layout"]), str(told["said"])


_PLANNED = "layout"
_LONGEST_PLANNING = datetime.timedelta(hours=12)


def devices_here(device: str) -> int:
    """Say how many ranks this machine has room for: a core each, or a device each."""
    if device.startswith("cuda") and torch.cuda.is_available():
        return torch.cuda.device_count()
    return usable_cores()


def settle_layout(
    config: Config, read: Callable[[], Graph | Timeline], devices: int | None, say: Callable[[str], None]
) -> tuple[Config, Callable[[], Graph | Timeline]]:
    """Replace `layout: auto` by the layout that the planner picks; gives the data that were read for it, too.

    Args:
        devices: how many ranks there may be; None leaves a layout that is no `auto` as it is.
    """
    world = world_from_environment()
    if not config.layout.auto and devices is None:
        return config, read
    if not config.layout.auto and config.layout != Layout():
        raise ConfigError(
            f"--devices is {devices}, and layout is {config.layout}, which says how many ranks there are; give one of "
            "them, or layout: auto."
        )
    if world is not None and devices is not None and devices != world.size:
        raise ConfigError(f"--devices is {devices}, but {world.size} ranks were started; leave --devices out.")
    require_reading(sizes_before_reading(config))
    data = cache(read)
    layout, said = agreed_layout(named_model(config), data, config.task.model_dump(), config.train, devices, say)
    say(said)
    return config.model_copy(update={"layout": layout}), data
