"""`calibrate`: what this machine can do, measured in about a minute: `trisect plan --calibrate`.

One rank that is started as that of a run measures rates and kinds of layers; then ranks that share the cores are
trained for a few epochs. All of it is repeated until two times agree (`timed`), and what others took of the cores
meanwhile is counted (`others`): a calibration that was disturbed says so, now and in every plan that rests on it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trisect.comm.world import World, world_from_environment
from trisect.data.generators.generate import generate
from trisect.errors import ConfigError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.ops.memory import free_bytes
from trisect.plan.cluster import DISTURBED, MEASURED, Cluster, Device, Link
from trisect.plan.memory import MemoryModel
from trisect.plan.timing import epoch_seconds
from trisect.train.fit import fit
from trisect.train.machine.kinds import Kinds
from trisect.train.machine.others import Others
from trisect.train.machine.rates import rate_measurements, rates_of
from trisect.train.machine.reference import Reference, sample_graph
from trisect.train.machine.sharing import measure_sharing
from trisect.train.machine.timed import Timed, settle
from trisect.train.memory_check import VARIABLE
from trisect.train.processes.faults import reporting_failures
from trisect.train.processes.launch import launch
from trisect.train.processes.memory import peak_rss_bytes

Say = Callable[[str], None]

_MOST_RANKS = 8  # that are trained with together; more share the cores in the same way
# until a rank that waited has a core again: twice as many ranks as cores, on Linux, were from 2.0 to 2.3 ms
_TURN = 2.1e-3
# of an emulated or a real network nothing is measured here: what a gigabit carries
_BETWEEN = Link(bandwidth=1.18e8, latency=1e-4, message=1e-4)
_LOOK = 0.4  # seconds for which others are watched before anything is measured
_BUSY, _DISTURBED = 0.15, 0.05  # shares of the cores that others take, before and meanwhile
_DOUBTFUL = 0.1  # share of the measurements that may have no two times that agree
_SLOWER = 1.2  # than an earlier calibration
_HALF, _STEP = ("half",), ("step",)


def calibrate(say: Say = lambda sentence: None, earlier: Cluster | None = None) -> Cluster:
    """Measure this machine, and give it as a cluster of one host.

    Args:
        earlier: what it was when it was measured before, with which it is compared.
    """
    with _unchecked():
        return _calibrate(say, earlier)


@contextmanager
def _unchecked() -> Iterator[None]:
    """Do not compare what is trained inside with the free memory: it is small, and comparing takes as long."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "0"
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def _calibrate(say: Say, earlier: Cluster | None) -> Cluster:
    cores = os.cpu_count() or 1
    watch = Others()
    time.sleep(_LOOK)
    if (taken := watch.cores() or 0.0) > _BUSY * cores:
        say(
            f"Other programs use {taken:.1f} of {cores} cores now: measuring takes longer, and finds this machine "
            "slower than it is; end them and calibrate again."
        )
    watch, begin = Others(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="trisect-calibrate-") as folder:
        launch([sys.executable, "-m", "trisect.train.machine.calibrate", folder], 1, folders=[])
        measured = json.loads(Path(folder, "0.json").read_text())
    single, alone, count, doubtful = (measured.pop(key) for key in ("single", "alone", "count", "doubtful"))
    device = Device(**measured, memory=free_bytes(torch.device("cpu"), bounded=False))
    inside, share = Link(bandwidth=4e9, latency=1e-6, message=2e-5, copies=True), {1: 1.0}
    cluster = Cluster("this machine", device, inside, _BETWEEN, devices=cores, shares=share, source=MEASURED)
    if cores > 1:
        ranks = min(cores, _MOST_RANKS)
        sharing = measure_sharing(cluster, ranks, alone, single)
        inside = replace(inside, bandwidth=sharing.bandwidth, message=sharing.message, latency=sharing.latency)
        shares = {**share, ranks: sharing.share}
        device = replace(device, turn=_TURN, joined=sharing.joined, stale=sharing.stale)
        cluster = replace(cluster, device=device, inside=inside, shares=shares, single=max(single, sharing.share))
        count, doubtful = count + len(sharing.times), doubtful + len(sharing.times.doubtful)
    say(f"Measured in {time.perf_counter() - begin:.0f} s: {_describe(device, inside, cluster.shares)}")
    disturbed = list(_disturbances((watch.cores() or 0.0) / cores, doubtful / count))
    for sentence in disturbed:
        say(sentence)
    if earlier is not None and (times := slower(cluster, earlier)) > _SLOWER:
        say(
            f"When it was calibrated before, this machine was {times:.1f} times as fast; if it is the same, something "
            "slows it down now, and it should be calibrated again later."
        )
    return replace(cluster, source=DISTURBED if disturbed else MEASURED)


def _disturbances(others: float, doubtful: float) -> Iterator[str]:
    """Say what makes the calibration doubtful: others' share of the cores, and the share of times that do not agree."""
    if others > _DISTURBED:
        yield (
            f"Others took {others:.0%} of the cores meanwhile (programs, or the host of a virtual machine): plans from "
            "this are doubtful; calibrate again when the machine is quiet."
        )
    if doubtful > _DOUBTFUL:
        yield (
            f"Of {doubtful:.0%} of the measurements no two agree: something disturbed them, and plans from this are "
            "doubtful; calibrate again when the machine is quiet."
        )


def slower(now: Cluster, earlier: Cluster) -> float:
    """Say how many times as long work takes as it did: of gathers, products, elementwise work and calls, the middle."""
    new, old = now.device, earlier.device
    ratios = [old.gather[width] / rate for width, rate in new.gather.items() if width in old.gather]
    return statistics.median(
        [*ratios, old.flops / new.flops, old.elementwise / new.elementwise, new.half / max(old.half, 1e-9)]
    )


def _describe(device: Device, inside: Link, share: Mapping[int, float]) -> str:
    narrow, wide = min(device.gather), max(device.gather)
    text = (
        f"products {device.flops / 1e9:.0f} GFLOP/s, gathers {device.gather[narrow] / 1e9:.1f} to "
        f"{device.gather[wide] / 1e9:.1f} GB/s, elementwise {device.elementwise / 1e9:.1f} GB/s, half a layer "
        f"{device.half * 1e6:.0f} us, between ranks {inside.bandwidth / 1e9:.1f} GB/s and {inside.message * 1e6:.0f} "
        "us a message"
    )
    if max(share) > 1:
        text += f"; each of {max(share)} ranks runs at {share[max(share)]:.2f} of the speed of one"
    return text + "."


# What a rank does


def _rank(folder: Path, world: World) -> None:
    cores = os.cpu_count() or 1
    graph = Graph.from_record(generate("community", vertices=64))  # type: ignore[arg-type]
    tiny = Reference("gcn", {"layers": 16, "hidden": 4}, graph)
    timeline = Timeline.from_record(generate("evolving", vertices=100, steps=24))  # type: ignore[arg-type]
    moving = Reference("wd-gcn", {"layers": 2, "hidden": 4}, timeline)
    # peaks of memory only grow: what takes little is measured first
    alone = tiny.in_turn([1])[0].memory
    libraries = _measure_libraries()
    kinds = Kinds(cores // min(cores, _MOST_RANKS))
    times = settle(
        {
            _HALF: partial(tiny.in_turn, [1]),
            _STEP: partial(moving.in_turn, [1]),
            **rate_measurements(),
            **kinds.measurements(),
        }
    )
    half = _own_seconds(times[_HALF]) / _units(tiny, 1.0, 0.0)
    fixed, each = _units(moving, half, 0.0), _units(moving, 0.0, 1.0)
    step = max(1e-6, (_own_seconds(times[_STEP]) - fixed) / each)
    values: dict[str, Any] = {**rates_of(times), "half": half, "step": step, "libraries": libraries}
    link = Link(bandwidth=1e30)
    rated = kinds.rated(Cluster("this machine", Device(**values, memory=1 << 60), link, link), times)
    values |= {"layers": rated.ratios, "kept": rated.kept, "single": rated.single, "alone": alone}
    values |= {"count": len(times), "doubtful": len(times.doubtful)}
    (folder / f"{world.rank}.json").write_text(json.dumps(values))


def _measure_libraries() -> int:
    """Bytes that a rank takes beyond what the model of its memory counts: libraries, and what lies between tensors.

    It has a run directory, as a rank has: what writes it takes memory too.
    """
    reference = Reference("gcn", {"layers": 3, "hidden": 64}, sample_graph(20.0, 64, 20_000))
    with tempfile.TemporaryDirectory(prefix="trisect-reference-") as folder:
        fit(reference.model, reference.data, epochs=2, out=Path(folder, "run"), **reference.options)
    workload = reference.workload()
    nothing = Device(flops=1.0, gather={4: 1.0}, elementwise=1.0, memory=1 << 60, libraries=1)
    return peak_rss_bytes() - round(MemoryModel(workload).of(workload.facts(Layout()), nothing).total)


def _own_seconds(timed: Timed) -> float:
    return sum(timed.ranks[0].values())


def _units(reference: Reference, half: float, step: float) -> float:
    """The overhead of an epoch where half a layer, or a step, takes so many seconds and work takes none."""
    fast = Device(flops=1e30, gather={4: 1e30}, elementwise=1e30, memory=1 << 60, half=half, step=step)
    link = Link(bandwidth=1e30)
    workload = reference.workload()
    return epoch_seconds(workload, workload.facts(Layout()), Cluster("overhead alone", fast, link, link)).overhead


def main(folder: Path) -> None:
    """Be a rank that `calibrate` has started."""
    world = world_from_environment()
    if world is None:
        raise ConfigError(
            "RANK is not set; trisect.train.machine.calibrate is started by trisect plan --calibrate alone."
        )
    with reporting_failures(world):
        _rank(folder, world)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
