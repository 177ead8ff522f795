"""`measure_quickly`: what this machine can do, measured in some seconds at the first plan that asks.

Rates are measured once, then kinds of layers, the most usual first, until the time is used up; a kind that is not
measured takes the middle of those that are. How ranks share the cores follows from layers with fewer threads, and
what a message between them costs is a constant. `calibrate` measures all of it, several times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from trisect.comm.cores import usable_cores
from trisect.errors import TrisectError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.ops.memory import free_bytes
from trisect.plan.cluster import DISTURBED, QUICK, Cluster, Device, Link
from trisect.train.machine.calibrate import BETWEEN, TURN, is_busy, others_now
from trisect.train.machine.kinds import GRAPHS, TIMELINES, Kind, kept_share, kind_of_model, solved
from trisect.train.machine.others import Others
from trisect.train.machine.rank import MOST_RANKS, overhead_references, overheads
from trisect.train.machine.rates import rate_measurements, rates_of
from trisect.train.machine.reference import sample_graph, sample_timeline
from trisect.train.processes.threads import limited_threads

LONGEST = 4.0  # seconds after which no further kind of layer is begun
_MODELS = ("gcn", "tm-gcn", "sage", "gat", "gcnii", "evolvegcn-o", "gin", "resgcn+", "gatv2")
_OF_TIMELINES = ("tm-gcn", "evolvegcn-o")
_WIDTH, _EPOCHS = 64, 2
# between ranks on two cores of a server, as `calibrate` found them: rows that ranks hand on, and what they wait
_INSIDE = Link(bandwidth=1.3e9, latency=1.4e-4, message=4e-5, copies=True)
# of the speed that it has with so many threads, a rank keeps this share while others use the memory too
_BESIDE_OTHERS = 0.9


@dataclass(frozen=True)
class Measured:
    """This machine as it was measured, the seconds that it took, and the cores that others took meanwhile."""

    cluster: Cluster
    seconds: float
    others: float | None


def measure_quickly(longest: float = LONGEST) -> Measured:
    """Measure this machine in this process, and return it as a cluster of one host.

    Raises:
        TrisectError: other programs use the cores.
    """
    # under torchrun, and where a program has set it, torch may have one thread
    with limited_threads(usable_cores()):
        return _measure(usable_cores(), longest)


def _measure(cores: int, longest: float) -> Measured:
    begin = time.perf_counter()
    taken = others_now()
    if is_busy(taken, cores):
        raise TrisectError(f"other programs use {taken:.1f} of {cores} cores")
    watch = Others()

    def require_time() -> None:
        if time.perf_counter() - begin > 2.0 * longest:
            raise TrisectError(f"it took more than {2.0 * longest:g} s")

    tiny, moving = overhead_references()
    half, step = overheads(tiny, tiny.in_turn([1])[0], moving, moving.in_turn([1])[0])
    times = {}
    for name, measure in rate_measurements().items():
        require_time()
        times[name] = measure()[0]
    device = Device(**rates_of(times), half=half, step=step, memory=free_bytes(torch.device("cpu"), bounded=False))
    cluster = Cluster("this machine", device, _INSIDE, BETWEEN, devices=cores, shares={1: 1.0}, source=QUICK)
    ranks = min(cores, MOST_RANKS)
    layers: dict[str, dict[int, tuple[float, ...]]] = {}
    kept: dict[str, tuple[float, ...]] = {}
    singles: list[float] = []
    for kind in _kinds():
        if layers and time.perf_counter() - begin > longest:
            break
        require_time()
        ways: list[list[int | None]] = [[None], [None, cores // ranks], [None]]
        runs = [reference.in_turn(way) for reference, way in zip(kind.references, ways, strict=True)]
        layers[kind.name] = {4 * kind.width: solved(cluster, kind, [run[0] for run in runs])}
        kept[kind.name] = kept_share([runs[1]], 1.0 / ranks)
        singles.append(runs[1][0].epoch / runs[1][1].epoch)
    single = min(1.0, max(1.0 / ranks, statistics.median(singles)))
    shares = {1: 1.0} if ranks == 1 else {1: 1.0, ranks: max(1.0 / ranks, _BESIDE_OTHERS * single)}
    device = replace(device, layers=layers, kept=kept, turn=TURN if ranks > 1 else 0.0)
    others = watch.cores()
    source = DISTURBED if is_busy(others, cores) else QUICK
    cluster = replace(cluster, device=device, shares=shares, single=single, source=source)
    return Measured(cluster, time.perf_counter() - begin, others)


def _kinds() -> Iterator[Kind]:
    graphs: list[Graph | Timeline] = [sample_graph(degree, _WIDTH, vertices) for vertices, degree in GRAPHS]
    timelines: list[Graph | Timeline] = [sample_timeline(degree, _WIDTH, vertices) for vertices, degree in TIMELINES]
    for name in _MODELS:
        kind = kind_of_model(name, timelines if name in _OF_TIMELINES else graphs, _WIDTH)
        yield replace(kind, references=[replace(reference, epochs=_EPOCHS) for reference in kind.references])
