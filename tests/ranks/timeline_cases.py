"""What a rank does in a test of timelines; each case is compared by the rank with one process and one block."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import torch
from static_cases import spoil_packed
from torch import Tensor, nn

from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh, connect
from trisect.comm.rows import Rows
from trisect.comm.transport import Transport
from trisect.engine.rank import PassState, RankEngine
from trisect.exchanges.catalogue import volume
from trisect.graph.adjacency import Adjacency
from trisect.layout import Layout
from trisect.nn import build
from trisect.nn.dynamic import DynamicModel, first_aggregation
from trisect.noise import Noise
from trisect.partition.halo import PartGraph
from trisect.plan import segments
from trisect.plan.build import schedule_of
from trisect.plan.plan import forward_only, make_facts, runs_until
from trisect.schedule.action import Action, Pass
from trisect.schedule.validate import validate
from trisect.shards.shard import Shard

FEATURES, CLASSES = 3, 3
_MESHES: dict[tuple[int, int, int], Mesh] = {}


def mesh_of(layout: Layout) -> Mesh:
    """Groups are made once for all cases of a world."""
    key = (layout.time, layout.layer, layout.vertex)
    if key not in _MESHES:
        _MESHES[key] = connect(layout, torch.device("cpu"), 60)
    return replace(_MESHES[key], layout=layout)


def sparse(dense: Tensor) -> Adjacency:
    row, column = torch.nonzero(dense, as_tuple=True)
    pointers = torch.zeros(dense.shape[0] + 1, dtype=torch.int64)
    pointers[1:] = torch.cumsum(torch.bincount(row, minlength=dense.shape[0]), 0)
    return Adjacency.from_csr(pointers, column, dense[row, column], dense.shape[1])


def dense_snapshots(steps: int, n: int, loops: bool, *, symmetric: bool = False, near: int = 0) -> list[Tensor]:
    """Graphs of growing size; step 2 has no edges, and the last two vertices never have one.

    Args:
        symmetric: edges go both ways with the same weight; otherwise they are directed.
        near: so many of the last vertices have edges to those alone whose id is as they, even or odd.
    """
    generator = torch.Generator().manual_seed(3)
    found = []
    for step in range(steps):
        dense = (torch.rand(n, n, generator=generator) < 0.05 + 0.01 * step).double()
        dense *= torch.rand(n, n, generator=generator, dtype=torch.float64) + 0.2
        if step == 2:
            dense.zero_()
        dense[-2:] = 0
        dense[:, -2:] = 0
        vertex = torch.arange(n)
        far = ((vertex[:, None] + vertex[None, :]) % 2 == 1) & (torch.maximum(vertex[:, None], vertex) >= n - near)
        dense[far] = 0
        dense = torch.maximum(dense, dense.T) if symmetric else dense
        dense.fill_diagonal_(1.0 if loops else 0.0)
        found.append(dense)
    return found


def cut_steps(steps: int, blocks: int, times: int, uneven: bool) -> tuple[tuple[range, ...], ...]:
    """Runs of each block; uneven: the first moment has one step, the second of several has none."""
    result = []
    for b in range(blocks):
        start, stop = steps * b // blocks, steps * (b + 1) // blocks
        size = stop - start
        cuts = [size * m // times for m in range(times + 1)]
        if uneven and times > 1:
            cuts = [0, *[min(1, size)] * (times - 1), size] if times > 2 else [0, min(1, size), size]
        result.append(tuple(range(start + a, start + b) for a, b in pairwise(cuts)))
    return tuple(result)


def runs_of(sizes: Sequence[Sequence[int]]) -> tuple[tuple[range, ...], ...]:
    """Consecutive runs: the number of steps of each run of each block."""
    result, at = [], 0
    for block in sizes:
        row = []
        for size in block:
            row.append(range(at, at + size))
            at += size
        result.append(tuple(row))
    return tuple(result)


@dataclass(eq=False)
class DenseShard(Shard):
    """A part of dense snapshots; rows are the vertices with id % ways == way."""

    rows: int
    vertices: Tensor | None
    part_index: int
    ways: int
    dense: Sequence[Tensor]
    xs: Tensor
    keep: bool
    known: Tensor | None
    symmetric: bool = False

    def owned(self, part_index: int) -> Tensor:
        return torch.arange(part_index, self.dense[0].shape[0], self.ways)

    def features(self, steps: range) -> Tensor:
        own = self.owned(self.part_index)
        return self.xs[own] if self.xs.dim() == 2 else self.xs[steps.start : steps.stop, own]

    def wanted(self, step: int, reader: int, owner: int) -> Tensor:
        """Positions among the owner's rows that the reader's rows read."""
        if reader == owner:
            return torch.empty(0, dtype=torch.int64)
        block = self.dense[step][self.owned(reader)][:, self.owned(owner)]
        return torch.nonzero(block.abs().sum(0))[:, 0]

    def snapshots(self, steps: range) -> Sequence[Adjacency]:
        own = self.owned(self.part_index)
        found = []
        for step in steps:
            others = [self.owned(w)[self.wanted(step, self.part_index, w)] for w in range(self.ways)]
            found.append(sparse(self.dense[step][own][:, torch.cat([own, *others])]))
        return found

    def aggregated(self, steps: range) -> Tensor | None:
        if not self.keep or self.known is None:
            return None
        return self.known[steps.start : steps.stop, self.owned(self.part_index)]

    def part_graph(self, step: int) -> PartGraph:
        wanted = [self.wanted(step, self.part_index, w) for w in range(self.ways)]
        starts = [0]
        for rows in wanted:
            starts.append(starts[-1] + rows.numel())
        halo = torch.cat([self.owned(w)[rows] for w, rows in enumerate(wanted)])
        return PartGraph(
            self.part_index,
            self.snapshots(range(step, step + 1))[0],
            halo,
            tuple(((starts[w], starts[w + 1]),) for w in range(self.ways)),
            tuple((self.wanted(step, w, self.part_index),) for w in range(self.ways)),
            (0, self.rows),
            self.symmetric,
        )

    def column_ids(self, step: int) -> Tensor | None:
        return torch.cat([self.owned(self.part_index), self.part_graph(step).halo])

    def interior(self) -> tuple[int, ...]:
        own = self.owned(self.part_index)
        others = torch.arange(self.dense[0].shape[0]) % self.ways != self.part_index
        outer = sum(dense[own][:, others].abs().sum(1) + dense[others][:, own].abs().sum(0) for dense in self.dense)
        rows = torch.nonzero(torch.as_tensor(outer))
        return (int(rows[-1]) + 1 if rows.numel() else 0,)

    def all_rows(self, steps: range) -> Sequence[Adjacency]:
        order = torch.cat([self.owned(w) for w in range(self.ways)])
        return [sparse(self.dense[step][order][:, order]) for step in steps]


class Setting:
    """A timeline, a model and this rank's part of both."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.layout = Layout(**{"spatial": "halo", **case["layout"]})
        self.mesh = mesh_of(self.layout)
        self.n, self.steps = case.get("vertices", 23), case.get("steps", sum(map(sum, case.get("runs", [[7]]))))
        options = case.get("options", {})
        segments.OVERLAP_ROWS = 1 if case.get("overlap") else 1 << 30
        self.dense = dense_snapshots(
            self.steps + 3,
            self.n,
            options.get("spatial") != "sage",
            symmetric=bool(case.get("symmetric")),
            near=self.n // 3 if case.get("overlap") else 0,
        )
        generator = torch.Generator().manual_seed(5)
        shape = (self.n, FEATURES) if case.get("fixed") else (self.steps + 3, self.n, FEATURES)
        self.xs = torch.randn(*shape, generator=generator, dtype=torch.float64)
        self.y = torch.randint(CLASSES, (self.steps + 3, self.n), generator=generator)
        self.train = torch.rand(self.steps + 3, self.n, generator=generator) < 0.5
        self.pairs = torch.randint(self.n, (self.steps + 3, 2, 11), generator=generator)
        self.model = cast(Any, build(case["model"], FEATURES, CLASSES, seed=11, **options)).double()
        self.layers = self.model.stack
        self.head = getattr(self.model, "head", None)
        stages = self.layout.layer
        self.bounds = [len(self.layers) * s // stages for s in range(stages + 1)]
        cut = cut_steps(self.steps, self.layout.blocks, self.layout.time, case.get("uneven", False))
        self.runs = runs_of(case["runs"]) if "runs" in case else cut
        self.whole = [sparse(dense) for dense in self.dense]
        keep = bool(case.get("aggregated"))
        own = torch.arange(self.mesh.part_index, self.n, self.layout.vertex)
        self.part = DenseShard(
            rows=own.numel(),
            vertices=own,
            part_index=self.mesh.part_index,
            ways=self.layout.vertex,
            dense=self.dense,
            xs=self.xs,
            keep=keep,
            known=first_aggregation(self.xs, self.whole) if keep else None,
            symmetric=bool(case.get("symmetric")),
        )
        self.rows = [self.part.owned(w).numel() for w in range(self.layout.vertex)]
        ways = range(self.layout.vertex)
        remote = [sum(self.part.wanted(s, r, o).numel() for r in ways for o in ways) for s in range(self.steps + 3)]
        self.facts = make_facts(
            self.layers,
            self.head,
            self.layout,
            bounds=self.bounds,
            runs=self.runs,
            rows=self.rows,
            remote=remote,
            timeline=True,
            aggregated=keep,
            fixed=bool(case.get("fixed")),
            fetches=bool(case.get("pairs")),
            symmetric=bool(case.get("symmetric")),
            dtype=torch.float64,
        )
        self.ledger = Ledger()
        self.exchange = Transport(self.mesh, self.ledger, self.layout.wire)

    def node_loss(self, frames: Sequence[Tensor] | Tensor, first: int, rows: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for t, frame in enumerate(frames):
            chosen = self.train[first + t][rows]
            wanted = self.y[first + t][rows][chosen]
            total = total + nn.functional.cross_entropy(frame[: len(rows)][chosen], wanted, reduction="sum")
        return total / 50.0

    def pair_loss(self, frames: Sequence[Tensor] | Tensor, first: int, part_index: int, ways: int) -> Tensor:
        """Pairs whose first end is of the way; rows of other ways stand after the own, by way."""
        total = torch.zeros((), dtype=torch.float64)
        for t, frame in enumerate(frames):
            src, dst = self.pairs[first + t]
            mine = src % ways == part_index
            if ways == 1:
                a, b = frame[src], frame[dst]
            else:
                place = {int(v): k for k, v in enumerate(torch.arange(part_index, self.n, ways))}
                offset = len(place)
                for other in range(ways):
                    for k, position in enumerate(self.wanted_rows(first + t, part_index, other, ways).tolist()):
                        place[position * ways + other] = offset + k
                    offset += self.wanted_rows(first + t, part_index, other, ways).numel()
                a = frame[[place[int(v)] for v in src[mine]]]
                b = frame[[place[int(v)] for v in dst[mine]]]
            total = total + nn.functional.softplus(-(a * b).sum(1)).sum()
        return total / 20.0

    def wanted_rows(self, step: int, reader: int, owner: int, ways: int) -> Tensor:
        if reader == owner:
            return torch.empty(0, dtype=torch.int64)
        src, dst = self.pairs[step]
        return torch.unique(dst[(src % ways == reader) & (dst % ways == owner)] // ways)

    def loss(self, frames: Sequence[Tensor] | Tensor, first: int) -> Tensor:
        if self.case.get("pairs"):
            return self.pair_loss(frames, first, self.mesh.part_index, self.layout.vertex)
        return self.node_loss(frames, first, self.part.owned(self.mesh.part_index))

    def frames_of(self, xs: Tensor, steps: int, noise: Noise | None) -> Tensor:
        """The outputs of one process: a dynamic model over the timeline, or a static one in each snapshot."""
        if isinstance(self.model, DynamicModel):
            return cast(Tensor, self.model(xs, self.whole[:steps], None, noise)[0])
        places = [None if noise is None else noise.at(step=t) for t in range(steps)]
        return torch.stack([self.model(xs if xs.dim() == 2 else xs[t], self.whole[t], places[t]) for t in range(steps)])

    def reference(self, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        xs = self.xs if self.xs.dim() == 2 else self.xs[: self.steps]
        frames = self.frames_of(xs, self.steps, noise)
        if self.case.get("pairs"):
            loss = self.pair_loss(frames, 0, 0, 1)
        else:
            loss = self.node_loss(frames, 0, torch.arange(self.n))
        loss.backward()
        wanted = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        self.model.zero_grad()
        return loss.detach(), wanted

    def rank(self) -> RankEngine:
        ways = range(self.layout.vertex)

        def readers(step: int, noise: Noise | None) -> list[list[Tensor]]:
            return [[self.wanted_rows(step, r, o, len(ways)) for o in ways] for r in ways]

        def loss(frames: Any, rows: slice, first: int) -> Tensor:
            if self.case.get("pairs"):
                return self.pair_loss(frames, first, self.mesh.part_index, self.layout.vertex)
            return self.node_loss(frames, first, self.part.owned(self.mesh.part_index)[rows])

        stage = self.mesh.stage_index
        layers = {k: self.layers[k] for k in range(self.bounds[stage], self.bounds[stage + 1])}
        if self.head is not None and stage == self.layout.layer - 1:
            layers[len(self.layers)] = self.head
        return RankEngine(self.facts, self.exchange, self.part, layers, loss, readers=readers)

    def epoch(self, rank: RankEngine, noise: Noise | None) -> Tensor:
        schedule = schedule_of(self.facts)
        validate(schedule)
        state = rank.begin(noise)
        if self.case.get("delayed"):
            _delay(state, random.Random(self.mesh.rank))
        state.run(schedule.ranks[self.mesh.rank])
        return self.exchange.sum_everywhere(state.finish())

    def worst(self, wanted: dict[str, Tensor]) -> float:
        """The largest relative error of a gradient of this rank's layers."""
        first, last = self.bounds[self.mesh.stage_index], self.bounds[self.mesh.stage_index + 1]
        worst = 0.0
        for name, p in self.model.named_parameters():
            head = name.startswith("head")
            mine = self.mesh.stage_index == self.layout.layer - 1 if head else first <= int(name.split(".")[1]) < last
            if mine:
                grad = torch.zeros_like(p) if p.grad is None else p.grad
                scale = wanted[name].abs().max().clamp_min(1e-12)
                worst = max(worst, float((grad - wanted[name]).abs().max() / scale))
        return worst

    def formula(self) -> dict[tuple[str, str], int]:
        ways = range(self.layout.vertex)
        fetched = [
            sum(self.wanted_rows(s, r, o, len(ways)).numel() for r in ways for o in ways) for s in range(self.steps)
        ]
        return {key: size for key, size in volume(self.facts, schedule_of(self.facts), fetched).items() if size}

    def sent(self) -> dict[tuple[str, str], int]:
        """What all ranks sent in the epoch."""
        total: dict[tuple[str, str], int] = {}
        for entries in self.exchange.gather([(e.axis, e.kind, e.bytes) for e in self.ledger.entries()]):
            for axis, kind, size in entries:
                if size:
                    total[axis, kind] = total.get((axis, kind), 0) + size
        return total


def _delay(state: PassState, delays: random.Random) -> None:
    do = state.do

    def late(action: Action) -> None:
        time.sleep(delays.random() * 0.002)
        do(action)

    state.do = late  # type: ignore[method-assign]


def _break(setting: Setting, rank: RankEngine) -> None:
    """Spoil one exchange, so that the comparison must fail."""
    which = setting.case["break"]
    if which == "carry":
        packing = list(rank.recurrences.values())[-1].packing
        pack = packing.pack
        packing.pack = lambda state: pack(state) * 1.01  # type: ignore[method-assign]
    elif which == "swap":
        begin = setting.exchange.begin_swap

        def spoilt(rows: Any) -> Tensor:
            return (rows.gathered() if isinstance(rows, Rows) else rows) * 1.01

        def wrong(outgoing: Sequence[Any], *arguments: Any, **named: Any) -> Any:
            return begin([spoilt(rows) for rows in outgoing], *arguments, **named)

        setting.exchange.begin_swap = wrong  # type: ignore[method-assign]
    elif which == "pack":
        spoil_packed(rank.stage.packed)
    elif which == "send":
        send = setting.exchange.send

        def late(x: Tensor, *arguments: Any, **named: Any) -> None:
            send(x * 1.01, *arguments, **named)

        setting.exchange.send = late  # type: ignore[method-assign]


def timeline(case: dict[str, Any]) -> dict[str, Any]:
    """Every parameter's gradient, the loss and the bytes, this rank against one process and the formula."""
    start = time.perf_counter()
    setting = Setting(case)
    noise = Noise(seed=9, epoch=2)
    loss, wanted = setting.reference(noise)
    rank = setting.rank()
    if "break" in case:
        _break(setting, rank)
    result: dict[str, Any] = {"loss": 0.0}
    # twice, since an epoch must leave nothing behind
    for _ in range(2 if case.get("twice") else 1):
        setting.model.zero_grad()
        setting.ledger.clear()
        total = setting.epoch(rank, noise)
        result["loss"] = max(result["loss"], float((total - loss).abs() / loss.abs()))
        result["gradient"] = setting.worst(wanted)
    result["along"] = [layer.along for layer in setting.facts.layers]
    result["across"] = [layer.across for layer in setting.facts.layers]
    result["interior"] = setting.part.rows - setting.part.interior()[0]
    packed = rank.stage.packed
    result["packed"] = None if packed is None else [packed.full_bytes, packed.held_bytes]
    result["sides"] = sum(action.side is not None for action in schedule_of(setting.facts).ranks[setting.mesh.rank])
    sent, formula = setting.sent(), setting.formula()
    result["bytes"] = {"/".join(key): size for key, size in sorted(sent.items())}
    result["formula"] = {"/".join(key): size for key, size in sorted(formula.items())}
    if case.get("evaluate"):
        result["outputs"] = evaluated(setting, rank)
    result["seconds"] = time.perf_counter() - start
    return result


def evaluated(setting: Setting, rank: RankEngine) -> float:
    """The largest error of the outputs of own rows, later steps than those of training included."""
    steps = setting.steps + 3
    with torch.no_grad():
        wanted = setting.frames_of(setting.xs, steps, None)
    worst, seen = 0.0, torch.zeros(steps, dtype=torch.int64)
    own = setting.part.owned(setting.mesh.part_index)
    facts = forward_only(setting.facts, runs_until(setting.runs, setting.steps, steps))
    state = rank.begin(None, pass_=Pass.EVALUATE, facts=facts)
    schedule = schedule_of(facts, pass_=Pass.EVALUATE)
    validate(schedule)
    for first, frames in state.stream(schedule.ranks[setting.mesh.rank]):
        reference = wanted[first : first + len(frames), own]
        worst = max(worst, float((frames - reference).abs().max()))
        seen[first : first + len(frames)] += 1
    state.finish()
    seen = setting.exchange.sum_everywhere(seen)
    complete = bool((seen == setting.layout.vertex).all())
    return worst if complete else float("inf")
