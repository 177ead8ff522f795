"""`CostModel`: what each action of a schedule costs on a cluster: seconds of work, bytes on links, overhead."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log

from trisect.plan.cluster import PAIRS, UNRATED, Cluster, Device, Link
from trisect.plan.volume import post_bytes, reduce_bytes
from trisect.plan.work import kind_of, pair_works, work_of
from trisect.plan.workload import Workload
from trisect.schedule.action import Action, Verb
from trisect.views.carry import Carry
from trisect.views.exchange import LETTERS, Work
from trisect.views.plan import Plan

# What an optimiser reads and writes for each number that it steps: value, gradient, two moments, and back.
_STEP_ACCESSES = 7.0
# To say which part scores a pair, and which rows of others it reads, takes as long as to draw it.
_DEALT = 2.0


def working_ranks(plan: Plan, ranks: int) -> int:
    """Say how many of a host's ranks work at the same time: stages take turns unless chunks or blocks follow."""
    stages = plan.layout.layer
    if stages == 1 or plan.blocks > 1 or (plan.stale and plan.layout.chunks > 1):
        return ranks
    return max(1, ranks // stages)


@dataclass(frozen=True, eq=False)
class CostModel:
    """The costs of the actions of a schedule, each on its own rank.

    Attributes:
        plan: of the layout as it is.
        acting: of the schedule whose actions are asked for; a smaller world with the same parts, stages and runs may
            stand for a large one.
    """

    workload: Workload
    plan: Plan
    cluster: Cluster
    acting: Plan
    _crossings: dict[tuple[object, ...], bool] = field(default_factory=dict, init=False, repr=False)
    _bytes: dict[tuple[object, ...], float] = field(default_factory=dict, init=False, repr=False)
    _cells: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def world(self) -> int:
        """How many ranks there are in truth."""
        return self.plan.layout.world

    # Work

    @cached_property
    def _share(self) -> float:
        return self.cluster.share(self.world, self._working)

    @cached_property
    def _working(self) -> int:
        """How many ranks of a host work at the same time."""
        return working_ranks(self.plan, self.cluster.ranks_on_host(self.world))

    @cached_property
    def _device(self) -> Device:
        """The device as a rank has it beside the others of its host, with which it shares the last cache."""
        device = self.cluster.device
        return replace(device, cache=device.cache // self.cluster.ranks_on_host(self.world))

    @cached_property
    def _crowding(self) -> float:
        """Where a rank lies between one that has all cores and one of as many as were measured together: 0 to 1."""
        ranks, most = self.cluster.ranks_on_host(self.world), max(self.cluster.shares, default=1)
        return min(1.0, log(ranks) / log(most)) if most > 1 else 0.0

    def _share_of(self, kind: str, *, back: bool) -> float:
        """The share of a lone rank's speed that a rank has, in work of a kind."""
        return min(1.0, self._share * float(self.cluster.device.keeps(kind, back=back) ** self._crowding))

    def _kind(self, number: int) -> tuple[str, float]:
        """Return the kind of a layer, and the width of its rows in bytes; what is no layer is not rated."""
        if number >= len(self.workload.layers):
            return UNRATED, 0.0
        trace = self.plan.layers[number]
        width = float(self.plan.dtype.itemsize * max(trace.in_channels, trace.out_channels))
        return kind_of(self.workload.layers[number], trace), width

    def _pairs(self, steps: int, *, back: bool) -> float:
        """The seconds that a loss on pairs takes: parts share the pairs, and each draws all of them; the first product
        is made of each row that it reads.
        """
        channels, size, device, plan = self.workload.pair_channels, self.plan.dtype.itemsize, self._device, self.plan
        cut = plan.parts > 1
        rows = max(plan.rows) + (max(self.workload.fetched_rows(plan.layout)) / plan.parts if cut else 0.0)
        drawn = 0.0 if back else self.workload.pairs * (_DEALT if cut else 1.0)
        total = 0.0
        for work, count, ratio in zip(
            pair_works(plan.out_channels, channels, size, back=back),
            (rows, self.workload.pairs / plan.parts, drawn),
            device.ratios(PAIRS, size * channels, back=back),
            strict=True,
        ):
            total += work.seconds(device, rows=count, entries=0.0, table=0.0, steps=steps, ratios=(ratio, 1.0, 1.0))
        return total / self._share_of(PAIRS, back=back)

    def compute(self, rank: int, action: Action) -> float:
        """Give the seconds of an action's work, overhead apart; 0 for what is no work."""
        return self._cell(rank, action)[0]

    def overhead(self, rank: int, action: Action) -> float:
        """Give the seconds that an action costs its rank whatever its size."""
        if action.verb in (Verb.POST, Verb.WAIT):
            again = self.cluster.device.turn if action.verb is Verb.WAIT and self._turns < 1.0 else 0.0
            return (self._link(rank, action).message / self._turns + again) * self._chunks_for_one(action)
        return self._cell(rank, action)[1] / self._turns

    def _chunks_for_one(self, action: Action) -> float:
        """Say for how many messages of a carry one stands, where fewer chunks stand for all."""
        carries = action.exchange == Carry.letter
        return self.plan.carry_chunks / self.acting.carry_chunks if carries else 1.0

    @cached_property
    def _turns(self) -> float:
        """Where ranks take turns on the cores of a host, Python takes longer too."""
        return min(1.0, self.cluster.devices / self._working) if self.cluster.is_cpu else 1.0

    def _cell(self, rank: int, action: Action) -> tuple[float, float]:
        if action.verb is Verb.STEP:
            return self._step(action)
        if action.verb not in (Verb.FORWARD, Verb.AGAIN, Verb.BACKWARD):
            return 0.0, 0.0
        acting = self.acting
        run = rank // (acting.parts * acting.layout.layer)
        key = (run, action.verb, action.works, action.block)
        cost = self._cells.get(key)
        if cost is None:
            steps, back = acting.runs[action.block or 0][run], action.verb is Verb.BACKWARD
            costs = [self.work(work, steps, self.plan.steps(action.block or 0), back=back) for work in action.works]
            cost = self._cells[key] = sum(each for each, _ in costs), sum(each for _, each in costs)
        return cost

    def work(self, work: Work, steps: range, every: range, *, back: bool) -> tuple[float, float]:
        """Return the seconds of some work and those that its calls take.

        Args:
            steps: of the rank; `every`: of the whole block.
        """
        plan, acting, number = self.plan, self.acting, work.layer
        kind, width = self._kind(number)
        states = work.part in ("recur", "top")
        if back and not states and not self._reached(number, steps):
            return 0.0, 0.0
        rows, entries, columns = self._rows(work.side, steps)
        share, count, calls = work.share, len(steps), 1.0
        if states and number < len(plan.layers):
            layer = plan.layers[number]
            if layer.along == Carry.option and layer.state != "weight":
                calls = plan.carry_chunks / acting.carry_chunks
            elif layer.along == "redistribute":
                share, count = share / plan.layout.time, len(every)
            elif layer.state == "weight" and layer.along == "none":
                count = len(every)
        if work.part == "sum":
            columns, entries = float(plan.vertices), self._all_entries(steps)
        each, ratios = work_of(plan, number, work.part, back=back), self._device.ratios(kind, width, back=back)
        seconds = each.seconds(
            self._device, rows=rows * share, entries=entries * share, table=columns, steps=count, ratios=ratios
        )
        seconds /= self._share_of(kind, back=back)
        if work.part == "loss" and self.workload.pairs:
            seconds += self._pairs(count, back=back)
        overhead = calls * ratios[2] * each.overhead(self.cluster.device, count)
        if plan.stale and kind != UNRATED:
            overhead += each.calls * self.cluster.device.stale
        return seconds, overhead

    def _reached(self, number: int, steps: range) -> bool:
        """Whether a gradient comes to the rows of a layer: from a loss at some of the steps, or along time."""
        if steps.stop > self.workload.loss_from:
            return True
        layers = self.plan.layers
        summarised = any(later.summarises for later in layers[number + 1 :])
        return summarised or any(layer.state not in (None, "weight") for layer in layers[number:])

    def _rows(self, side: str, steps: range) -> tuple[float, float, float]:
        """Return the rows and entries (of a step) that a piece goes over, and the rows that it reads from."""
        plan, part_rows = self.plan, max(self.plan.rows)
        parts = self.workload.parts(1 if plan.across == "redistribute" else plan.parts)
        heaviest = 1.0 if plan.across == "redistribute" else parts.heaviest
        entries = self._all_entries(steps) / plan.parts * heaviest
        columns = part_rows + (self._remote(steps) / plan.parts if plan.parts > 1 else 0.0)
        share = 1.0 / plan.chunks
        if side:
            boundary = min(1.0, max(0.0, parts.boundary))
            share *= boundary if side == "boundary" else 1.0 - boundary
        return part_rows * share, entries * share, columns

    def _all_entries(self, steps: range) -> float:
        entries = self.workload.entries
        return sum(entries[step] for step in steps) / max(1, len(steps)) if steps else 0.0

    def _remote(self, steps: range) -> float:
        remote = self.plan.remote
        return sum(remote[min(step, len(remote) - 1)] for step in steps) / max(1, len(steps)) if steps else 0.0

    def _step(self, action: Action) -> tuple[float, float]:
        """The optimiser goes over all numbers of the stage; each layer's tensors are a few calls."""
        size = self.plan.stage_bytes[action.stage]
        layers = self.plan.bounds[action.stage + 1] - self.plan.bounds[action.stage]
        seconds = _STEP_ACCESSES * size / self.cluster.device.elementwise / self._share
        return seconds * self.plan.updates, layers * self.cluster.device.half * self.plan.updates

    # Bytes and links

    def bytes(self, rank: int, action: Action) -> float:
        """Give the bytes that leave a rank when it posts, by the formula of the exchange."""
        if action.verb is not Verb.POST and action.verb is not Verb.REDUCE:
            return 0.0
        key = (
            (action.message, action.stage, rank // self.acting.parts)
            if action.peer is not None
            else (action.verb, action.message, action.width, rank // (self.acting.parts * self.acting.layout.layer))
        )
        if key not in self._bytes:
            self._bytes[key] = self._volume(rank, action)
        return self._bytes[key]

    def _volume(self, rank: int, action: Action) -> float:
        if action.verb is Verb.REDUCE:
            return float(reduce_bytes(self.plan, action.stage))
        fetched = self.workload.fetched_rows(self.plan.layout)
        if action.peer is not None:
            # of two ranks: rows and steps of their own, which the acting plan has as they are
            return post_bytes(self.acting, rank, action, fetched)[1]
        size = post_bytes(self.plan, self._true_rank(rank), action, fetched)[1]
        return size / (self.plan.parts if self._axis(action) == "vertex" else self.plan.layout.time)

    @staticmethod
    def _axis(action: Action) -> str:
        return LETTERS[str(action.exchange)].axis

    def transfer(self, rank: int, action: Action) -> float:
        """Give the seconds that what an action sends needs on its link."""
        size = self.bytes(rank, action)
        if action.verb is Verb.REDUCE:
            return self._reduce(size)
        link, sharing = self._link(rank, action), self._sharing(rank, action)
        return link.latency * self._chunks_for_one(action) + size * sharing / link.bandwidth

    def _reduce(self, size: float) -> float:
        """A ring: each rank sends its bucket twice less its own share, in 2(P-1) messages. Stages share a link."""
        layout, within = self.plan.layout, self.cluster.ranks_on_host(self.world)
        ranks = layout.time * layout.vertex
        spans = self.world > within and (layout.time > 1 or layout.vertex > within)
        link = self.cluster.between if spans else self.cluster.inside
        sharing = min(layout.layer, within) if spans else 1
        return 2.0 * (ranks - 1) * (link.latency + link.message) + size * sharing / link.bandwidth

    def _true_rank(self, rank: int) -> int:
        """Give the rank of the whole world that a rank of the acting one stands for."""
        acting, layout = self.acting.layout, self.plan.layout
        part, stage = rank % acting.vertex, rank // acting.vertex % acting.layer
        return (rank // (acting.vertex * acting.layer) * layout.layer + stage) * layout.vertex + part

    def _group(self, rank: int, action: Action) -> tuple[int, int]:
        """Give the first and the last rank of the world with which an action exchanges rows."""
        own, layout = self._true_rank(rank), self.plan.layout
        if action.peer is not None:
            peer = self._true_rank(action.peer)
            return min(own, peer), max(own, peer)
        if self._axis(action) == "vertex":
            first = own - own % layout.vertex
            return first, first + layout.vertex - 1
        stride = layout.layer * layout.vertex
        return own % stride, own % stride + (layout.time - 1) * stride

    def _crosses(self, rank: int, action: Action) -> bool:
        """Say whether rows leave the host."""
        if self.world <= self.cluster.ranks_on_host(self.world):
            return False
        key = (rank, self._axis(action) if action.peer is None else action.peer)
        if key not in self._crossings:
            first, last = self._group(rank, action)
            self._crossings[key] = self.cluster.host_of(first, self.world) != self.cluster.host_of(last, self.world)
        return self._crossings[key]

    def _link(self, rank: int, action: Action) -> Link:
        return self.cluster.between if self._crosses(rank, action) else self.cluster.inside

    def _sharing(self, rank: int, action: Action) -> float:
        """Say how many ranks of a host send over its link to others at once, each the share of its rows that leaves."""
        if not self._crosses(rank, action):
            return 1.0
        layout, within = self.plan.layout, self.cluster.ranks_on_host(self.world)
        first, last = self._group(rank, action)
        if action.peer is not None:
            # only the ranks at the end of a host have their peer on another
            return float(min(last - first, within))
        along_vertices = self._axis(action) == "vertex"
        members = layout.vertex if along_vertices else layout.time
        at_home = min(members, within) if along_vertices else max(1, within // (layout.layer * layout.vertex))
        return within * (members - at_home) / (members - 1)

    def copies(self, rank: int, action: Action) -> bool:
        """Say whether the rank itself moves the bytes of what it posts."""
        return self._link(rank, action).copies
