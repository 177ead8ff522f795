"""Cases for graphs cut by vertex and layer; each compares this rank with one process."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trisect.comm.ledger import Ledger
from trisect.comm.mesh import connect
from trisect.comm.rows import Rows
from trisect.comm.transport import Transport
from trisect.engine.packed import PackedActivations
from trisect.engine.rank import HistoryUse, RankEngine
from trisect.exchanges.catalogue import volume
from trisect.graph.adjacency import Adjacency
from trisect.layout import Layout
from trisect.nn import FromPyG, build
from trisect.nn.base import Context, Model
from trisect.noise import Noise
from trisect.ops.message import Message
from trisect.partition import cut_graph, part_graph_of
from trisect.partition.partition import Partition
from trisect.plan import segments
from trisect.plan.build import in_order, schedule_of
from trisect.plan.plan import make_facts, whole
from trisect.schedule.action import Action, Verb
from trisect.schedule.validate import validate
from trisect.shards.graph_shard import GraphShard

FEATURES, CLASSES = 5, 3
_CUTS: dict[tuple[str, int, int], Partition] = {}


def graph_of(name: str, n: int = 41) -> Tensor:
    """A dense matrix; row i reads column j."""
    generator = torch.Generator().manual_seed(3)
    dense = torch.zeros(n, n, dtype=torch.float64)
    if name in ("community", "mutual"):
        group = torch.arange(n) * 4 // n
        near = group[:, None] == group[None, :]
        dense = (torch.rand(n, n, generator=generator) < torch.where(near, 0.4, 0.04)).double()
        dense = torch.maximum(dense, dense.T) if name == "mutual" else dense
    elif name == "star":
        dense[0, :] = 1
        dense[:, 0] = 1
    elif name == "path":
        dense += torch.diag(torch.ones(n - 1, dtype=torch.float64), 1)
        dense += torch.diag(torch.ones(n - 1, dtype=torch.float64), -1)
    elif name == "components":
        for low, high in ((0, n // 3), (n // 3, n)):
            size = high - low
            dense[low:high, low:high] = (torch.rand(size, size, generator=generator) < 0.2).double()
    elif name == "isolated":
        dense[: n // 2, : n // 2] = (torch.rand(n // 2, n // 2, generator=generator) < 0.2).double()
    dense.fill_diagonal_(1)
    degree = dense.sum(1)
    return dense / (degree[:, None] * degree[None, :]).sqrt()


def sparse(dense: Tensor) -> Adjacency:
    row, column = torch.nonzero(dense, as_tuple=True)
    pointers = torch.zeros(dense.shape[0] + 1, dtype=torch.int64)
    pointers[1:] = torch.cumsum(torch.bincount(row, minlength=dense.shape[0]), 0)
    return Adjacency.from_csr(pointers, column, dense[row, column], dense.shape[1])


def model_of(case: dict[str, Any]) -> Model:
    """The case's model in float64, its start drawn by seed."""
    if case["model"] == "pyg":
        from torch_geometric.nn import GATConv, SAGEConv

        convolutions = [
            FromPyG(SAGEConv(FEATURES, 6), "relu", 0.3),
            FromPyG(GATConv(6, 3, heads=2, add_self_loops=False), "elu"),
            FromPyG(SAGEConv(6, 6), "relu"),
            FromPyG(SAGEConv(6, CLASSES)),
        ]
        model: Model = Model(convolutions, normalisation="none", self_loops=True).double()
    else:
        built = build(case["model"], FEATURES, CLASSES, **case.get("options", {})).double()
        assert isinstance(built, Model)
        model = built
    model.reset_parameters(11)
    return model


def partition_of(case: dict[str, Any], matrix: Adjacency, layout: Layout) -> Partition:
    """METIS, or by hand: `components` (parts that do not read each other), `uneven` (a part of two vertices)."""
    count, chunks = matrix.rows, layout.chunks
    how = case.get("cut", "metis")
    if how == "metis":
        place = (case.get("graph", "community"), layout.vertex, chunks)
        if place not in _CUTS:
            _CUTS[place] = cut_graph(matrix, layout.vertex, chunks)
        return _CUTS[place]
    vertex = torch.arange(count)
    part = (vertex >= count // 3).long() if how == "components" else (vertex < count - 2).long().neg() + 1
    return Partition.from_assignment(part * chunks + vertex % chunks, layout.vertex, chunks)


def stage_bounds(layers: int, stages: int) -> list[int]:
    return [layers * s // stages for s in range(stages + 1)]


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient * ctx.scale, None


def simulate_stale(
    layers: list[Any],
    dense: Tensor,
    x: Tensor,
    chunks: list[Tensor],
    order: list[int],
    history: dict[int, Tensor],
    noise: Noise,
    scale: float,
) -> tuple[Tensor, dict[int, Tensor]]:
    """The definition, literally: vertices of a chunk read fresh rows of chunks that came before it (and its own), and
    history, a constant, of those that come after. The gradient of what another chunk read fresh is scaled.
    """
    n = x.shape[0]
    shared: dict[str, Tensor] = {}
    fresh_next: dict[int, Tensor] = {}
    current = x
    for number, layer in enumerate(layers):
        at = noise.at(layer=number)
        if not layer.spatial:
            current = layer(current, sparse(dense), Context(at, shared))
        else:
            message = layer.prepare(current, Context(at, shared))
            fresh_next[number] = message.detach().clone()
            outputs: list[Tensor | None] = [None] * n
            for position, chunk in enumerate(order):
                rows = chunks[chunk]
                read = history[number].clone()
                for before in order[:position]:
                    read[chunks[before]] = _ScaleGradient.apply(message[chunks[before]], scale)
                read[rows] = message[rows]
                elsewhere = torch.ones(n, dtype=torch.bool)
                elsewhere[rows] = False
                own_first = torch.cat([rows, torch.nonzero(elsewhere)[:, 0]])
                block = sparse(dense[rows][:, own_first])
                place = Noise(at.seed, at.epoch, at.layer, at.step, rows)
                near = {name: value[rows] for name, value in shared.items()}
                columns = Noise(at.seed, at.epoch, at.layer, at.step, own_first)
                out = layer.combine(Message(read[own_first]), current[rows], block, Context(place, near, columns))
                for k, vertex in enumerate(rows.tolist()):
                    outputs[vertex] = out[k]
            current = torch.stack([o for o in outputs if o is not None])
        if layer.writes is not None:
            shared[layer.writes] = current
    return current, fresh_next


class Setting:
    """A graph, a model and this rank's share of both."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.layout = Layout(**{"spatial": "halo", **case["layout"]})
        self.mesh = connect(self.layout, torch.device("cpu"), 60)
        self.dense = graph_of(case.get("graph", "community"))
        n = self.dense.shape[0]
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(n, FEATURES, generator=generator, dtype=torch.float64)
        self.y = torch.randint(CLASSES, (n,), generator=generator)
        self.train = torch.rand(n, generator=generator) < 0.5
        self.model = model_of(case)
        self.layers: list[Any] = list(self.model.layers)
        self.bounds = stage_bounds(len(self.layers), self.layout.layer)
        self.partition = partition_of(case, sparse(self.dense), self.layout)
        order = self.partition.order
        self.ordered = sparse(self.dense[order][:, order])
        self.part_graph = part_graph_of(self.ordered, self.partition, self.mesh.part_index)
        self.own = order[slice(*self.partition.part(self.mesh.part_index))]
        if case.get("untrained"):
            self.train[order[slice(*self.partition.part(0))]] = False
        self.delays, self.aggregated = random.Random(self.mesh.rank), bool(case.get("aggregated"))
        segments.OVERLAP_ROWS = 1 if case.get("overlap", True) else 1 << 30
        self.delayed = case.get("delayed", False)
        self.ledger = Ledger()
        self.exchange = Transport(self.mesh, self.ledger, self.layout.wire)

    def loss(self, output: Tensor, vertices: Tensor) -> Tensor:
        chosen = self.train[vertices]
        picked = nn.functional.cross_entropy(output[chosen], self.y[vertices][chosen], reduction="sum")
        return picked / self.train.sum()

    def rank(
        self, scale: float = 1.0, apart: bool = False, dtype: torch.dtype = torch.float64, *, stale: bool = True
    ) -> RankEngine:
        stale = stale and self.layout.chunks > 1
        starts = [self.partition.part(p)[0] for p in range(self.layout.vertex)]
        part_graphs = [part_graph_of(self.ordered, self.partition, p) for p in range(self.layout.vertex)]
        self.facts = make_facts(
            self.layers,
            None,
            self.layout,
            bounds=self.bounds,
            rows=[part_graph.rows for part_graph in part_graphs],
            chunk_rows=[part_graph.chunk_rows for part_graph in part_graphs],
            remote=[sum(part_graph.halo.numel() for part_graph in part_graphs)],
            aggregated=self.aggregated,
            symmetric=self.part_graph.symmetric,
            stale=stale,
            dtype=dtype,
        )
        shard = GraphShard(
            self.part_graph,
            lambda: self.x[self.own],
            self.own,
            self.partition.order[self.part_graph.halo],
            all_rows=lambda: self.ordered,
        )
        if self.aggregated and self.mesh.stage_index == 0:
            columns = torch.cat(
                [
                    torch.arange(starts[self.mesh.part_index], starts[self.mesh.part_index] + self.part_graph.rows),
                    self.part_graph.halo,
                ]
            )
            shard.keep_aggregated(lambda x: self.x[self.partition.order][columns])
        stage = self.mesh.stage_index
        layers = {k: self.layers[k] for k in range(self.bounds[stage], self.bounds[stage + 1])}
        return RankEngine(
            self.facts,
            self.exchange,
            shard,
            layers,
            lambda output, rows, first: self.loss(output[0], self.own[rows]),
            history=HistoryUse(scale, apart) if stale else None,
        )

    def epoch(self, rank: RankEngine, noise: Noise | None, order: list[int] | None, keep: float | None = 0.0) -> Tensor:
        """One epoch; without an order exact. Gradients are in the model's parameters. Gives the loss of all ranks."""
        facts = whole(self.facts) if order is None else self.facts
        schedule = schedule_of(facts)
        validate(schedule)
        actions = schedule.ranks[self.mesh.rank]
        if order is not None:
            actions = tuple(in_order(actions, order))
        stale = self.facts.stale
        state = rank.begin(noise, facts=facts, whole=order is None, keep=keep if stale else None)
        if self.delayed:
            do = state.do

            def late(action: Action) -> None:
                time.sleep(self.delays.random() * 0.004)
                do(action)

            state.do = late  # type: ignore[method-assign]
        state.run(actions)
        return self.exchange.sum_everywhere(state.finish())

    def formula(self) -> dict[str, int]:
        """Bytes of an exact epoch."""
        total = dict.fromkeys(("vertex", "layer", "time", "weights"), 0)
        for (axis, _), size in volume(whole(self.facts), schedule_of(whole(self.facts))).items():
            total[axis] += size
        return total

    def worst(self, wanted: dict[str, Tensor]) -> float:
        """The largest relative error of a gradient of this rank's layers."""
        first, last = self.bounds[self.mesh.stage_index], self.bounds[self.mesh.stage_index + 1]
        worst = 0.0
        for name, p in self.model.named_parameters():
            if first <= int(name.split(".")[1]) < last:
                grad = torch.zeros_like(p) if p.grad is None else p.grad
                scale = wanted[name].abs().max().clamp_min(1e-12)
                worst = max(worst, float((grad - wanted[name]).abs().max() / scale))
        return worst


def taken_gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def spoil_swaps(transport: Transport) -> None:
    """Make all that crosses between parts a little too large."""
    begin = transport.begin_swap

    def wrong(outgoing: Sequence[Any], *arguments: Any, **named: Any) -> Any:
        spoilt = [(rows.gathered() if isinstance(rows, Rows) else rows) * 1.01 for rows in outgoing]
        return begin(spoilt, *arguments, **named)

    transport.begin_swap = wrong  # type: ignore[method-assign]


def spoil_packed(packed: PackedActivations | None) -> None:
    """Let activations come back wrong."""
    assert packed is not None
    unpack = packed._unpack

    def wrong(saved: Any) -> Tensor:
        x = unpack(saved)
        return x if isinstance(saved, Tensor) else x * 1.01

    packed._unpack = wrong  # type: ignore[method-assign]


def gradients(case: dict[str, Any]) -> dict[str, Any]:
    """Every parameter's gradient and the loss, this rank against one process."""
    setting = Setting(case)
    noise = Noise(seed=9, epoch=2)
    out = setting.model(setting.x, sparse(setting.dense), noise)
    loss = setting.loss(out, torch.arange(len(out)))
    loss.backward()
    wanted = taken_gradients(setting.model)
    if case.get("break") == "halo":
        setting.part_graph.send[(setting.mesh.part_index + 1) % setting.layout.vertex][0][:] = 0
    rank = setting.rank()
    if case.get("break") == "swap":
        spoil_swaps(setting.exchange)
    if case.get("break") == "pack":
        spoil_packed(rank.stage.packed)
    total = setting.epoch(rank, noise, None)
    packed = rank.stage.packed
    actions = schedule_of(whole(setting.facts)).ranks[setting.mesh.rank]
    return {
        "across": [layer.across for layer in setting.facts.layers],
        "again": sum(action.verb is Verb.AGAIN for action in actions),
        "gradient": setting.worst(wanted),
        "loss": abs(float(total) - float(loss.detach())) / abs(float(loss.detach())),
        "bytes": setting.ledger.by_axis(),
        "formula": setting.formula(),
        "packed": None if packed is None else [packed.full_bytes, packed.held_bytes],
        "boundary": setting.part_graph.interior()[0],
        "halo": setting.part_graph.halo.numel(),
    }


def losses(case: dict[str, Any]) -> dict[str, Any]:
    """Twenty epochs in float32 with Adam: the largest relative difference of a loss to one process."""
    setting = Setting(case)
    alone = copy.deepcopy(setting.model).float()
    setting.model.float()
    setting.x, setting.dense = setting.x.float(), setting.dense.float()
    order = setting.partition.order
    setting.part_graph = part_graph_of(
        sparse(setting.dense[order][:, order]), setting.partition, setting.mesh.part_index
    )
    matrix = sparse(setting.dense)
    rank = setting.rank(dtype=torch.float32)
    own = rank.parameters
    steps = [torch.optim.Adam(alone.parameters(), 0.01), torch.optim.Adam(own, 0.01)]
    worst = 0.0
    for epoch in range(20):
        noise = Noise(seed=case.get("seed", 9), epoch=epoch)
        loss = setting.loss(alone(setting.x, matrix, Noise(seed=9, epoch=epoch)), torch.arange(len(setting.x)))
        loss.backward()
        total = setting.epoch(rank, noise, None)
        for step in steps:
            step.step()
            step.zero_grad()
        worst = max(worst, abs(float(total) - float(loss.detach())) / float(loss.detach()))
    return {"loss": worst}


def stale(case: dict[str, Any]) -> dict[str, Any]:
    """Four epochs of the pipeline over chunks against the literal simulation of its definition."""
    setting = Setting(case)
    scale, period, blend = case.get("scale", 1.0), case.get("period", 1), case.get("blend", 0.0)
    parts = [
        torch.cat(
            [setting.partition.order[slice(*setting.partition.chunk(p, c))] for p in range(setting.layout.vertex)]
        )
        for c in range(setting.layout.chunks)
    ]
    rank = setting.rank(scale, apart=period > 1 or blend > 0.0)
    history: dict[int, Tensor] = {}
    worst, worst_loss = 0.0, 0.0
    for epoch in range(4):
        noise = Noise(seed=9, epoch=epoch)
        order = None
        if epoch > 0:
            generator = torch.Generator().manual_seed(epoch)
            order = torch.randperm(setting.layout.chunks, generator=generator).tolist()
        everyone = [torch.arange(len(setting.x))]
        empty = {
            k: torch.zeros(len(setting.x), layer.message_channels, dtype=torch.float64)
            for k, layer in enumerate(setting.layers)
            if layer.spatial
        }
        out, fresh = simulate_stale(
            setting.layers,
            setting.dense,
            setting.x,
            everyone if order is None else parts,
            [0] if order is None else order,
            empty if order is None else history,
            noise,
            scale,
        )
        keep = None
        if epoch % period == 0:
            keep = 0.0 if order is None else blend
            history = {k: fresh[k] if keep == 0.0 else torch.lerp(history[k], fresh[k], 1 - keep) for k in fresh}
        loss = setting.loss(out, torch.arange(len(out)))
        loss.backward()
        wanted = taken_gradients(setting.model)
        if case.get("break") == "order" and order is not None:
            order = order[::-1]
        total = setting.epoch(rank, noise, order, keep)
        worst = max(worst, setting.worst(wanted))
        worst_loss = max(worst_loss, abs(float(total) - float(loss.detach())) / abs(float(loss.detach())))
        setting.model.zero_grad()
        with torch.no_grad():
            for name, parameter in setting.model.named_parameters():
                parameter -= 0.1 * wanted[name]
    return {"gradient": worst, "loss": worst_loss, "bytes": setting.ledger.by_axis()}
