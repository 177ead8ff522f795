"""What one rank measures of itself: rates, calls, kinds of layers, libraries. `calibrate` starts it as a run's."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from trisect.comm.cores import usable_cores
from trisect.comm.world import World, world_from_environment
from trisect.data.generators.generate import generate
from trisect.errors import ConfigError
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.plan.cluster import Cluster, Device, Link
from trisect.plan.memory import MemoryModel
from trisect.plan.timing import epoch_seconds
from trisect.settings.writing import to_json
from trisect.train.fit import fit
from trisect.train.machine.kinds import Kinds
from trisect.train.machine.rates import rate_measurements, rates_of
from trisect.train.machine.reference import Reference, sample_graph
from trisect.train.machine.timed import Timed, settle
from trisect.train.processes.faults import reporting_failures
from trisect.train.processes.memory import peak_rss_bytes

MOST_RANKS = 8  # that are trained with together; more share the cores in the same way
_EPOCHS = 8  # after which a run takes no more memory
_HALF, _STEP = ("half",), ("step",)


def measure(folder: Path, world: World) -> None:
    """Measure, and leave the numbers in a file of the folder."""
    cores = usable_cores()
    # peaks of memory only grow: what takes little is measured first
    tiny, moving = overhead_references()
    alone = tiny.in_turn([1])[0].memory
    libraries = _measure_libraries()
    kinds = Kinds(cores // min(cores, MOST_RANKS))
    times = settle(
        {
            _HALF: partial(tiny.in_turn, [1]),
            _STEP: partial(moving.in_turn, [1]),
            **rate_measurements(),
            **kinds.measurements(),
        }
    )
    half, step = overheads(tiny, times[_HALF], moving, times[_STEP])
    values: dict[str, Any] = {**rates_of(times), "half": half, "step": step, "libraries": libraries}
    link = Link(bandwidth=1e30)
    rated = kinds.rated(Cluster("this machine", Device(**values, memory=1 << 60), link, link), times)
    values |= {"layers": rated.ratios, "kept": rated.kept, "single": rated.single, "alone": alone, "doubt": times.doubt}
    (folder / f"{world.rank}.json").write_text(to_json(values))


def overhead_references() -> tuple[Reference, Reference]:
    """Return trainings of next to nothing: on a graph, whose time is that of halves, and on a timeline, of steps."""
    graph = Graph.from_record(generate("community", vertices=64))  # type: ignore[arg-type]
    timeline = Timeline.from_record(generate("evolving", vertices=100, steps=24))  # type: ignore[arg-type]
    return (
        Reference("gcn", {"layers": 16, "hidden": 4}, graph),
        Reference("wd-gcn", {"layers": 2, "hidden": 4}, timeline),
    )


def overheads(tiny: Reference, on_graph: Timed, moving: Reference, on_timeline: Timed) -> tuple[float, float]:
    """Return the seconds that half a layer, and each further step, cost whatever their size."""
    half = _own_seconds(on_graph) / _units(tiny, 1.0, 0.0)
    fixed, each = _units(moving, half, 0.0), _units(moving, 0.0, 1.0)
    return half, max(1e-6, (_own_seconds(on_timeline) - fixed) / each)


def _measure_libraries() -> int:
    """Bytes that a rank takes beyond what the model of its memory counts: libraries, and what lies between tensors.

    It has a run directory, as a rank has, since what writes it takes memory too; and trains until no more is taken.
    """
    reference = Reference("gcn", {"layers": 3, "hidden": 64}, sample_graph(20.0, 64, 20_000))
    with tempfile.TemporaryDirectory(prefix="trisect-reference-") as folder:
        fit(reference.model, reference.data, epochs=_EPOCHS, out=Path(folder, "run"), **reference.options)
    workload = reference.workload()
    nothing = Device(flops=1.0, gather={4: 1.0}, elementwise=1.0, memory=1 << 60, libraries=1)
    return peak_rss_bytes() - round(MemoryModel(workload).of(workload.plan(Layout()), nothing).total)


def _own_seconds(timed: Timed) -> float:
    return sum(timed.ranks[0].values())


def _units(reference: Reference, half: float, step: float) -> float:
    """The overhead of an epoch where half a layer, or a step, takes so many seconds and work takes none."""
    fast = Device(flops=1e30, gather={4: 1e30}, elementwise=1e30, memory=1 << 60, half=half, step=step)
    link = Link(bandwidth=1e30)
    workload = reference.workload()
    return epoch_seconds(workload, workload.plan(Layout()), Cluster("overhead alone", fast, link, link)).overhead


def main(folder: Path) -> None:
    """Be a rank that `calibrate` has started."""
    world = world_from_environment()
    if world is None:
        raise ConfigError("RANK is not set; trisect.train.machine.rank is started by trisect plan --calibrate alone.")
    with reporting_failures(world):
        measure(folder, world)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
