"""`trisect check`: everything that would go wrong at the start, without starting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from trisect.cli.source import DataDirOption, LayoutOption, SetOption, find_config, sentence
from trisect.errors import ConfigError, LayoutError, TrisectError

if TYPE_CHECKING:
    from trisect.config import Config
    from trisect.plan.cluster import Cluster
    from trisect.plan.workload import Workload

Value = TypeVar("Value")


def check(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG.yaml", help="A configuration file, or the name of an example.")
    ],
    layout: LayoutOption = None,
    devices: Annotated[
        int | None, typer.Option("--devices", help="Check a run of so many processes, which need not fit here.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="The machines it would run on: a cluster file, or a preset like 8xa100. [default: this one]",
        ),
    ] = None,
    set_: SetOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also check whether a new run could be written there.")
    ] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Say all that would go wrong, before anything starts.

    The data are read and the model is outlined. Nothing is written, nothing is trained.
    """
    if devices is not None and devices < 1:
        raise ConfigError(f"--devices is {devices}; it must be at least 1.")
    from trisect.comm.world import world_from_environment
    from trisect.config import load_config
    from trisect.train import from_config
    from trisect.train.clusters import cluster_of
    from trisect.train.device import check_device, device_of_rank
    from trisect.train.planning import configured_workload
    from trisect.train.processes.launch import require_room
    from trisect.train.run.run_directory import RunDirectory
    from trisect.train.run.trackers import require_trackers
    from trisect.train.sizes import described_data, too_large_to_read

    problems: list[TrisectError] = []

    def attempt(action: Callable[[], Value]) -> Value | None:
        """Do one thing that may go wrong, and collect what is wrong with it."""
        try:
            return action()
        except TrisectError as error:
            # a later step may stumble over what an earlier one has said
            if str(error) not in map(str, problems):
                problems.append(error)
            return None

    _, source = find_config(config)
    settings = from_config.resolve(load_config(source, set_ or [], layout), data_dir)
    sentence("settings: sound")
    # a world that is not here needs no room and no devices here
    elsewhere = devices is not None or cluster is not None
    world = settings.layout.world
    if not settings.layout.auto and devices is None:
        sentence(f"layout: {world} rank{'s' if world > 1 else ''}")
    if world_from_environment() is None and not elsewhere:
        attempt(lambda: require_room(world))
    ranks_here = world if world_from_environment() is None else 1
    device = None if elsewhere else attempt(lambda: check_device(settings.train.device))
    if device is not None and attempt(lambda: device_of_rank(settings.train.device, ranks_here - 1)) is None:
        device = None
    if device is not None:
        sentence(f"device: {device}")
    if out is not None:
        attempt(lambda: RunDirectory.refuse_used(out))
    attempt(lambda: require_trackers(settings.train.track))
    machine = attempt(lambda: cluster_of(cluster, settings.train.device))
    sizes = attempt(lambda: described_data(settings)) or too_large_to_read(settings)
    workload = None
    if sizes is not None:
        sentence(
            f"data: {sizes.vertices:,} vertices, {sizes.edges:,} edges"
            + (f", {sizes.steps:,} steps" if sizes.steps > 1 else "")
            + f", {sizes.features:,} features, by their description; nothing was read"
        )
        workload = attempt(lambda: configured_workload(settings, sizes))
    elif settings.data.described is False:
        record = attempt(lambda: from_config.load_record(settings))
        if record is not None:
            sentence(from_config.describe_record(record))
            for note in from_config.data_notes(settings, record):
                sentence(note)
        data = None if record is None else attempt(lambda: from_config.data_of(settings, record))
        if data is not None:
            described = attempt(lambda: from_config.check_model(settings, data))
            if described is not None:
                sentence(described)
        if data is not None and not problems:
            workload = attempt(lambda: configured_workload(settings, data))
    if workload is not None and machine is not None and not problems:
        attempt(lambda: _check_plan(settings, workload, machine, devices, elsewhere=elsewhere))
    if problems:
        for problem in problems[:-1]:
            typer.echo(f"trisect: {problem}", err=True)
        raise problems[-1]
    sentence("Everything is ready to train." if not settings.data.described else "Everything is sound.")


def _shared_cores(cluster: Cluster, ranks: int) -> str | None:
    """Return a sentence where ranks of a CPU host are more than its cores."""
    from trisect.comm.cores import shared_cores

    sized = cluster.resized(ranks)
    return shared_cores(sized.ranks_on_host(ranks), sized.devices) if sized.is_cpu else None


# Worlds of more ranks are checked by a part of them that stands for all.
_MOST_RANKS = 512


def _check_plan(
    settings: Config, workload: Workload, cluster: Cluster, devices: int | None, *, elsewhere: bool
) -> None:
    """Make the plans and schedules of all ranks, and say what memory a rank needs; raise where that is too much."""
    from trisect.plan.build import schedule_of
    from trisect.plan.estimate import estimate
    from trisect.plan.memory import MemoryModel
    from trisect.plan.search import search, too_large
    from trisect.plan.timing import representative
    from trisect.schedule.validate import validate
    from trisect.train.clusters import local_cluster
    from trisect.train.memory_check import remedy, shortage, with_each_blocks

    layout = settings.layout
    if layout.auto or (devices is not None and layout.world == 1 and devices > 1):
        count = cluster.hosts * cluster.devices if devices is None else devices
        choice = search(workload, cluster, count, count=1)
        layout = choice.layout
        sentence(f"layout: {layout}, as the planner chooses for {count} devices of {cluster.name}")
    elif devices is not None and devices != layout.world:
        raise LayoutError(
            f"--devices is {devices}, but the layout {layout} has {layout.world} ranks; make them equal, or use"
            " layout: auto."
        )
    crowded = _shared_cores(cluster, layout.world)
    if crowded is not None:
        sentence(f"cores: {crowded}")
    memory = MemoryModel(workload)
    choices = [estimate(workload, each, cluster, memory, timed=False) for each in with_each_blocks(workload, layout)]
    expected = next((each for each in choices if each.fits), min(choices, key=lambda each: each.memory.total))
    layout = expected.layout if isinstance(layout.blocks, str) else layout
    plan = workload.plan(layout)
    few = plan if layout.world <= _MOST_RANKS else representative(plan, 8)
    schedule = schedule_of(few)
    validate(schedule)
    actions = sum(len(actions) for actions in schedule.ranks)
    part = "" if few is plan else f" ({few.layout.world} of them stand for all)"
    ranks = f"{layout.world:,} rank{'s' if layout.world > 1 else ''}{part}"
    sentence(f"schedule: {ranks}, {actions:,} actions an epoch, sound")
    mib = 2.0**20
    largest = ", ".join(f"{name} {size / mib:,.0f}" for name, size in expected.memory.largest())
    sentence(
        f"memory: about {expected.memory.total / mib:,.0f} MiB needed a rank, {expected.room / mib:,.0f} MiB free"
        f" (libraries {expected.memory.libraries / mib:,.0f}, {largest})"
    )
    if expected.launch:
        sentence(f"cut: about {expected.launch / mib:,.0f} MiB needed to cut the vertices, before the ranks start")
    if expected.fits:
        return
    # here, train asks the same before it begins, of all that is free
    if not elsewhere and shortage(workload, layout, local_cluster(settings.train.device, bounded=False)) is None:
        sentence("memory: that is tight; train would try it.")
        return
    fitting = remedy(workload, layout, cluster, devices or max(layout.world, cluster.devices))
    shared = ""
    if cluster.is_cpu and layout.world > cluster.devices and cluster.hosts == 1:
        shared = f" ({layout.world} ranks share the memory of {cluster.name}; --cluster names another)"
    raise LayoutError(f"A rank {too_large(expected)}{shared}; {fitting}.")
