"""What each kind of layer takes beyond its rates, and how much of its speed it keeps with fewer threads.

Each kind is trained a few epochs, on a small graph, on one of more vertices, and on one of more entries besides: three
times, from which three ratios follow, of what it costs whatever the size, of its rows, and of its entries. A loss on
pairs is rated beside the layers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trisect.comm.cores import usable_cores
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.noise import Noise
from trisect.plan.cluster import PAIRS, Cluster
from trisect.plan.work import kind_of
from trisect.plan.workload import Workload
from trisect.tasks import LinkPrediction, TaskContext
from trisect.train.machine.reference import (
    BACKWARD,
    EPOCHS,
    FORWARD,
    Reference,
    sample_graph,
    sample_timeline,
    seconds_of,
)
from trisect.train.machine.timed import Measurement, Name, Settled, Timed

_WIDTHS = (16, 64)
GRAPHS = ((3_000, 3.0), (16_000, 3.0), (16_000, 15.0))  # vertices and degree
TIMELINES = ((1_000, 1.0), (4_000, 1.0), (4_000, 4.0))
_STATIC = ("gcn", "gcnii", "sage", "resgcn+", "gin", "gat", "gatv2")
_DYNAMIC = ("wd-gcn", "tm-gcn", "evolvegcn-o", "evolvegcn-h")
_NEGATIVES = (1, 5)  # for each pair that exists
_LEAST, _MOST = 0.05, 50.0  # no kind is so much faster or slower than its rates; what says so was disturbed
_DRAWING = ("drawing",)


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


@dataclass(frozen=True)
class Kind:
    """A kind of layer of some width, and the trainings of it."""

    name: str
    width: int
    references: Sequence[Reference]

    def key(self, number: int) -> Name:
        """Name the measurement of one of the trainings."""
        return "layer", self.name, self.width, number


class Kinds:
    """All kinds of layers, and a loss on pairs.

    Args:
        threads: that each of several ranks has; the second training of the widest layers is done with all threads and
            with so many, in turn.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._kinds = list(_kinds())
        self._pairs = [_on_pairs(negatives) for negatives in _NEGATIVES]

    def measurements(self) -> dict[Name, Measurement]:
        """Give what to measure."""
        listed: dict[Name, Measurement] = {}
        for kind in self._kinds:
            for k, reference in enumerate(kind.references):
                listed[kind.key(k)] = partial(reference.in_turn, self._ways(kind.width == _WIDTHS[-1] and k == 1))
        for k, reference in enumerate(self._pairs):
            listed[PAIRS, k] = partial(reference.in_turn, self._ways(k == 1))
        listed[_DRAWING] = partial(_drawing, self._pairs[0].data)
        return listed

    def _ways(self, fewer: bool) -> list[int | None]:
        return [None, self._threads] if fewer else [None]

    def rated(self, cluster: Cluster, times: Settled[Name]) -> Rated:
        """Give what follows from the measurements."""
        ratios: dict[str, dict[int, tuple[float, ...]]] = {}
        kept: dict[str, tuple[float, float]] = {}
        shares, least = [], self._threads / usable_cores()
        for kind in self._kinds:
            best = [times[kind.key(k)] for k in range(len(kind.references))]
            ratios.setdefault(kind.name, {})[4 * kind.width] = solved(cluster, kind, best)
            if kind.width == _WIDTHS[-1]:
                both = times.runs[kind.key(1)]
                kept[kind.name] = kept_share(both, least)
                shares.append(min(1.0, statistics.median(more.epoch / fewer.epoch for more, fewer in both)))
        rates = replace(cluster, device=replace(cluster.device, layers=ratios))
        ratios[PAIRS] = _solved_pairs(rates, self._pairs, times)
        kept[PAIRS] = kept_share(times.runs[PAIRS, 1], least)
        return Rated(ratios, kept, statistics.median(shares))


def kept_share(pairs: Sequence[Sequence[Timed]], least: float) -> tuple[float, float]:
    """Return the share of its speed that a kind keeps with fewer threads, each way; no less than that of the threads.

    Args:
        pairs: runs with all threads and with fewer, in turn.
    """
    forward, backward = (
        statistics.median(more.ranks[0][letter] / fewer.ranks[0][letter] for more, fewer in pairs)
        for letter in (FORWARD, BACKWARD)
    )
    return min(1.0, max(least, forward)), min(1.0, max(least, backward))


def _kinds() -> Iterator[Kind]:
    for width in _WIDTHS:
        graphs = [sample_graph(degree, width, vertices) for vertices, degree in GRAPHS]
        timelines = [sample_timeline(degree, width, vertices) for vertices, degree in TIMELINES]
        for names, data in ((_STATIC, graphs), (_DYNAMIC, timelines)):
            for name in names:
                yield kind_of_model(name, data, width)


def kind_of_model(model: str, data: Sequence[Graph | Timeline], width: int) -> Kind:
    """Give the trainings of a model, and the kind that most of its layers are of."""
    references = [Reference(model, {"layers": 3, "hidden": width}, each) for each in data]
    workload = references[0].workload()
    kinds = [kind_of(*both) for both in zip(workload.layers, workload.outline, strict=True)]
    return Kind(max(set(kinds), key=kinds.count), width, references)


def solved(cluster: Cluster, kind: Kind, timed: Sequence[Timed]) -> tuple[float, ...]:
    """Return, from the times on three graphs, the ratios of rows, entries and calls, forward and backward."""
    equations: dict[str, list[list[float]]] = {FORWARD: [], BACKWARD: []}
    for reference, one in zip(kind.references, timed, strict=True):
        workload, measured = reference.workload(), one.ranks[0]
        for letter, rows in equations.items():
            base, *parts = (
                _predicted(workload, cluster, kind.name, 4 * kind.width, letter, asked)
                for asked in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
            )
            rows.append([measured[letter] - base, *(part - base for part in parts)])
    return (*_three_unknowns(*equations[FORWARD]), *_three_unknowns(*equations[BACKWARD]))


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
    """The seconds of an epoch's cells, forward or backward, with these ratios for one kind at a width in bytes."""
    nothing = 1e-12
    ratios: tuple[float, ...] = tuple(max(ratio, nothing) for ratio in asked) * 2
    layers = {**cluster.device.layers, kind: {width: ratios}}
    return seconds_of(workload, replace(cluster, device=replace(cluster.device, layers=layers)), Layout(), letter)


# Pairs


def _on_pairs(negatives: int) -> Reference:
    task = {"name": "link-prediction", "memory": 0, "eval_negatives": 1, "negatives": negatives}
    return Reference("wd-gcn", {"layers": 2, "hidden": 16}, sample_timeline(4.0, 16, 6_000), task)


def _solved_pairs(
    cluster: Cluster, references: Sequence[Reference], times: Mapping[Name, Timed]
) -> dict[int, tuple[float, ...]]:
    """The time that a loss on pairs takes beyond what its model does: from few pairs a row and from many, and from the
    time that drawing alone takes.
    """
    timed = [times[PAIRS, k].ranks[0] for k in range(len(references))]
    workloads = [reference.workload() for reference in references]
    width = 4 * workloads[0].pair_channels
    solved: list[float] = []
    for letter in (FORWARD, BACKWARD):
        base, rows, pairs, drawn = (
            [_predicted(workload, cluster, PAIRS, width, letter, asked) for workload in workloads]
            for asked in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
        )
        by_draw = times[_DRAWING].epoch / (drawn[0] - base[0]) if letter == FORWARD else 1.0
        left = [
            one[letter] - before - by_draw * (draws - before)
            for one, before, draws in zip(timed, base, drawn, strict=True)
        ]
        by_pair = _bounded((left[1] - left[0]) / ((pairs[1] - base[1]) - (pairs[0] - base[0])))
        by_row = _bounded((left[0] - by_pair * (pairs[0] - base[0])) / (rows[0] - base[0]))
        solved += [by_row, by_pair, _bounded(by_draw)]
    return {width: tuple(solved)}


def _drawing(data: Graph | Timeline) -> Sequence[Timed]:
    """The least seconds that drawing the pairs of an epoch takes, one for each that exists."""
    bound = LinkPrediction(memory=0).bind(data, TaskContext(0))
    times = []
    for epoch in range(1, 2 + EPOCHS):
        begin = time.perf_counter()
        for step in bound.steps("train"):
            bound.draw(step, Noise(0, epoch))
        times.append(time.perf_counter() - begin)
    return [Timed([min(times)])]
