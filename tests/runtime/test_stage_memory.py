"""What a stage holds, counted by the pool that its large tensors come from, against the formula of docs/how.md."""

from __future__ import annotations

import torch

from trisect.graph.adjacency import Adjacency
from trisect.nn.base import Model
from trisect.nn.registry import build
from trisect.noise import Noise
from trisect.ops import memory
from trisect.partition.halo import Share, share_of
from trisect.partition.partition import Partition
from trisect.runtime.stage import Stage

ROWS, WIDTH, CHUNKS, LAYERS, DEGREE = 1 << 16, 64, 8, 4, 4
LAYER = ROWS * WIDTH * 4  # bytes of a tensor of all rows, one of a chunk is 2 MiB
PACKED = 0.25 + 1 / 32 + 0.02  # of a layer: one element of four, a bit for each, a number a row
SLAB = 16 << 20  # packed rows lie in buffers of this size, the last of which may be nearly empty
PAGES = memory.SMALLEST * 2 * 8  # pieces of a chunk are rounded up to huge pages


def share() -> Share:
    """A random graph, so that every chunk reads every other."""
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(0, ROWS, (ROWS, DEGREE), generator=generator, dtype=torch.int32).sort(1).values.flatten()
    pointers = torch.arange(0, ROWS * DEGREE + 1, DEGREE)
    values = torch.full((ROWS * DEGREE,), 1 / DEGREE)
    starts = tuple(range(0, ROWS + 1, ROWS // CHUNKS))
    partition = Partition(torch.arange(ROWS), starts, 1, CHUNKS)
    return share_of(Adjacency.from_csr(pointers, indices, values, ROWS), partition, 0)


def a_stage() -> Stage:
    """Layers in the middle of a deep model, with dropout."""
    model = build("gcn", WIDTH, 8, layers=LAYERS + 2, hidden=WIDTH, dropout=0.5)
    assert isinstance(model, Model)
    return Stage(model.stack[1:-1], 1, share(), torch.arange(ROWS), stale=True, apart=True)


def rows_before(rows: slice) -> torch.Tensor:
    """What the stage before sends: one element of four is not zero, as after relu and dropout."""
    x = torch.rand(rows.stop - rows.start, WIDTH, generator=torch.Generator().manual_seed(rows.start))
    return x * (x > 0.75)


def forward(stage: Stage, chunk: int, *, trained: bool) -> None:
    with torch.set_grad_enabled(trained):
        stage.enter(chunk, rows_before(stage.rows_of(chunk)), {}, trained=trained)
        for segment in range(len(stage.segments)):
            stage.forward(chunk, segment)
        stage.release(chunk)


def epoch(stage: Stage, number: int, *, whole: bool) -> None:
    stage.begin(Noise(0, number), whole=whole, keep=0.0 if whole else 0.8)
    order = [0] if whole else torch.randperm(CHUNKS, generator=torch.Generator().manual_seed(number)).tolist()
    for chunk in order:
        forward(stage, chunk, trained=True)
    for chunk in reversed(order):
        rows = stage.rows_of(chunk)
        for segment in reversed(range(len(stage.segments))):
            last = segment == len(stage.segments) - 1
            stage.backward(chunk, segment, gradient=torch.ones(rows.stop - rows.start, WIDTH) if last else None)
        stage.leave(chunk)


def evaluation(stage: Stage) -> None:
    stage.begin(None, whole=True, aside=True)
    forward(stage, 0, trained=False)
    stage.visits.clear()


def peak() -> int:
    """The most that was held since the last call."""
    found = memory.stats().peak_bytes
    memory.trim()
    return found


def measured(*, ends: bool = True) -> tuple[Stage, dict[str, int]]:
    """The most that a stage held in its exact start, in later epochs, and in an evaluation between two."""
    memory.trim()
    before = memory.stats().used_bytes
    stage, found = a_stage(), {}
    peak()
    epoch(stage, 1, whole=True)
    found["start"] = peak() - before
    for number in (2, 3, 4):
        stage.end()
        epoch(stage, number, whole=False)
    found["stale"] = peak() - before
    if ends:
        stage.end()
        peak()
    evaluation(stage)
    found["evaluation"] = peak() - before
    stage.end()
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
    assert len(stage.messages.history()) == LAYERS
    # the formula is no loose one: without activations it does not hold
    assert found["stale"] > bound - waiting, (found, bound)


def test_what_is_not_let_go_is_seen() -> None:
    """The negative control: an evaluation beside what the epoch before it has left."""
    _, found = measured(ends=False)
    assert found["evaluation"] > LAYERS * LAYER + 4 * LAYER, found
