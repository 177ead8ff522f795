"""All layouts that so many devices allow, the best first: `search`."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trisect.errors import LayoutError
from trisect.layout import Layout, Wire
from trisect.plan.cluster import Cluster, origin_of
from trisect.plan.estimate import AXES, Estimate, bytes_by_axis, estimate_plan, is_exact
from trisect.plan.memory import MemoryModel
from trisect.plan.quantities import show_seconds, show_size
from trisect.plan.timing import epoch_seconds, least_of_any, least_seconds
from trisect.plan.workload import Workload
from trisect.views.plan import Plan

Temporal = Literal["auto", "redistribute", "carry", "halo"]
Spatial = Literal["auto", "halo", "redistribute"]

# So many layouts are simulated; before that, the least time that each could take puts them in order.
_SIMULATED = 32
# With no more devices than these, layouts that would be slower are looked at too, to say whether they fit.
_FEW = 16
_BLOCKS = (1, 2, 4, 8, 16, 32)
# A simpler layout is taken where a more complicated one is faster by less than this.
_WORTH_IT = 0.02
_WIRES: tuple[Wire, ...] = ("bfloat16", "int8")


@dataclass(frozen=True)
class PlanChoice:
    """What was found: the layouts that fit, the best first, those that do not, and what it rests on.

    Attributes:
        best: at most as many as were asked for, each timed.
        refused: of those that do not fit, one for each cut, the nearest to fitting first.
        tried: how many layouts were looked at.
        reason: why the first is the first, in one sentence.
        assumptions: what the numbers rest on, a sentence each.
    """

    best: tuple[Estimate, ...]
    refused: tuple[Estimate, ...]
    tried: int
    devices: int
    cluster: Cluster
    reason: str
    assumptions: tuple[str, ...]

    @property
    def layout(self) -> Layout:
        """Give the layout to take, which is the best that fits; raise where none does."""
        if not self.best:
            nearest = self.refused[0] if self.refused else None
            need = "" if nearest is None else f" The nearest, {nearest.layout}, {too_large(nearest)}."
            raise LayoutError(f"No layout of {self.devices} devices fits their memory.{need} Use more devices.")
        return self.best[0].layout

    def plain(self) -> dict[str, Any]:
        """Give all of it as plain data."""
        return {
            "devices": self.devices,
            "cluster": {"name": self.cluster.name, "source": self.cluster.source},
            "tried": self.tried,
            "best": [each.plain() for each in self.best],
            "refused": [{**each.plain(), "reason": too_large(each)} for each in self.refused],
            "reason": self.reason,
            "assumptions": list(self.assumptions),
        }


def search(
    workload: Workload,
    cluster: Cluster,
    devices: int,
    *,
    approximate: bool = False,
    count: int = 5,
    all_devices: bool = False,
) -> PlanChoice:
    """Look at all layouts that so many devices, or fewer, allow.

    Args:
        approximate: whether layouts are allowed whose result is not that of one process.
        count: how many of the best are given.
        all_devices: whether a layout must use all of them, as under torchrun, whose ranks are there.
    """
    looking = _Search(workload, cluster, [devices] if all_devices else worlds(devices), approximate, count)
    looking.run()
    timed = _distinct(sorted(looking.timed, key=_order))
    timed = _simplest_first(timed)
    return PlanChoice(
        tuple(looking.with_bytes(each) for each in timed[:count]),
        tuple(_nearest(looking.refused)),
        looking.tried,
        devices,
        cluster,
        reason_of(timed),
        tuple(assumptions(workload, cluster, devices, looking.memory.unprobed)),
    )


@dataclass(order=True)
class _Entry:
    """A layout yet to be looked at, or all those of so many ranks, with a time that none of them can be below."""

    least: float
    number: int
    layouts: Layout | int = field(compare=False)


class _Search:
    """Looks at layouts in the order of the least time that they could take, until no other can be among the best.

    The layouts of a world are told apart when it comes to them, so that of the thousands that many devices allow, only
    some are looked at.
    """

    def __init__(
        self, workload: Workload, cluster: Cluster, counts: Sequence[int], approximate: bool, count: int
    ) -> None:
        self.workload, self.approximate, self.count = workload, approximate, count
        self.timed: list[Estimate] = []
        self.refused: list[Estimate] = []
        self.tried = 0
        self._cluster, self.memory = cluster, MemoryModel(workload)
        self._sized: dict[int, Cluster] = {}
        self._queue: list[_Entry] = []
        self._entries, self._few = 0, max(counts) <= _FEW
        work = least_of_any(workload, workload.plan(Layout()), self._of(1))
        for world in counts:
            self._push(work / world, world)

    def run(self) -> None:
        """Look at layouts until no other can be among the best; then at rounded wires."""
        while self._queue and len(self.timed) < _SIMULATED and self._queue[0].least <= self._worst():
            layout = self._next()
            if layout is not None:
                self._look(layout)
        if self.approximate:
            self._round_wires()
        if self._few:
            self._look_at_memory()

    def _worst(self) -> float:
        """Give the time of the last of the best that there are, once there are as many as asked for."""
        best = heapq.nsmallest(self.count, (each.seconds.total for each in self.timed if each.seconds is not None))
        return best[-1] if len(best) == self.count else math.inf

    def _of(self, world: int) -> Cluster:
        if world not in self._sized:
            self._sized[world] = self._cluster.resized(world)
        return self._sized[world]

    def _push(self, least: float, layouts: Layout | int) -> None:
        self._entries += 1
        heapq.heappush(self._queue, _Entry(least, self._entries, layouts))

    def _push_layout(self, layout: Layout) -> None:
        try:
            plan = self.workload.plan(layout)
        except LayoutError:
            return
        self._push(least_seconds(self.workload, plan, self._of(layout.world)), layout)

    def _next(self) -> Layout | None:
        """Return the next layout; None where it was a world, whose layouts are in the queue now."""
        layouts = heapq.heappop(self._queue).layouts
        if isinstance(layouts, Layout):
            return layouts
        for cut in _cuts_of(self.workload, layouts):
            # blocks let stages work at the same time, so that one block bounds nothing where there are stages
            counts = _block_counts(self.workload, cut) if cut.layer > 1 else [1]
            for exchanges in _exchanges(self.workload, cut):
                for count in counts:
                    self._push_layout(replace(exchanges, blocks=count))
            for layout in _chunked(self.workload, cut) if self.approximate else ():
                self._push_layout(layout)
        return None

    def _look(self, layout: Layout) -> None:
        """Simulate a layout that fits; of one that does not, look at those that take less memory and more time."""
        plan = self.workload.plan(layout)
        looked = self._estimate(plan)
        self.tried += 1
        if looked.fits:
            self.timed.append(self._simulate(looked, plan))
            return
        self.refused.append(looked)
        if layout.recompute or layout.chunks > 1 or looked.memory.of_data > looked.room:
            return
        self._push_layout(replace(layout, recompute=True))
        counts = _block_counts(self.workload, layout)
        if layout.layer == 1 and layout.blocks != counts[-1]:
            self._push_layout(replace(layout, blocks=counts[counts.index(layout.block_count) + 1]))

    def _estimate(self, plan: Plan) -> Estimate:
        return estimate_plan(self.workload, plan, self._of(plan.layout.world), self.memory, timed=False)

    def _simulate(self, looked: Estimate, plan: Plan) -> Estimate:
        return replace(looked, seconds=epoch_seconds(self.workload, plan, self._of(plan.layout.world)))

    def with_bytes(self, timed: Estimate) -> Estimate:
        """Give an estimate with the bytes that leave ranks, which only the best are told with."""
        plan = self.workload.plan(timed.layout)
        moved, exact = bytes_by_axis(self.workload, plan, self._of(timed.layout.world))
        return replace(timed, bytes_by_axis=moved, exact_bytes=exact)

    def _round_wires(self) -> None:
        """What is rounded on the wire saves time that rows need there, and changes nothing else."""
        for each in sorted(self.timed, key=_order)[: self.count]:
            seconds = each.seconds
            if seconds is not None and seconds.communication > _WORTH_IT * seconds.total:
                for wire in _WIRES:
                    plan = self.workload.plan(replace(each.layout, wire=wire))
                    self.timed.append(self._simulate(self._estimate(plan), plan))

    def _look_at_memory(self) -> None:
        """Look at what would be slower too, to say of it whether it fits."""
        while self._queue:
            layout = self._next()
            if layout is None:
                continue
            looked = self._estimate(self.workload.plan(layout))
            self.tried += 1
            if not looked.fits:
                self.refused.append(looked)


def _order(each: Estimate) -> tuple[float, int, float]:
    return (each.seconds.total if each.seconds is not None else 0.0, each.layout.world, each.memory.total)


def _distinct(timed: list[Estimate]) -> list[Estimate]:
    seen: set[str] = set()
    return [each for each in timed if not (str(each.layout) in seen or seen.add(str(each.layout)))]  # type: ignore[func-returns-value]


def _simplest_first(timed: list[Estimate]) -> list[Estimate]:
    """Let the layout of fewest ranks lead where the fastest is hardly faster."""
    if not timed:
        return timed
    limit = _order(timed[0])[0] * (1.0 + _WORTH_IT)
    near = [each for each in timed if _order(each)[0] <= limit]
    first = min(near, key=lambda each: (each.layout.world, len(str(each.layout)), _order(each)[0]))
    return [first, *(each for each in timed if each is not first)]


def _nearest(refused: list[Estimate]) -> list[Estimate]:
    """Of each cut that does not fit, give the one that lacks least."""
    nearest: dict[tuple[int, int, int], Estimate] = {}
    for each in sorted(refused, key=lambda each: each.memory.total / each.room):
        nearest.setdefault((each.layout.time, each.layout.layer, each.layout.vertex), each)
    return list(nearest.values())


def layouts(workload: Workload, counts: Iterable[int], *, approximate: bool) -> Iterator[Layout]:
    """Give the layouts of these numbers of ranks that the model and the data allow."""
    for world in counts:
        for cut in _cuts_of(workload, world):
            for exchanges in _exchanges(workload, cut):
                for count in _block_counts(workload, cut):
                    for again in (False, True):
                        yield replace(exchanges, blocks=count, recompute=again)
            if approximate:
                yield from _chunked(workload, cut)


def _cuts_of(workload: Workload, world: int) -> Iterator[Layout]:
    """Give the cuts of a world that the model and the data allow."""
    most = workload.training if workload.timeline else 1
    for time, layer, vertex in cuts(world):
        if time <= most and layer <= len(workload.layers) and vertex <= workload.vertices:
            yield Layout(time=time, layer=layer, vertex=vertex)


def _exchanges(workload: Workload, cut: Layout) -> Iterator[Layout]:
    """Give a cut with every exchange between parts and along time that it can have."""
    spatial: tuple[Spatial, ...] = ("halo", "redistribute") if cut.vertex > 1 else ("auto",)
    temporal: tuple[Temporal, ...] = _temporal(workload) if cut.time > 1 else ("auto",)
    for space in spatial:
        for along in temporal:
            yield replace(cut, spatial=space, temporal=along)


def _block_counts(workload: Workload, cut: Layout) -> list[int]:
    """Give the numbers of blocks that are tried; each run of each block has a step."""
    return [n for n in _BLOCKS if n == 1 or n * cut.time <= workload.training] if workload.timeline else [1]


def _chunked(workload: Workload, cut: Layout) -> Iterator[Layout]:
    """Give a cut into stages with chunks that read history."""
    if cut.layer > 1 and not workload.timeline:
        for chunks in (2 * cut.layer, 4 * cut.layer, 8 * cut.layer):
            if chunks * cut.vertex <= workload.vertices:
                yield replace(cut, chunks=chunks, spatial="halo" if cut.vertex > 1 else "auto")


def worlds(devices: int) -> list[int]:
    """Give the numbers of ranks that are tried: all devices, and all smaller numbers that divide them or are powers of
    two.
    """
    return [n for n in range(1, devices + 1) if devices % n == 0 or n & (n - 1) == 0]


def cuts(world: int) -> Iterator[tuple[int, int, int]]:
    """Give all (time, layer, vertex) whose product is the world."""
    for time in range(1, world + 1):
        if world % time == 0:
            for layer in range(1, world // time + 1):
                if world // time % layer == 0:
                    yield time, layer, world // time // layer


def _temporal(workload: Workload) -> tuple[Temporal, ...]:
    """Give the exchanges along time that all layers of the model can use."""
    kinds = {layer.state for layer in workload.outline}
    if kinds == {"window"}:
        return ("halo", "redistribute")
    return ("auto",) if "weight" in kinds or None in kinds else ("carry", "redistribute")


# What is said


def too_large(each: Estimate) -> str:
    """Say what of a layout does not fit: `needs 14.2 of 12 GiB: activations 9.1, halo 3.0`."""
    unit, factor = ("GiB", 2.0**30) if each.room >= 2**30 else ("MiB", 2.0**20)
    parts = ", ".join(f"{name} {size / factor:,.1f}" for name, size in each.memory.largest())
    return f"needs {each.memory.total / factor:,.1f} of {each.room / factor:,.1f} {unit}: {parts}"


def reason_of(timed: list[Estimate]) -> str:
    """Say in one sentence why the first layout is before the others."""
    best = timed[0].seconds if timed else None
    if best is None:
        return "No layout fits."
    first = timed[0]
    others = [each for each in timed[1:] if each.layout.world != first.layout.world or _cut(each) != _cut(first)]
    name = _name(first.layout)
    if not others or others[0].seconds is None:
        return f"{name} is the only kind of layout that fits, at {show_seconds(best.total)} an epoch."
    other = others[0].seconds
    gains = {
        "computes": other.compute - best.compute,
        "waits for rows": other.communication - best.communication,
        "stands idle": other.bubble - best.bubble,
        "pays for the starts of actions": other.overhead - best.overhead,
    }
    most = max(gains, key=lambda key: gains[key])
    if first.layout.world < others[0].layout.world and gains[most] > 0:
        return (
            f"{name} wins, since more ranks would be slower: {_name(others[0].layout)} {most} "
            f"{show_seconds(gains[most])} longer."
        )
    if gains[most] <= 0:
        return f"{name} takes as long as {_name(others[0].layout)} and is the simpler one."
    return (
        f"{name} wins, at {show_seconds(best.total)} an epoch against {show_seconds(other.total)} of "
        f"{_name(others[0].layout)}, which {most} {show_seconds(gains[most])} longer."
    )


def _cut(each: Estimate) -> tuple[int, int, int]:
    return each.layout.time, each.layout.layer, each.layout.vertex


def _name(layout: Layout) -> str:
    return "One rank" if layout.world == 1 and str(layout) == "vertex=1" else str(layout)


def assumptions(
    workload: Workload, cluster: Cluster, devices: int, unprobed: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Give what the numbers rest on.

    Args:
        unprobed: layers that could not be run on a few rows, each with the reason.
    """
    for layer, why in (unprobed or {}).items():
        yield (
            f"{layer} could not be run on a few rows to see what it keeps ({why}): three times its output is counted, "
            "which is a guess."
        )
    yield origin_of(cluster.name, cluster.source)
    sized = cluster.resized(devices)
    if sized.hosts != cluster.hosts:
        yield f"{devices} devices are taken to be on {sized.hosts} host{'s' if sized.hosts > 1 else ''} of that kind."
    if cluster.is_cpu and sized.hosts == 1 and devices > cluster.devices:
        yield f"{devices} ranks share {cluster.devices} cores and {show_size(cluster.device.memory)} of memory."
    if workload.described:
        yield (
            "The data are described and not here: rows of other parts that are read follow from data.halo, and "
            "parts are taken to be equal within 3 %."
        )
    elif any(not parts.measured for parts in workload._parts.values()):
        yield "The graph is large, so it was not cut to plan: rows of other parts that are read are an estimate."
    if workload.fetches:
        yield "The loss reads pairs: output rows that it fetches of other parts are an estimate."
    yield "Seconds are of training alone: evaluation, checkpoints and the first epoch come on top."


__all__ = ["AXES", "PlanChoice", "is_exact", "layouts", "search", "too_large"]
