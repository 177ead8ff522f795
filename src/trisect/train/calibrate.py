"""`calibrate`: what this machine can do, measured in under a minute: `trisect plan --calibrate`.

Rates are measured by ranks that are started as those of a run: one alone with all cores, then as many as there are
cores at the same time, so that what they take from each other is part of the numbers.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trisect.comm.ledger import Ledger
from trisect.comm.mesh import connect, disconnect
from trisect.comm.transport import Transport
from trisect.comm.world import World, world_from_environment
from trisect.config import TrainOptions
from trisect.data.generators.generate import generate
from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.models.source import NamedModel
from trisect.ops.fused import dense
from trisect.ops.memory import free_bytes
from trisect.ops.spmm.aggregate import aggregate
from trisect.plan.cluster import Cluster, Device, Link
from trisect.plan.timing import epoch_seconds
from trisect.train.fit import fit
from trisect.train.processes.faults import reporting_failures
from trisect.train.processes.launch import launch
from trisect.train.processes.memory import peak_rss_bytes
from trisect.train.workloads import workload_of

Say = Callable[[str], None]

WIDTHS = (4, 16, 64, 128)  # numbers of a row
_FAR, _NEAR = 48 << 20, 1 << 18  # bytes of a table that lies in memory, and of one in the cache
_ENTRIES = 400_000
_HIDDEN = 64
_ROWS = 20_000
_MESSAGES = (1 << 10, 1 << 22)
_TIMEOUT = 60.0
# of an emulated or a real network nothing is measured here: what a gigabit carries
_BETWEEN = Link(bandwidth=1.18e8, latency=1e-4, message=1e-4)


def calibrate(say: Say = lambda sentence: None) -> Cluster:
    """Measure this machine, and give it as a cluster of one host."""
    cores = os.cpu_count() or 1
    begin = time.perf_counter()
    alone = _measured(1)[0]
    shared = _measured(cores) if cores > 1 else [alone]
    together = {name: statistics.mean(each["rates"][name] for each in shared) for name in shared[0]["rates"]}
    share = {1: 1.0}
    if cores > 1:
        ratios = [together[name] / alone["rates"][name] for name in together]
        share[cores] = min(1.0, statistics.geometric_mean(ratios))
    rates = alone["rates"]
    device = Device(
        flops=rates["flops"],
        gather={4 * width: rates[f"far {width}"] for width in WIDTHS},
        gather_cached={4 * width: rates[f"near {width}"] for width in WIDTHS},
        cache=1 << 20,
        elementwise=rates["elementwise"],
        memory=free_bytes(torch.device("cpu"), bounded=False),
        half=alone["half"],
        step=alone["step"],
        libraries=alone["libraries"],
    )
    link = shared[0]["link"] if cores > 1 else {"bandwidth": 4e9, "latency": 1e-5, "message": 5e-5}
    inside = Link(**link, copies=True)
    say(f"Measured in {time.perf_counter() - begin:.0f} s: {_describe(device, inside, share)}")
    return Cluster("this machine", device, inside, _BETWEEN, devices=cores, shares=share, source="measured")


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


def _measured(ranks: int) -> list[dict[str, Any]]:
    """Start so many ranks that measure at the same time, and give what each found."""
    with tempfile.TemporaryDirectory(prefix="trisect-calibrate-") as folder:
        launch([sys.executable, "-m", "trisect.train.calibrate", folder], ranks, folders=[])
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]


# What a rank does


def _rank(folder: Path, world: World) -> None:
    found: dict[str, Any] = {}
    if world.size == 1:
        found["half"], found["step"] = _measure_overhead()
        # of a run on next to nothing: what is left is libraries
        found["libraries"] = peak_rss_bytes()
    transport = None
    if world.size > 1:
        mesh = connect(Layout(vertex=world.size), torch.device("cpu"), _TIMEOUT)
        transport = Transport(mesh, Ledger())
        transport.gather(None)
    found["rates"] = measure_rates()
    if transport is not None:
        transport.gather(None)
        found["link"] = _measure_link(transport, world)
    (folder / f"{world.rank}.json").write_text(json.dumps(found))
    if transport is not None:
        transport.gather(None)
        disconnect()


def _best(call: Callable[[], object], rounds: int = 4) -> float:
    """The least seconds of some calls, after one that is not counted; about a tenth of a second each."""
    call()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def measure_rates() -> dict[str, float]:
    """Give the rates of this process: gathers by width from memory and from the cache, products, elementwise work."""
    generator = torch.Generator().manual_seed(0)
    rates = {}
    for width in WIDTHS:
        for name, size in (("far", _FAR), ("near", _NEAR)):
            columns = size // (4 * width)
            degree = 20
            rows = max(1, _ENTRIES // degree)
            # far apart, and in ascending order, as the rows of a matrix are
            first = torch.randint(columns, (rows, 1), generator=generator)
            apart = torch.arange(degree)[None] * (columns // degree)
            indices = ((first + apart) % columns).sort(1).values.flatten().to(torch.int32)
            pointers = torch.arange(0, rows * degree + 1, degree)
            adjacency = Adjacency.from_csr(pointers, indices, torch.ones(rows * degree), columns)
            x = torch.ones(columns, width)
            seconds = _best(lambda x=x, adjacency=adjacency: aggregate(x, adjacency))  # type: ignore[misc]
            rates[f"{name} {width}"] = rows * degree * width * 4 / seconds
    x, weight = torch.ones(_ROWS, _HIDDEN), torch.ones(_HIDDEN, _HIDDEN)
    rates["flops"] = 2.0 * _ROWS * _HIDDEN * _HIDDEN / _best(lambda: dense(x, weight), 8)
    wide = torch.ones(_FAR // 4)
    out = torch.empty_like(wide)
    rates["elementwise"] = 2.0 * _FAR / _best(lambda: torch.mul(wide, 2.0, out=out))
    return rates


def _measure_link(transport: Transport, world: World) -> dict[str, float]:
    """Seconds of a small and of a large exchange with the next rank, as a line."""
    seconds = []
    for size in _MESSAGES:
        outgoing = [torch.ones(0 if peer == world.rank else 1, size // 4) for peer in range(world.size)]
        received = [torch.empty_like(rows) for rows in outgoing]
        times = []
        for _ in range(40):
            begin = time.perf_counter()
            transport.begin_swap(outgoing, received, "halo", 0).wait()
            times.append(time.perf_counter() - begin)
        seconds.append(statistics.median(times[5:]))
    peers = world.size - 1
    small, large = seconds
    bandwidth = peers * (_MESSAGES[1] - _MESSAGES[0]) / max(large - small, 1e-7)
    return {"bandwidth": bandwidth, "latency": small * 0.1, "message": small * 0.45}


def _measure_overhead() -> tuple[float, float]:
    """Seconds that half a layer, and a step of a timeline, cost whatever their size: epochs on next to nothing."""
    options = TrainOptions(epochs=12, eval_every=1000, checkpoint_every=None)
    graph = Graph.from_record(generate("community", vertices=64))  # type: ignore[arg-type]
    half = _overhead_of(NamedModel("gcn", {"layers": 16, "hidden": 4}, 0), graph, options, 1.0, 0.0)
    timeline = Timeline.from_record(generate("evolving", vertices=100, steps=24))  # type: ignore[arg-type]
    model = NamedModel("wd-gcn", {"layers": 2, "hidden": 4}, 0)
    seconds = _best_epoch(model, timeline, options)
    fixed = _units(model, timeline, options, half, 0.0)
    each = _units(model, timeline, options, 0.0, 1.0)
    return half, max(1e-6, (seconds - fixed) / each)


def _overhead_of(model: NamedModel, data: Graph | Timeline, options: TrainOptions, half: float, step: float) -> float:
    return _best_epoch(model, data, options) / _units(model, data, options, half, step)


def _best_epoch(model: NamedModel, data: Graph | Timeline, options: TrainOptions) -> float:
    settings = {"epochs": options.epochs, "eval_every": options.eval_every, **model.options}
    best = fit(model.name, data, "node-classification", **settings).summary["seconds_per_epoch"]["best"]
    return float(best)


def _units(model: NamedModel, data: Graph | Timeline, options: TrainOptions, half: float, step: float) -> float:
    """The overhead of an epoch where half a layer, or a step, takes so many seconds and work takes none."""
    fast = Device(flops=1e30, gather={4: 1e30}, elementwise=1e30, memory=1 << 60, half=half, step=step)
    link = Link(bandwidth=1e30)
    cluster = Cluster("overhead alone", fast, link, replace(link))
    workload = workload_of(model, data, "node-classification", options)
    return epoch_seconds(workload, workload.facts(Layout()), cluster).overhead


def main(folder: Path) -> None:
    """Be a rank that `calibrate` has started."""
    world = world_from_environment()
    if world is None:
        raise ConfigError("RANK is not set; trisect.train.calibrate is started by trisect plan --calibrate alone.")
    with reporting_failures(world):
        _rank(folder, world)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
