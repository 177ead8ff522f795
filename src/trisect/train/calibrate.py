"""`calibrate`: what this machine can do, measured in under a minute: `trisect plan --calibrate`.

One rank that is started as that of a run measures rates; then kinds of layers, and ranks that share the cores, are
trained for a few epochs (`train.reference`). Other programs can only slow a measurement down, and come and go: every
rate is measured several times, spread over seconds, and the best counts.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trisect.comm.world import World, world_from_environment
from trisect.data.generators.generate import generate
from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.ops.fused import dense
from trisect.ops.memory import empty, free_bytes
from trisect.ops.spmm.aggregate import aggregate
from trisect.plan.cluster import Cluster, Device, Link
from trisect.plan.memory import MemoryModel
from trisect.plan.timing import epoch_seconds
from trisect.train.fit import fit
from trisect.train.memory_check import VARIABLE
from trisect.train.processes.faults import reporting_failures
from trisect.train.processes.launch import launch
from trisect.train.processes.memory import peak_rss_bytes
from trisect.train.reference import Reference, measure_sharing, rate_layers, sample_graph

Say = Callable[[str], None]

WIDTHS = (4, 16, 64, 128)  # numbers of a row
# bytes of a table that lies in the last cache, of one that lies in memory, and of one that lies in both
_NEAR, _FAR, _BETWEEN_BOTH = 2 << 20, 96 << 20, 24 << 20
_DEGREE = 20
_TRAFFIC = 24 << 20  # bytes that one measurement of a gather reads
_HIDDEN = 64
_ROWS = 20_000
_PASSES, _ROUNDS = 4, 3
_MOST_RANKS = 8  # that are trained with together; more share the cores in the same way
# until a rank that waited has a core again: twice as many ranks as cores, on Linux, were from 2.0 to 2.3 ms
_TURN = 2.1e-3
# of an emulated or a real network nothing is measured here: what a gigabit carries
_BETWEEN = Link(bandwidth=1.18e8, latency=1e-4, message=1e-4)


def calibrate(say: Say = lambda sentence: None) -> Cluster:
    """Measure this machine, and give it as a cluster of one host."""
    with _unchecked():
        return _calibrate(say)


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


def _calibrate(say: Say) -> Cluster:
    cores = os.cpu_count() or 1
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="trisect-calibrate-") as folder:
        launch([sys.executable, "-m", "trisect.train.calibrate", folder], 1, folders=[])
        measured = json.loads(Path(folder, "0.json").read_text())
    single, alone = measured.pop("single"), measured.pop("alone")
    device = Device(**measured, memory=free_bytes(torch.device("cpu"), bounded=False))
    inside, share = Link(bandwidth=4e9, latency=1e-6, message=2e-5, copies=True), {1: 1.0}
    cluster = Cluster("this machine", device, inside, _BETWEEN, devices=cores, shares=share, source="measured")
    if cores > 1:
        ranks = min(cores, _MOST_RANKS)
        sharing = measure_sharing(cluster, ranks, alone, single)
        inside = replace(inside, bandwidth=sharing.bandwidth, message=sharing.message, latency=sharing.latency)
        shares = {**share, ranks: sharing.share}
        device = replace(device, turn=_TURN, joined=sharing.joined, stale=sharing.stale)
        cluster = replace(cluster, device=device, inside=inside, shares=shares, single=max(single, sharing.share))
    say(f"Measured in {time.perf_counter() - begin:.0f} s: {_describe(device, inside, cluster.shares)}")
    return cluster


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
    threads = cores // min(cores, _MOST_RANKS)  # that each of several ranks has
    half, step, alone = _measure_overhead()
    libraries = _measure_libraries()
    link = Link(bandwidth=1e30)
    values = {**measure_rates(), "half": half, "step": step, "libraries": libraries}
    device = Device(**values, memory=1 << 60)
    rated = rate_layers(Cluster("this machine", device, link, link), threads)
    values |= {"layers": rated.ratios, "kept": rated.kept, "single": rated.single, "alone": alone}
    (folder / f"{world.rank}.json").write_text(json.dumps(values))


def _best(call: Callable[[], object]) -> float:
    """The least seconds of some calls, after one that is not counted."""
    call()
    times = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def measure_rates() -> dict[str, Any]:
    """Give the rates of this process: gathers by width from memory and from the cache, products, elementwise work."""
    work: dict[Any, Callable[[], object]] = {
        (width, size): _gathering(width, size) for width in WIDTHS for size in (_NEAR, _FAR, _BETWEEN_BOTH)
    }
    x, weight = torch.ones(_ROWS, _HIDDEN), torch.ones(_HIDDEN, _HIDDEN)
    wide, out = empty((_FAR // 4,)), empty((_FAR // 4,))
    wide.fill_(1.0)
    least: dict[Any, float] = {}
    for _ in range(_PASSES):
        times = {key: _best(call) for key, call in work.items()}
        times["product"] = _best(lambda: dense(x, weight))
        times["elementwise"] = _best(lambda: torch.mul(wide, 2.0, out=out))
        least = {key: min(seconds, least.get(key, seconds)) for key, seconds in times.items()}
    near, far, both = (
        {4 * width: _TRAFFIC / least[width, size] for width in WIDTHS} for size in (_NEAR, _FAR, _BETWEEN_BOTH)
    )
    return {
        "flops": 2.0 * _ROWS * _HIDDEN * _HIDDEN / least["product"],
        "elementwise": 2.0 * wide.numel() * 4 / least["elementwise"],
        "gather": far,
        "gather_cached": near,
        "cache": _cache_of(near, far, both),
    }


def _gathering(width: int, size: int) -> Callable[[], object]:
    """A sum over neighbours that lie anywhere in a table of so many bytes, on buffers as runs have them."""
    generator = torch.Generator().manual_seed(0)
    columns, rows = size // (4 * width), _TRAFFIC // (4 * width * _DEGREE)
    indices = torch.randint(columns, (rows, _DEGREE), generator=generator).sort(1).values.flatten().to(torch.int32)
    pointers = torch.arange(0, rows * _DEGREE + 1, _DEGREE)
    adjacency = Adjacency.from_csr(pointers, indices, torch.ones(rows * _DEGREE), columns)
    x = empty((columns, width)).fill_(1.0)
    return lambda: aggregate(x, adjacency)


def _cache_of(near: Mapping[int, float], far: Mapping[int, float], both: Mapping[int, float]) -> int:
    """Give the bytes of the last cache that a process has for itself, by the share of a table that it seems to hold."""
    shares = []
    for width in near:
        slow, fast = 1.0 / far[width], 1.0 / near[width]
        if slow > fast:
            shares.append(min(1.0, max(0.0, (slow - 1.0 / both[width]) / (slow - fast))))
    share = sorted(shares)[len(shares) // 2] if shares else 0.5
    return max(1 << 20, int(share * _BETWEEN_BOTH))


def _measure_overhead() -> tuple[float, float, int]:
    """Seconds that half a layer, and a step of a timeline, cost whatever their size: epochs on next to nothing. And the
    bytes that the first of them took, on a static graph.
    """
    graph = Graph.from_record(generate("community", vertices=64))  # type: ignore[arg-type]
    tiny = Reference("gcn", {"layers": 16, "hidden": 4}, graph)
    half = _own_seconds(tiny) / _units(tiny, 1.0, 0.0)
    alone = peak_rss_bytes()
    timeline = Timeline.from_record(generate("evolving", vertices=100, steps=24))  # type: ignore[arg-type]
    moving = Reference("wd-gcn", {"layers": 2, "hidden": 4}, timeline)
    fixed, each = _units(moving, half, 0.0), _units(moving, 0.0, 1.0)
    return half, max(1e-6, (_own_seconds(moving) - fixed) / each), alone


def _measure_libraries() -> int:
    """Bytes that a rank takes beyond what the model of its memory counts: libraries, and what lies between tensors.

    It has a run directory, as a rank has: what writes it takes memory too.
    """
    reference = Reference("gcn", {"layers": 3, "hidden": _HIDDEN}, sample_graph(_DEGREE, _HIDDEN, _ROWS))
    with tempfile.TemporaryDirectory(prefix="trisect-reference-") as folder:
        fit(reference.model, reference.data, epochs=2, out=Path(folder, "run"), **reference.options)
    workload = reference.workload()
    nothing = Device(flops=1.0, gather={4: 1.0}, elementwise=1.0, memory=1 << 60, libraries=1)
    return peak_rss_bytes() - round(MemoryModel(workload).of(workload.facts(Layout()), nothing).total)


def _own_seconds(reference: Reference) -> float:
    return sum(reference.timed(threads=1).ranks[0].values())


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
        raise ConfigError("RANK is not set; trisect.train.calibrate is started by trisect plan --calibrate alone.")
    with reporting_failures(world):
        _rank(folder, world)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
