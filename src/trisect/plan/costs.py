"""`CostModel`: what each action of a schedule costs on a cluster: seconds of work, bytes on links, overhead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import log

from trisect.exchanges.catalogue import exchange_of
from trisect.exchanges.facts import Facts
from trisect.exchanges.reduce import stage_bytes
from trisect.nn.halves import HalfKind
from trisect.plan.cluster import PAIRS, UNRATED, Cluster, Device, Link
from trisect.plan.work import drawing_work, kind_of, pair_rows_work, pair_work, work_of
from trisect.plan.workload import Workload
from trisect.schedule.action import Action, Side, Verb

# What an optimiser reads and writes for each number that it steps: value, gradient, two moments, and back.
_STEP_ACCESSES = 7.0
# To say which part scores a pair, and which rows of others it reads, takes as long as to draw it.
_DEALT = 2.0
_HALF_STATE = (HalfKind.TEMPORAL, HalfKind.SUMMARY)


def working_ranks(facts: Facts, ranks: int) -> int:
    """Say how many of a host's ranks work at the same time: stages take turns unless chunks or blocks follow."""
    stages = facts.layout.layer
    if stages == 1 or facts.blocks > 1 or (facts.stale and facts.layout.chunks > 1):
        return ranks
    return max(1, ranks // stages)


@dataclass(frozen=True, eq=False)
class CostModel:
    """The costs of the actions of a schedule, each on its own rank.

    Attributes:
        facts: of the layout as it is.
        acting: of the schedule whose actions are asked for; a smaller world with the same parts, stages and runs may
            stand for a large one.
    """

    workload: Workload
    facts: Facts
    cluster: Cluster
    acting: Facts

    @cached_property
    def world(self) -> int:
        """How many ranks there are in truth."""
        return self.facts.layout.world

    # Work

    @cached_property
    def _share(self) -> float:
        return self.cluster.share(self.world, self._working)

    @cached_property
    def _working(self) -> int:
        """How many ranks of a host work at the same time."""
        return working_ranks(self.facts, self.cluster.ranks_on_host(self.world))

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

    def _kind(self, half: int) -> tuple[str, float]:
        """The kind of the layer of a half, and the width of its rows in bytes; what is no layer is not rated."""
        number = self.facts.halves[half].layer
        if number >= len(self.workload.layers):
            return UNRATED, 0.0
        layer = self.workload.layers[number]
        return kind_of(layer), float(self.facts.dtype.itemsize * max(layer.in_channels, layer.out_channels))

    def _pairs(self, steps: int, *, back: bool) -> float:
        """The seconds that a loss on pairs takes: parts share the pairs, and each draws all of them; the first product
        is made of each row that it reads.
        """
        channels, size, device, facts = self.workload.pair_channels, self.facts.dtype.itemsize, self._device, self.facts
        by_row, by_pair, by_draw = device.ratios(PAIRS, size * channels, back=back)
        cut = facts.parts > 1
        rows = max(facts.rows) + (max(self.workload.fetched_rows(facts.layout)) / facts.parts if cut else 0.0)
        pairs = self.workload.pairs / facts.parts
        drawn = 0.0 if back else self.workload.pairs * (_DEALT if cut else 1.0)
        parts = (
            (pair_rows_work(facts.out_channels, channels, size, back=back), rows, by_row),
            (pair_work(channels, size, back=back), pairs, by_pair),
            (drawing_work(), drawn, by_draw),
        )
        total = sum(
            work.seconds(device, rows=count, entries=0.0, table=0.0, steps=steps, ratios=(ratio, 1.0, 1.0))
            for work, count, ratio in parts
        )
        return total / self._share_of(PAIRS, back=back)

    @cached_property
    def _cells(self) -> dict[tuple[object, ...], tuple[float, float]]:
        return {}

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
        carries = action.peer is not None and exchange_of(action).hands_on
        return self.facts.carry_chunks / self.acting.carry_chunks if carries else 1.0

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
        key = (run, action.stage, action.verb, action.first, action.last, action.side, action.block)
        cost = self._cells.get(key)
        if cost is None:
            cost = self._cells[key] = self._work(run, action)
        return cost

    def _work(self, run: int, action: Action) -> tuple[float, float]:
        facts, acting = self.facts, self.acting
        halves = facts.stage_halves(action.stage)
        first = halves.start if action.first is None else action.first
        last = halves.stop - 1 if action.last is None else action.last
        steps = acting.runs[action.block or 0][run]
        rows, entries, columns = self._rows(action, steps)
        back = action.verb is Verb.BACKWARD
        seconds = overhead = 0.0
        for k in range(first, last + 1):
            work, count, calls = work_of(facts, k, back=back), len(steps), 1.0
            kind, own = facts.halves[k].kind, rows
            if back and kind not in _HALF_STATE and not self._reached(k, steps):
                continue
            if kind in _HALF_STATE and facts.halves[k].layer < len(facts.layers):
                layer = facts.layers[facts.halves[k].layer]
                if layer.along == "carry" and layer.state != "weight":
                    own, calls = rows / acting.carry_chunks, facts.carry_chunks / acting.carry_chunks
                elif layer.along == "redistribute":
                    own, count = rows / facts.layout.time, len(facts.steps(action.block or 0))
                elif layer.state == "weight" and layer.along == "none":
                    count = len(facts.steps(action.block or 0))
            table, read = columns, entries
            if kind is HalfKind.AGGREGATE:
                table, read = float(facts.vertices), self._all_entries(steps)
            name, width = self._kind(k)
            ratios = self._device.ratios(name, width, back=back)
            each = work.seconds(self._device, rows=own, entries=read, table=table, steps=count, ratios=ratios)
            seconds += each / self._share_of(name, back=back)
            if kind is HalfKind.OUTPUT and self.workload.pairs:
                seconds += self._pairs(count, back=back)
            overhead += calls * ratios[2] * work.overhead(self.cluster.device, count)
            if facts.stale and name != UNRATED:
                overhead += work.calls * self.cluster.device.stale
        return seconds, overhead

    def _reached(self, half: int, steps: range) -> bool:
        """Say whether a gradient comes to the rows of a half: from a loss at some of the steps, or along time."""
        if steps.stop > self.workload.loss_from:
            return True
        halves, number = self.facts.halves, self.facts.halves[half].layer
        summarised = any(later.kind is HalfKind.SUMMARY and later.layer > number for later in halves)
        return summarised or any(layer.state not in (None, "weight") for layer in self.facts.layers[number:])

    def _rows(self, action: Action, steps: range) -> tuple[float, float, float]:
        """Give the rows and entries (of a step) that a cell goes over, and the rows that it reads from."""
        facts = self.facts
        part_rows = max(facts.rows)
        by_columns = any(layer.across == "redistribute" for layer in facts.layers)
        parts = self.workload.parts(1 if by_columns else facts.parts)
        heaviest = 1.0 if by_columns else parts.heaviest
        entries = self._all_entries(steps) / facts.parts * heaviest
        columns = part_rows + (self._remote(steps) / facts.parts if facts.parts > 1 else 0.0)
        share = 1.0 / facts.layout.chunks if facts.stale else 1.0
        if action.side is not None:
            boundary = min(1.0, max(0.0, parts.boundary))
            share *= boundary if action.side is Side.BOUNDARY else 1.0 - boundary
        return part_rows * share, entries * share, columns

    def _all_entries(self, steps: range) -> float:
        entries = self.workload.entries
        return sum(entries[step] for step in steps) / max(1, len(steps)) if steps else 0.0

    def _remote(self, steps: range) -> float:
        remote = self.facts.remote
        return sum(remote[min(step, len(remote) - 1)] for step in steps) / max(1, len(steps)) if steps else 0.0

    def _step(self, action: Action) -> tuple[float, float]:
        """The optimiser goes over all numbers of the stage; each layer's tensors are a few calls."""
        size = stage_bytes(self.facts)[action.stage]
        layers = self.facts.bounds[action.stage + 1] - self.facts.bounds[action.stage]
        seconds = _STEP_ACCESSES * size / self.cluster.device.elementwise / self._share
        return seconds, layers * self.cluster.device.half

    # Bytes and links

    @cached_property
    def _bytes(self) -> dict[tuple[object, ...], float]:
        return {}

    def bytes(self, rank: int, action: Action) -> float:
        """Give the bytes that leave a rank when it posts, by the formula of the exchange."""
        if action.verb is not Verb.POST and action.verb is not Verb.REDUCE:
            return 0.0
        key = (
            (action.message, action.stage, rank // self.acting.parts)
            if action.peer is not None
            else (action.verb, action.message)
        )
        if key not in self._bytes:
            self._bytes[key] = self._volume(rank, action)
        return self._bytes[key]

    def _volume(self, rank: int, action: Action) -> float:
        exchange = exchange_of(action)
        fetched = self.workload.fetched_rows(self.facts.layout)
        if action.verb is Verb.REDUCE:
            return float(sum(exchange.volume(self.facts, [(rank, action)], fetched).values()))
        if action.peer is not None:
            # of two ranks: rows and steps of their own, which the acting facts have as they are
            return float(sum(exchange.volume(self.acting, [(rank, action)], fetched).values()))
        total = sum(exchange.volume(self.facts, [(rank, action)], fetched).values())
        runs = sum(1 for run in self.facts.runs[action.block or 0] if run) if exchange.axis == "vertex" else 0
        ranks = self.facts.parts * (max(1, runs) if exchange.axis == "vertex" else self.facts.layout.time)
        if self.facts.stale:
            # rows of a chunk cross with the chunk
            return total / ranks / self.facts.layout.chunks
        return total / ranks

    def transfer(self, rank: int, action: Action) -> float:
        """Give the seconds that what an action sends needs on its link."""
        size = self.bytes(rank, action)
        if action.verb is Verb.REDUCE:
            return self._reduce(size)
        link, sharing = self._link(rank, action), self._sharing(rank, action)
        return link.latency * self._chunks_for_one(action) + size * sharing / link.bandwidth

    def _reduce(self, size: float) -> float:
        """A ring: each rank sends its bucket twice less its own share, in 2(P-1) messages. Stages share a link."""
        layout, within = self.facts.layout, self.cluster.ranks_on_host(self.world)
        ranks = layout.time * layout.vertex
        spans = self.world > within and (layout.time > 1 or layout.vertex > within)
        link = self.cluster.between if spans else self.cluster.inside
        sharing = min(layout.layer, within) if spans else 1
        return 2.0 * (ranks - 1) * (link.latency + link.message) + size * sharing / link.bandwidth

    def _true_rank(self, rank: int) -> int:
        """Give the rank of the whole world that a rank of the acting one stands for."""
        acting, layout = self.acting.layout, self.facts.layout
        part, stage = rank % acting.vertex, rank // acting.vertex % acting.layer
        return (rank // (acting.vertex * acting.layer) * layout.layer + stage) * layout.vertex + part

    def _group(self, rank: int, action: Action) -> tuple[int, int]:
        """Give the first and the last rank of the world with which an action exchanges rows."""
        own, layout = self._true_rank(rank), self.facts.layout
        if action.peer is not None:
            peer = self._true_rank(action.peer)
            return min(own, peer), max(own, peer)
        if exchange_of(action).axis == "vertex":
            first = own - own % layout.vertex
            return first, first + layout.vertex - 1
        stride = layout.layer * layout.vertex
        return own % stride, own % stride + (layout.time - 1) * stride

    @cached_property
    def _crossings(self) -> dict[tuple[object, ...], bool]:
        return {}

    def _crosses(self, rank: int, action: Action) -> bool:
        """Say whether rows leave the host."""
        if self.world <= self.cluster.ranks_on_host(self.world):
            return False
        key = (rank, exchange_of(action).axis if action.peer is None else action.peer)
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
        layout, within = self.facts.layout, self.cluster.ranks_on_host(self.world)
        first, last = self._group(rank, action)
        if action.peer is not None:
            # only the ranks at the end of a host have their peer on another
            return float(min(last - first, within))
        along_vertices = exchange_of(action).axis == "vertex"
        members = layout.vertex if along_vertices else layout.time
        at_home = min(members, within) if along_vertices else max(1, within // (layout.layer * layout.vertex))
        return within * (members - at_home) / (members - 1)

    def copies(self, rank: int, action: Action) -> bool:
        """Say whether the rank itself moves the bytes of what it posts."""
        return self._link(rank, action).copies
