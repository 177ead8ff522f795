"""Reference runs: short trainings whose time is known after them, by which the cost model's own guess is corrected.

A rate (bytes or operations a second) says how fast a machine can be; a layer is slower, since it does more than its
formula counts (norms, gates, softmax, noise), and since an epoch's memory is cold. Each kind of layer is therefore
trained a few epochs, on a small graph, on one of more vertices, and on one of more entries besides: three times, from
which three ratios follow, of what it costs whatever the size, of its rows, and of its entries. Nothing else is fitted.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trisect.config import TrainOptions
from trisect.data.generators.generate import generate
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout, parse_layout
from trisect.nn.models.source import NamedModel
from trisect.plan.build import schedule_of
from trisect.plan.cluster import PAIRS, Cluster
from trisect.plan.costs import CostModel
from trisect.plan.work import kind_of
from trisect.plan.workload import Workload
from trisect.schedule.action import Action, Verb
from trisect.train.fit import fit
from trisect.train.loop import NoRecorder
from trisect.train.processes.memory import peak_rss_bytes
from trisect.train.run.run_directory import RunDirectory
from trisect.train.workloads import workload_of

_EPOCHS = 6
_WIDTHS = (16, 64)
_STATIC = ("gcn", "gcnii", "sage", "resgcn+", "gin", "gat", "gatv2")
_CUT = ("gcnii", "gcn", "gat")
_DYNAMIC = ("wd-gcn", "tm-gcn", "evolvegcn-o", "evolvegcn-h")
_BETWEEN = 32
_SLOWEST = 3.0  # times, for what all threads do beyond what one thread shows
_LEAST, _MOST = 0.05, 50.0  # no kind is so much faster or slower than its rates; what says so was disturbed
_FORWARD, _BACKWARD = Verb.FORWARD.value, Verb.BACKWARD.value
_NODES, _LINKS = "node-classification", {"name": "link-prediction", "eval_negatives": 1}


@dataclass(frozen=True)
class Reference:
    """A training of a few epochs: model, data, task and layout."""

    model: str
    options: dict[str, Any]
    data: Graph | Timeline
    task: Any = _NODES
    layout: str = ""

    def workload(self) -> Workload:
        """Give what the planner knows of it."""
        return workload_of(NamedModel(self.model, dict(self.options), 0), self.data, self.task, TrainOptions())

    def timed(self, threads: int | None = None) -> Timed:
        """Train it, and give the time of an epoch by what ranks did, the first epoch left out.

        Args:
            threads: of a single rank; with one, seconds are those that it had a core.
        """
        settings: dict[str, Any] = {"epochs": _EPOCHS, "eval_every": 10_000, "threads": threads, **self.options}
        if not self.layout:
            timer = _Timer(processor=threads == 1)
            fit(self.model, self.data, self.task, recorder=timer, **settings)
            return Timed((timer.by_verb(),), timer.seconds[1:], peak_rss_bytes())
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
    """Adds up the seconds of actions, by epoch and letter.

    Args:
        processor: whether what counts is the time that the process had a core, which other programs do not lengthen.
    """

    def __init__(self, *, processor: bool = False) -> None:
        self.seconds: list[float] = []
        self._by_epoch: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._last = time.process_time() if processor else None

    def epoch(self, record: Mapping[str, Any]) -> None:
        self.seconds.append(float(record["seconds"]))

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        if self._last is not None:
            now = time.process_time()
            seconds, self._last = now - self._last, now
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


def layer_ratios(cluster: Cluster) -> dict[str, dict[int, tuple[float, ...]]]:
    """Train each kind of layer, and give how many times as long it takes as the rates of one thread say."""
    ratios: dict[str, dict[int, tuple[float, ...]]] = {}
    for kind, width, pair in _references():
        ratios.setdefault(kind, {})[4 * width] = _solved(cluster, kind, width, pair)
    device = replace(cluster.device, layers=ratios)
    ratios[PAIRS] = _pair_ratio(replace(cluster, device=device))
    return ratios


def _references() -> Iterator[tuple[str, int, list[Reference]]]:
    for width in _WIDTHS:
        graphs = [_graph(degree, width, vertices) for vertices, degree in ((3_000, 3.0), (12_000, 3.0), (12_000, 18.0))]
        for name in _STATIC:
            yield _kind(name, {"layers": 4, "hidden": width}, graphs, width)
        timelines = [
            _timeline(degree, width, vertices) for vertices, degree in ((2_000, 1.0), (8_000, 1.0), (8_000, 4.0))
        ]
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


def _graph(degree: float, width: int, vertices: int) -> Graph:
    return Graph.from_record(generate("community", vertices=vertices, degree=degree, features=width))  # type: ignore[arg-type]


def _timeline(degree: float, width: int, vertices: int) -> Timeline:
    record = generate("evolving", vertices=vertices, steps=10, degree=degree, features=width)
    smoothing = {"kind": "edge-life", "length": 5}
    return Timeline.from_record(record, smoothing=smoothing)  # type: ignore[arg-type]


def _solved(cluster: Cluster, kind: str, width: int, references: Sequence[Reference]) -> tuple[float, ...]:
    """From the times on three graphs, the ratios of rows, entries and calls, forward and backward."""
    equations: dict[str, list[list[float]]] = {_FORWARD: [], _BACKWARD: []}
    for reference in references:
        workload, measured = reference.workload(), reference.timed(threads=1).ranks[0]
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


def with_all_threads(cluster: Cluster) -> tuple[dict[str, dict[int, tuple[float, ...]]], dict[str, float]]:
    """Train each kind with all threads and with one, on larger data of a width between those of the ratios.

    Gives the ratios as all threads have them, since not every kind of work is divided as well as the rates are; and by
    kind the share of that speed that one thread has.
    """
    ratios, singles = dict(cluster.device.layers), {}
    graph, timeline = _graph(10.0, _BETWEEN, 20_000), _timeline(3.0, _BETWEEN, 12_000)
    for name in (*_STATIC, *_DYNAMIC):
        data = graph if name in _STATIC else timeline
        reference = Reference(name, {"layers": 4, "hidden": _BETWEEN}, data)
        kind, workload = _main_kind(reference), reference.workload()
        all_threads, one = reference.timed(), reference.timed(threads=1)
        slower = min(_SLOWEST, max(1.0 / _SLOWEST, all_threads.epoch / seconds_of(workload, cluster, Layout(), "FBU")))
        ratios[kind] = {
            width: (rows * slower, entries * slower, calls, rows_back * slower, entries_back * slower, calls_back)
            for width, (rows, entries, calls, rows_back, entries_back, calls_back) in ratios[kind].items()
        }
        singles[kind] = min(1.0, all_threads.epoch / one.epoch)
    return ratios, singles


def _pair_ratio(cluster: Cluster) -> dict[int, tuple[float, ...]]:
    """The time that a loss on pairs takes beyond what its model does."""
    reference = Reference("wd-gcn", {"layers": 2, "hidden": 16}, _timeline(4.0, 16, 8_000), _LINKS)
    workload, measured = reference.workload(), reference.timed(threads=1).ranks[0]
    even: dict[int, tuple[float, ...]] = {4: (1.0,) * 6}
    layers = {**cluster.device.layers, PAIRS: even}
    plain = replace(cluster, device=replace(cluster.device, layers=layers))
    ratios: list[float] = []
    for letter in (_FORWARD, _BACKWARD):
        without = seconds_of(replace(workload, pairs=0.0), plain, Layout(), letter)
        expected = seconds_of(workload, plain, Layout(), letter) - without
        ratios += [_bounded((measured[letter] - without) / expected), 1.0, 1.0]
    return {4 * workload.pair_channels: tuple(ratios)}


# Several ranks


@dataclass(frozen=True)
class Sharing:
    """What ranks that share a host's cores take from each other.

    Attributes:
        share: of a lone rank's speed that each of as many ranks as cores has.
        cuts: the same by kind of layer.
        single: the share that one thread has, while nobody else works.
        bandwidth: bytes a second that a rank hands to another; `message`: seconds that each post or wait costs;
            `latency`: seconds until a message is there, beyond that.
        turn: seconds until a rank that waited has a core again, where there are twice as many ranks as cores.
        joined: bytes that a rank takes besides, since it is one of several.
    """

    share: float
    cuts: dict[str, float]
    single: float
    bandwidth: float
    message: float
    latency: float
    turn: float
    joined: int


def measure_sharing(cluster: Cluster, cores: int, alone: int, singles: Mapping[str, float]) -> Sharing:
    """Train with as many ranks as cores, and with twice as many.

    Args:
        alone: bytes that one rank takes by itself, on a static graph of next to nothing.
        singles: by kind of layer, the share of a lone rank's speed that one of its threads has.
    """
    options, graph = {"layers": 8, "hidden": 64}, _graph(10.0, 64, vertices=40_000)
    even, crowded = f"vertex={cores}", f"vertex={2 * cores}"
    # ranks that send next to nothing: what is left of a post is Python
    idle = Reference("gcn", {"layers": 8, "hidden": 4}, _graph(4.0, 8, vertices=512), layout=even)
    resting = idle.timed()
    message = _posting(resting) / waits_of(idle)
    joined = max(0, resting.memory - alone)
    # ranks that exchange little beside what they compute: what they take from each other
    apart = Reference("wd-gcn", {"layers": 2, "hidden": 16}, _timeline(3.0, 16, 16_000), layout=f"time={cores}")
    lone = _working(apart, cluster) / singles[_main_kind(apart)]
    beside = min(1.0, lone / max(1e-9, apart.timed().epoch - 2 * waits_of(apart) * message))
    cuts = {kind: single * beside for kind, single in singles.items()}
    bandwidths, latencies = [], []
    for model in _CUT:
        reference = Reference(model, options, graph, layout=even)
        timed, waits = reference.timed(), waits_of(reference)
        posted, overhead = _posting(timed), waits * message
        bandwidths.append(_posted_bytes(reference, cluster) / max(1e-6, posted - overhead))
        working = _working(reference, cluster) / cuts[_main_kind(reference)]
        latencies.append(max(0.0, timed.epoch - working - posted - overhead) / waits)
    bandwidth, latency = statistics.median(bandwidths), statistics.median(latencies)
    crowd = Reference("gcnii", options, graph, layout=crowded)
    least = 2 * _working(crowd, cluster) / cuts[_main_kind(crowd)] + 2 * _posted_bytes(crowd, cluster) / bandwidth
    turn = max(0.0, (crowd.timed().epoch - least) / waits_of(crowd) - 4 * message - latency)
    share, single = (statistics.geometric_mean(values) for values in (cuts.values(), singles.values()))
    return Sharing(share, cuts, single, bandwidth, message, latency, turn, joined)


def _working(reference: Reference, cluster: Cluster) -> float:
    """The seconds that a rank would work if it had the host for itself."""
    plain = replace(cluster, shares={}, cuts={}, single=None)
    return seconds_of(reference.workload(), plain, parse_layout(reference.layout), "FBU")


def _posting(timed: Timed) -> float:
    return statistics.mean(rank["P"] for rank in timed.ranks)


def waits_of(reference: Reference) -> int:
    """Say how often a rank waits for others in an epoch."""
    actions = schedule_of(reference.workload().facts(parse_layout(reference.layout))).ranks[0]
    return sum(action.verb is Verb.WAIT for action in actions)


def _posted_bytes(reference: Reference, cluster: Cluster) -> float:
    workload = reference.workload()
    facts = workload.facts(parse_layout(reference.layout))
    costs = CostModel(workload, facts, cluster, facts)
    return sum(costs.bytes(0, action) for action in schedule_of(facts).ranks[0] if action.verb is Verb.POST)
