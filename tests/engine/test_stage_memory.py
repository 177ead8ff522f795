"""What a stage holds, counted by the pool that its large tensors come from, against the formula of docs/how.md."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trisect.comm.mesh import Mesh
from trisect.engine.executor import Executor
from trisect.engine.rank import RankEngine
from trisect.exchanges.history import HistoryUse
from trisect.graph.adjacency import Adjacency
from trisect.layout import Layout
from trisect.nn.base import Model
from trisect.nn.models.registry import build
from trisect.noise import Noise
from trisect.ops import memory
from trisect.partition.halo import PartGraph, part_graph_of
from trisect.partition.partition import Partition
from trisect.plan.build import in_order, schedule_of
from trisect.plan.plan import forward_only, make_facts, without_chunks
from trisect.schedule.action import Pass, Verb
from trisect.shards.graph_shard import GraphShard

ROWS, WIDTH, CHUNKS, LAYERS, DEGREE = 1 << 16, 64, 8, 4, 4
LAYER = ROWS * WIDTH * 4  # bytes of a tensor of all rows, one of a chunk is 2 MiB
PACKED = 0.25 + 1 / 32 + 0.02  # of a layer: one element of four, a bit for each, a number a row
SLAB = 16 << 20  # packed rows lie in buffers of this size, the last of which may be nearly empty
PAGES = memory.SMALLEST * 2 * 8  # pieces of a chunk are rounded up to huge pages


def part_graph() -> PartGraph:
    """A random graph, so that every chunk reads every other."""
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(0, ROWS, (ROWS, DEGREE), generator=generator, dtype=torch.int32).sort(1).values.flatten()
    pointers = torch.arange(0, ROWS * DEGREE + 1, DEGREE)
    values = torch.full((ROWS * DEGREE,), 1 / DEGREE)
    starts = tuple(range(0, ROWS + 1, ROWS // CHUNKS))
    partition = Partition(torch.arange(ROWS), starts, 1, CHUNKS)
    return part_graph_of(Adjacency.from_csr(pointers, indices, values, ROWS), partition, 0)


class Sent:
    """A message of the stage before, or the gradients of the one after."""

    def __init__(self, rows: int, seed: int, *, gradients: bool) -> None:
        self._rows, self._seed, self._gradients = rows, seed, gradients

    def wait(self) -> Tensor:
        if self._gradients:
            return torch.ones(self._rows, WIDTH)
        # one element of four is not zero, as after relu and dropout
        x = torch.rand(self._rows, WIDTH, generator=torch.Generator().manual_seed(self._seed))
        return x * (x > 0.75)


class Alone:
    """A transport of which only the mesh is real: the stages before and after are made up."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def receive(self, rows: int, width: int, dtype: torch.dtype, peer: int, tag: int) -> Sent:
        assert (width, dtype) == (WIDTH, torch.float32)
        return Sent(rows, tag, gradients=peer > self.mesh.rank)

    def send(self, rows: Tensor, peer: int, *more: object, **named: object) -> None:
        assert rows.shape[1] == WIDTH

    def unread(self, peer: int) -> int:
        return 0

    def flush(self, mark: int | None = None) -> None:
        pass


def a_stage() -> RankEngine:
    """Layers in the middle of a deep model, with dropout, as the second stage of three."""
    model = build("gcn", WIDTH, 8, layers=LAYERS + 2, hidden=WIDTH, dropout=0.5)
    assert isinstance(model, Model)
    layout, part = Layout(layer=3, chunks=CHUNKS), part_graph()
    bounds = (0, 1, LAYERS + 1, LAYERS + 2)
    facts = make_facts(
        model.stack, None, layout, bounds=bounds, rows=(ROWS,), chunk_rows=(part.chunk_rows,), stale=True
    )
    shard = GraphShard(part, lambda: torch.empty(0), torch.arange(ROWS))
    transport: Any = Alone(Mesh(layout, 1, torch.device("cpu")))
    layers = {k: model.stack[k] for k in range(1, LAYERS + 1)}
    return RankEngine(facts, transport, shard, layers, lambda *_: torch.zeros(()), history=HistoryUse(1.0, apart=True))


def epoch(stage: RankEngine, number: int, *, exact: bool) -> Executor:
    facts = without_chunks(stage.facts) if exact else stage.facts
    actions = [action for action in schedule_of(facts).ranks[1] if action.verb is not Verb.STEP]
    state = stage.begin(Noise(0, number), facts=facts, chunked=not exact, keep=0.0 if exact else 0.8)
    order = torch.randperm(CHUNKS, generator=torch.Generator().manual_seed(number)).tolist()
    state.run(actions if exact else in_order(actions, order))
    return state


def evaluation(stage: RankEngine) -> None:
    facts = forward_only(stage.facts)
    state = stage.begin(None, pass_=Pass.EVALUATE, facts=facts)
    state.run(schedule_of(facts, pass_=Pass.EVALUATE).ranks[1])
    state.finish()


def peak() -> int:
    """The most that was held since the last call."""
    found = memory.stats().peak_bytes
    memory.trim()
    return found


def measured(*, ends: bool = True) -> tuple[RankEngine, dict[str, int]]:
    """The most that a stage held in its exact start, in later epochs, and in an evaluation between two."""
    memory.trim()
    before = memory.stats().used_bytes
    stage, found = a_stage(), {}
    peak()
    state = epoch(stage, 1, exact=True)
    found["start"] = peak() - before
    for number in (2, 3, 4):
        state.finish()
        state = epoch(stage, number, exact=False)
    found["stale"] = peak() - before
    if ends:
        state.finish()
        peak()
    evaluation(stage)
    found["evaluation"] = peak() - before
    state.finish()
    found["between"] = memory.stats().used_bytes - before
    return stage, found


def test_a_stage_holds_what_the_formula_says() -> None:
    stage, found = measured()
    waiting = int(PACKED * (LAYERS + 1) * LAYER) + SLAB
    # an epoch over chunks: two tensors a layer, activations without zeros, some rows of a chunk
    bound = 2 * LAYERS * LAYER + waiting + PAGES
    assert found["stale"] < bound, (found, bound)
    # the exact start: one tensor a layer, activations without zeros, and the layer at work
    assert found["start"] <= LAYERS * LAYER + waiting + 6 * LAYER, found
    # an evaluation: history, and the layer at work
    assert found["evaluation"] <= LAYERS * LAYER + 4 * LAYER, found
    # between two epochs: history
    assert found["between"] == LAYERS * LAYER, found
    assert stage.boards is not None
    assert len(stage.boards.history.history()) == LAYERS
    # the formula is no loose one: without activations it does not hold
    assert found["stale"] > bound - waiting, (found, bound)


def test_what_is_not_let_go_is_seen() -> None:
    """The negative control: an evaluation beside what the epoch before it has left."""
    _, found = measured(ends=False)
    assert found["evaluation"] > LAYERS * LAYER + 4 * LAYER, found
