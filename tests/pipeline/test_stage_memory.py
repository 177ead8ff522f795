"""What a stage holds, counted by the pool that its large tensors come from, against the formula of docs/how.md.

The stage is set up from a job and shards on disk, as in a run; only the stages before and after it are made up.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trisect.comm.mesh import Mesh
from trisect.graph.graph import Graph
from trisect.layout import Layout
from trisect.nn.models.source import NamedModel
from trisect.ops import memory
from trisect.partition.partition import Partition
from trisect.pipeline.rank import Run
from trisect.shards import graph_files
from trisect.train import program as programs
from trisect.train import ranks
from trisect.train.setup import Setup

ROWS, WIDTH, CHUNKS, LAYERS, DEGREE = 1 << 16, 64, 8, 4, 4
LAYER = ROWS * WIDTH * 4  # bytes of a tensor of all rows, one of a chunk is 2 MiB
PACKED = 0.25 + 1 / 32 + 0.02  # of a layer: one element of four, a bit for each, a number a row
SLAB = 16 << 20  # packed rows lie in buffers of this size, the last of which may be nearly empty
PAGES = memory.HUGE * 2 * 8  # pieces of a chunk are rounded up to huge pages


def random_graph() -> Graph:
    """A random graph, so that every chunk reads every other."""
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(0, ROWS, (ROWS * DEGREE,), generator=generator)
    x = torch.rand(ROWS, WIDTH, generator=generator)
    train = torch.ones(ROWS, dtype=torch.bool)
    splits = {"train": train, "val": train, "test": train}
    return Graph.from_edges(
        source, torch.arange(ROWS).repeat_interleave(DEGREE), x=x, y=torch.arange(ROWS) % 8, splits=splits
    )


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

    def __init__(self, mesh: Mesh, *more: object) -> None:
        self.mesh, self.wire = mesh, "float32"

    def gather(self, own: Any) -> list[Any]:
        return [own]

    def receive(
        self, rows: int, width: int, dtype: torch.dtype, peer: int, tag: int, *, wire: str | None = None
    ) -> Sent:
        assert (width, dtype) == (WIDTH, torch.float32)
        return Sent(rows, tag, gradients=peer > self.mesh.rank)

    def send(self, rows: Tensor, peer: int, *more: object, **named: object) -> None:
        assert rows.shape[1] == WIDTH

    def unread(self, peer: int) -> int:
        return 0

    def flush(self, mark: int | None = None) -> None:
        pass


@pytest.fixture
def stage(rank_of: Callable[..., Setup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Setup]:
    """Make the four layers in the middle of a deep model, with dropout, as the second stage of three."""
    starts = tuple(range(0, ROWS + 1, ROWS // CHUNKS))
    equal = Partition(torch.arange(ROWS), starts, 1, CHUNKS)
    monkeypatch.setattr(graph_files, "cut_graph", lambda *values, **named: equal)
    for module in (ranks, programs):
        monkeypatch.setattr(module, "Transport", Alone)
    model = NamedModel("gcn", {"layers": 3 * LAYERS, "hidden": WIDTH, "dropout": 0.5}, 0)
    mesh = Mesh(Layout(layer=3, chunks=CHUNKS), 1, torch.device("cpu"))

    def make() -> Setup:
        made = rank_of(random_graph(), model, mesh, tmp_path)
        assert made.program.plan.bounds == (0, LAYERS, 2 * LAYERS, 3 * LAYERS)
        return made

    return make


def epoch(stage: Setup, number: int) -> Run:
    """Run an epoch, whose state is left for the caller to end; the first is exact."""
    program = stage.program
    program.begin(number)
    state = program._state
    assert state is not None
    program.run()
    return state


def peak() -> int:
    """The most that was held since the last call."""
    found = memory.stats().peak_bytes
    memory.trim()
    return found


def measured(make: Callable[[], Setup], *, ends: bool = True) -> tuple[Setup, dict[str, int]]:
    """The most that a stage held in its exact start, in later epochs, and in an evaluation between two."""
    memory.trim()
    before = memory.stats().used_bytes
    stage, found = make(), {}
    peak()
    state = epoch(stage, 1)
    found["start"] = peak() - before
    for number in (2, 3, 4):
        state.finish()
        state = epoch(stage, number)
    found["stale"] = peak() - before
    if ends:
        state.finish()
        peak()
    assert list(stage.program.outputs(range(1))) == []  # they are those of the last stage
    found["evaluation"] = peak() - before
    state.finish()
    found["between"] = memory.stats().used_bytes - before
    return stage, found


def test_a_stage_holds_what_the_formula_says(stage: Callable[[], Setup]) -> None:
    made, found = measured(stage)
    waiting = int(PACKED * (LAYERS + 1) * LAYER) + SLAB
    # an epoch over chunks: two tensors a layer, activations without zeros, some rows of a chunk
    bound = 2 * LAYERS * LAYER + waiting + PAGES
    assert found["stale"] < bound, (found, bound)
    # the exact start: one tensor a layer, activations without zeros, and the layer at work
    assert found["start"] <= LAYERS * LAYER + waiting + 6 * LAYER, found
    # an evaluation: history, and the layer at work
    assert found["evaluation"] <= LAYERS * LAYER + 3 * LAYER, found
    # between two epochs: history
    assert found["between"] == LAYERS * LAYER, found
    assert len(made.program.state()) == LAYERS
    # the formula is no loose one: without activations it does not hold
    assert found["stale"] > bound - waiting, (found, bound)


def test_what_is_not_let_go_is_seen(stage: Callable[[], Setup]) -> None:
    """The negative control: an evaluation beside what the epoch before it has left."""
    _, found = measured(stage, ends=False)
    assert found["evaluation"] > LAYERS * LAYER + 3 * LAYER, found
