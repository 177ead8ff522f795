"""Reference runs: short trainings whose time is known after them, by which the cost model's own guess is corrected.

A rate (bytes or operations a second) says how fast a machine can be; a layer is slower, since it does more than its
formula counts (norms, gates, softmax, noise), and since an epoch's memory is cold. Each kind of layer is therefore
trained a few epochs, on a small graph, on one of more vertices, and on one of more entries besides: three times, from
which three ratios follow, of what it costs whatever the size, of its rows, and of its entries; and with fewer threads,
which shows how much of its speed it keeps. What ranks take from each other, and how long a message needs, are the
numbers with which the simulated epoch of a reference is as long as the real one.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trisect.config import TrainOptions
from trisect.data.generators.generate import generate
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout, parse_layout
from trisect.nn.models.source import NamedModel
from trisect.noise import Noise
from trisect.plan.build import schedule_of
from trisect.plan.cluster import PAIRS, Cluster
from trisect.plan.costs import CostModel
from trisect.plan.timing import epoch_seconds
from trisect.plan.work import kind_of
from trisect.plan.workload import Workload
from trisect.schedule.action import Action, Verb
from trisect.tasks import LinkPrediction, TaskContext
from trisect.train.fit import fit
from trisect.train.loop import NoRecorder, Trainer
from trisect.train.processes.memory import peak_rss_bytes
from trisect.train.processes.threads import limited_threads
from trisect.train.run.run_directory import RunDirectory
from trisect.train.setup import Setup
from trisect.train.workloads import workload_of

_EPOCHS, _MORE_EPOCHS, _PASSES = 4, 12, 2
_WIDTHS = (16, 64)
_GRAPHS = ((3_000, 3.0), (16_000, 3.0), (16_000, 15.0))  # vertices and degree
_TIMELINES = ((1_000, 1.0), (4_000, 1.0), (4_000, 4.0))
_STATIC = ("gcn", "gcnii", "sage", "resgcn+", "gin", "gat", "gatv2")
_APART = "gcnii"  # on a timeline that is cut by time
_CUT = "gcnii"
_STALE = "gcnii"  # as stages that chunks go through
_DYNAMIC = ("wd-gcn", "tm-gcn", "evolvegcn-o", "evolvegcn-h")
_HALVINGS = 12
_SLOWEST, _SLOWEST_BYTE = 2e-3, 4e-9  # seconds of a message, and of each of its bytes
_LEAST, _MOST = 0.05, 50.0  # no kind is so much faster or slower than its rates; what says so was disturbed
_FORWARD, _BACKWARD = Verb.FORWARD.value, Verb.BACKWARD.value
_NODES, _LINKS = "node-classification", {"name": "link-prediction", "eval_negatives": 1}


@dataclass(frozen=True)
class Reference:
    """A training of a few epochs, one of which is not counted: model, data, task and layout."""

    model: str
    options: dict[str, Any]
    data: Graph | Timeline
    task: Any = _NODES
    layout: str = ""
    epochs: int = _EPOCHS

    def workload(self) -> Workload:
        """Give what the planner knows of it."""
        return workload_of(NamedModel(self.model, dict(self.options), 0), self.data, self.task, TrainOptions())

    def timed(self, threads: int | None = None) -> Timed:
        """Train it, and give the time of an epoch by what ranks did, the first epoch left out.

        Args:
            threads: of a single rank; None: all that it may have.
        """
        if not self.layout:
            return self.in_turn([threads])[0]
        settings: dict[str, Any] = {"epochs": 1 + self.epochs, "eval_every": 10_000, **self.options}
        with tempfile.TemporaryDirectory(prefix="trisect-reference-") as folder:
            out = Path(folder, "run")
            done = fit(self.model, self.data, self.task, self.layout, out=out, checkpoint_every=None, **settings)
            run = RunDirectory.reopen(out)
            seconds = [float(record["seconds"]) for record in run.metrics()]
            ranks = []
            for rank in run.ranks():
                timer = _Timer()
                for event in run.events(rank):
                    timer.event(**event)
                ranks.append(timer.by_verb())
        return Timed(tuple(ranks), seconds[1:], max(done.summary["memory"]["peak_rss_bytes"]))

    def in_turn(self, threads: Sequence[int | None]) -> list[Timed]:
        """Train it in this process, an epoch with each of these numbers of threads (None: all) after the other."""
        options = TrainOptions(eval_every=10_000, checkpoint_every=None)
        setup = Setup.of(NamedModel(self.model, dict(self.options), 0), self.data, self.task, options)
        trainer, timers = Trainer(setup, options, NoRecorder()), [_Timer() for _ in threads]
        for epoch in range(1, 2 + self.epochs):
            for timer, limit in zip(timers, threads, strict=True):
                trainer.recorder = timer
                with limited_threads(limit):
                    begin = time.perf_counter()
                    trainer.train_epoch(epoch)
                    timer.seconds.append(time.perf_counter() - begin)
        return [Timed((timer.by_verb(),), timer.seconds[1:], peak_rss_bytes()) for timer in timers]


@dataclass(frozen=True)
class Timed:
    """What a reference took: for each rank the seconds of an epoch by the letter of what was done; whole epochs; and
    the bytes of the rank that took most.
    """

    ranks: tuple[Mapping[str, float], ...]
    epochs: Sequence[float]
    memory: int

    @property
    def epoch(self) -> float:
        """Give the seconds of an epoch that nothing disturbed much."""
        return low(self.epochs)


class _Timer(NoRecorder):
    """Adds up the seconds of actions, by epoch and letter."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._by_epoch: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        if "epoch" in fields and not fields.get("evaluation"):
            letter = name.lstrip("0123456789")[:1]
            self._by_epoch[int(fields["epoch"])][letter] += seconds

    def by_verb(self) -> dict[str, float]:
        later = [sums for epoch, sums in self._by_epoch.items() if epoch > 1]
        letters = {letter for sums in later for letter in sums}
        return {letter: low([sums[letter] for sums in later]) for letter in letters}


def low(values: Sequence[float]) -> float:
    """Give the lower third: what other programs disturb is longer, and what is shortest is luck."""
    return sorted(values)[len(values) // 3]


# Kinds of layers


@dataclass(frozen=True)
class Rated:
    """What kinds of layers take beyond their rates.

    Attributes:
        ratios: by kind and width, as `Device.layers` has them; `kept`: by kind, as `Device.kept` has it.
        single: the share of its speed that the kind in the middle keeps with fewer threads.
    """

    ratios: dict[str, dict[int, tuple[float, ...]]]
    kept: dict[str, tuple[float, float]]
    single: float


def rate_layers(cluster: Cluster, threads: int) -> Rated:
    """Train each kind of layer with all threads, and the widest of each with so many."""
    kinds, cores = list(_references()), os.cpu_count() or 1
    # other programs come and go: all of it is trained several times, and of each the shortest counts
    every = [[_timed_all(references, threads, width) for _, width, references in kinds] for _ in range(_PASSES)]
    ratios: dict[str, dict[int, tuple[float, ...]]] = {}
    kept: dict[str, tuple[float, float]] = {}
    shares = []
    for (kind, width, references), *passes in zip(kinds, *every, strict=True):
        best = [_shortest([run[0] for run in runs]) for runs in zip(*passes, strict=True)]
        ratios.setdefault(kind, {})[4 * width] = _solved(cluster, kind, width, references, best)
        if width == _WIDTHS[-1]:
            wide = [one[1] for one in passes]
            kept[kind] = _kept(wide, threads / cores)
            shares.append(min(1.0, statistics.mean(more.epoch / fewer.epoch for more, fewer in wide)))
    device = replace(cluster.device, layers=ratios)
    ratios[PAIRS], kept[PAIRS] = _rate_pairs(replace(cluster, device=device), threads)
    return Rated(ratios, kept, statistics.median(shares))


def _kept(pairs: Sequence[Sequence[Timed]], least: float) -> tuple[float, float]:
    """The share of its speed that a kind keeps with fewer threads, each way, from runs with all threads and with fewer
    in turn; no less than that of the threads.
    """
    forward, backward = (
        statistics.mean(more.ranks[0][letter] / fewer.ranks[0][letter] for more, fewer in pairs)
        for letter in (_FORWARD, _BACKWARD)
    )
    return min(1.0, max(least, forward)), min(1.0, max(least, backward))


def _timed_all(references: Sequence[Reference], threads: int, width: int) -> list[list[Timed]]:
    """Train the references of a kind with all threads, and the second of the widest ones with so many besides."""
    more = [None, threads] if width == _WIDTHS[-1] else [None]
    return [reference.in_turn(more if k == 1 else [None]) for k, reference in enumerate(references)]


def _shortest(runs: Sequence[Timed]) -> Timed:
    """Of runs of the same on one rank: the least of everything."""
    letters = {letter: min(run.ranks[0][letter] for run in runs) for letter in runs[0].ranks[0]}
    return Timed((letters,), [min(run.epoch for run in runs)], runs[0].memory)


def _references() -> Iterator[tuple[str, int, list[Reference]]]:
    for width in _WIDTHS:
        graphs = [sample_graph(degree, width, vertices) for vertices, degree in _GRAPHS]
        for name in _STATIC:
            yield _kind(name, {"layers": 3, "hidden": width}, graphs, width)
        timelines = [sample_timeline(degree, width, vertices) for vertices, degree in _TIMELINES]
        for name in _DYNAMIC:
            yield _kind(name, {"layers": 3, "hidden": width}, timelines, width)


def _kind(
    name: str, options: dict[str, Any], data: Sequence[Graph | Timeline], width: int
) -> tuple[str, int, list[Reference]]:
    references = [Reference(name, options, each) for each in data]
    return _main_kind(references[0]), width, references


def _main_kind(reference: Reference) -> str:
    kinds = [kind_of(layer) for layer in reference.workload().layers]
    return max(set(kinds), key=kinds.count)


def sample_graph(degree: float, width: int, vertices: int) -> Graph:
    """Generate a graph to train on."""
    return Graph.from_record(generate("community", vertices=vertices, degree=degree, features=width))  # type: ignore[arg-type]


def sample_timeline(degree: float, width: int, vertices: int, steps: int = 10) -> Timeline:
    """Generate a timeline to train on."""
    record = generate("evolving", vertices=vertices, steps=steps, degree=degree, features=width)
    smoothing = {"kind": "edge-life", "length": 5}
    return Timeline.from_record(record, smoothing=smoothing)  # type: ignore[arg-type]


def _solved(
    cluster: Cluster, kind: str, width: int, references: Sequence[Reference], timed: Sequence[Timed]
) -> tuple[float, ...]:
    """From the times on three graphs, the ratios of rows, entries and calls, forward and backward."""
    equations: dict[str, list[list[float]]] = {_FORWARD: [], _BACKWARD: []}
    for reference, one in zip(references, timed, strict=True):
        workload, measured = reference.workload(), one.ranks[0]
        for letter, rows in equations.items():
            base, *parts = (
                _predicted(workload, cluster, kind, width, letter, asked)
                for asked in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
            )
            rows.append([measured[letter] - base, *(part - base for part in parts)])
    return (*_three_unknowns(*equations[_FORWARD]), *_three_unknowns(*equations[_BACKWARD]))


def _three_unknowns(small: list[float], wide: list[float], dense: list[float]) -> tuple[float, float, float]:
    """Solve time = rows·r + entries·e + calls·c: e from the entries, r from the vertices, c from what is left.

    Where a ratio would be out of bounds (the times were disturbed), it is held there.
    """
    entries = _bounded((dense[0] - wide[0]) / max(1e-12, dense[2] - wide[2]))
    longer = wide[0] - small[0] - entries * (wide[2] - small[2])
    rows = _bounded(longer / max(1e-12, wide[1] - small[1]))
    rest = small[0] - rows * small[1] - entries * small[2]
    return rows, entries, _bounded(rest / max(1e-12, small[3]))


def _bounded(ratio: float) -> float:
    return min(_MOST, max(_LEAST, ratio))


def _predicted(
    workload: Workload, cluster: Cluster, kind: str, width: int, letter: str, asked: Sequence[float]
) -> float:
    """The seconds of an epoch's cells, forward or backward, with these ratios for one kind and 1 for all others."""
    nothing = 1e-12
    ratios: tuple[float, ...] = tuple(max(ratio, nothing) for ratio in asked) * 2
    device = replace(cluster.device, layers={kind: {4 * width: ratios}})
    return seconds_of(workload, replace(cluster, device=device), Layout(), letter)


def seconds_of(workload: Workload, cluster: Cluster, layout: Layout, letters: str) -> float:
    """Give the seconds of the first rank's actions with these letters, as the cost model has them."""
    facts = workload.facts(layout)
    costs = CostModel(workload, facts, cluster, facts)

    def seconds(action: Action) -> float:
        return costs.compute(0, action) + costs.overhead(0, action)

    return sum(seconds(action) for action in schedule_of(facts).ranks[0] if action.verb.value in letters)


def _rate_pairs(cluster: Cluster, threads: int) -> tuple[dict[int, tuple[float, ...]], tuple[float, float]]:
    """The time that a loss on pairs takes beyond what its model does: from few pairs a row and from many, and from the
    time that drawing alone takes; and what it keeps of its speed with fewer threads.
    """
    few, many = (
        Reference(
            "wd-gcn", {"layers": 2, "hidden": 16}, sample_timeline(4.0, 16, 6_000), {**_LINKS, "negatives": negatives}
        )
        for negatives in (1, 5)
    )
    passes = [(few.in_turn([None]), many.in_turn([None, threads])) for _ in range(_PASSES)]
    timed = [_shortest([runs[0] for runs in column]) for column in zip(*passes, strict=True)]
    workloads = [reference.workload() for reference in (few, many)]
    width = 4 * workloads[0].pair_channels
    nothing = 1e-12

    def predicted(workload: Workload, letter: str, *asked: float) -> float:
        ratios: tuple[float, ...] = tuple(max(ratio, nothing) for ratio in asked) * 2
        device = replace(cluster.device, layers={**cluster.device.layers, PAIRS: {width: ratios}})
        return seconds_of(workload, replace(cluster, device=device), Layout(), letter)

    solved: list[float] = []
    drawing = _drawing_seconds(few.data)
    for letter in (_FORWARD, _BACKWARD):
        base, rows, pairs, drawn = (
            [predicted(workload, letter, *asked) for workload in workloads]
            for asked in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
        )
        by_draw = drawing / (drawn[0] - base[0]) if letter == _FORWARD else 1.0
        left = [
            one.ranks[0][letter] - before - by_draw * (draws - before)
            for one, before, draws in zip(timed, base, drawn, strict=True)
        ]
        by_pair = _bounded((left[1] - left[0]) / ((pairs[1] - base[1]) - (pairs[0] - base[0])))
        by_row = _bounded((left[0] - by_pair * (pairs[0] - base[0])) / (rows[0] - base[0]))
        solved += [by_row, by_pair, _bounded(by_draw)]
    return {width: tuple(solved)}, _kept([runs for _, runs in passes], threads / (os.cpu_count() or 1))


def _drawing_seconds(data: Graph | Timeline) -> float:
    """The least seconds that drawing the pairs of an epoch takes, one for each that exists."""
    bound = LinkPrediction().bind(data, TaskContext(0))
    times = []
    for epoch in range(1, 2 + _EPOCHS):
        begin = time.perf_counter()
        for step in bound.steps("train"):
            bound.draw(step, Noise(0, epoch))
        times.append(time.perf_counter() - begin)
    return min(times)


# Several ranks


@dataclass(frozen=True)
class Sharing:
    """What ranks that share a host's cores take from each other.

    Attributes:
        share: of a lone rank's speed that each of the ranks has.
        bandwidth: bytes a second that a rank hands to another, with what the other has to do to read them there.
        message: seconds that each post or wait costs; `latency`: seconds until a message is there, beyond that.
        stale: seconds that half a layer costs besides, in a chunk that reads history.
        joined: bytes that a rank takes besides, since it is one of several.
    """

    share: float
    bandwidth: float
    message: float
    latency: float
    stale: float
    joined: int


def measure_sharing(cluster: Cluster, ranks: int, alone: int, single: float) -> Sharing:
    """Train with several ranks, each of which has its share of the host's cores.

    Args:
        alone: bytes that one rank takes by itself, on a static graph of next to nothing.
        single: the share of a lone rank's speed that it has with as many threads as one of the ranks.
    """
    options, graph = {"layers": 8, "hidden": 64}, sample_graph(10.0, 64, vertices=40_000)
    even = f"vertex={ranks}"
    # ranks that send next to nothing: what is left of a post is Python, and of the epoch what a message needs
    idle = Reference("gcn", {"layers": 8, "hidden": 4}, sample_graph(4.0, 8, vertices=512), layout=even)
    resting = idle.timed()
    message = _posting(resting) / waits_of(idle)
    joined = max(0, resting.memory - alone)
    cluster = replace(cluster, inside=replace(cluster.inside, message=message), shares={1: 1.0, ranks: single})
    latency = _fitting(idle, partial(_with_latency, cluster), 0.0, _SLOWEST, resting.epoch)
    cluster = _with_latency(cluster, latency)
    # ranks that exchange next to nothing, beside one that does all of it
    data = sample_timeline(3.0, 32, 16_000, steps=max(10, 3 * ranks))
    one = Reference(_APART, {"layers": 3, "hidden": 32}, data, epochs=_MORE_EPOCHS)
    many = replace(one, layout=f"time={ranks}")
    alternating = [(one.timed().epoch, many.timed().epoch) for _ in range(_PASSES)]
    alone_best, beside_best = (min(column) for column in zip(*alternating, strict=True))
    # of the time that the simulation gives one rank, whatever that is
    wanted = beside_best / alone_best * _simulated(one, cluster)
    share = 1.0 / _fitting(many, partial(_with_slower, cluster, ranks), 1.0, 2.0 * ranks, wanted)
    cluster = replace(cluster, shares={1: 1.0, ranks: share}, single=max(share, single))
    # ranks that read many rows of each other
    parts = Reference(_CUT, options, graph, layout=even, epochs=_MORE_EPOCHS)
    bandwidth = 1.0 / _fitting(parts, partial(_with_seconds_a_byte, cluster), 1e-11, _SLOWEST_BYTE, parts.timed().epoch)
    cluster = _with_seconds_a_byte(cluster, 1.0 / bandwidth)
    # stages that chunks go through
    piped = f"layer={ranks},chunks={4 * ranks}"
    pipeline = Reference(_STALE, options, sample_graph(4.0, 64, vertices=16_000), layout=piped, epochs=_MORE_EPOCHS)
    stale = _fitting(pipeline, partial(_with_stale, cluster), 0.0, _SLOWEST, pipeline.timed().epoch)
    return Sharing(share, bandwidth, message, latency, stale, joined)


def _with_slower(cluster: Cluster, ranks: int, times: float) -> Cluster:
    return replace(cluster, shares={1: 1.0, ranks: 1.0 / times})


def _with_seconds_a_byte(cluster: Cluster, seconds: float) -> Cluster:
    return replace(cluster, inside=replace(cluster.inside, bandwidth=1.0 / seconds))


def _with_stale(cluster: Cluster, seconds: float) -> Cluster:
    return replace(cluster, device=replace(cluster.device, stale=seconds))


def _with_latency(cluster: Cluster, seconds: float) -> Cluster:
    return replace(cluster, inside=replace(cluster.inside, latency=seconds))


def _fitting(
    reference: Reference, with_number: Callable[[float], Cluster], least: float, most: float, seconds: float
) -> float:
    """Give the number, between two bounds, with which the simulated epoch takes so many seconds.

    Args:
        with_number: gives the cluster; the epoch grows with the number.
    """
    workload = reference.workload()
    facts = workload.facts(parse_layout(reference.layout))
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        if epoch_seconds(workload, facts, with_number(middle)).total < seconds:
            least = middle
        else:
            most = middle
    return (least + most) / 2


def _simulated(reference: Reference, cluster: Cluster) -> float:
    workload = reference.workload()
    return epoch_seconds(workload, workload.facts(Layout()), cluster).total


def _posting(timed: Timed) -> float:
    return statistics.mean(rank["P"] for rank in timed.ranks)


def waits_of(reference: Reference) -> int:
    """Say how often a rank waits for others in an epoch."""
    actions = schedule_of(reference.workload().facts(parse_layout(reference.layout))).ranks[0]
    return sum(action.verb is Verb.WAIT for action in actions)
