"""A pass of one rank over its cells: told in order and without a gap, outputs as they are made, an end at an error.

The rank is set up from a job and shards on disk, as in a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from trisect.comm.mesh import Mesh
from trisect.config import TrainOptions
from trisect.graph.graph import Graph
from trisect.layout import History, Layout
from trisect.nn.base import Model
from trisect.nn.models.source import NamedModel, full_model
from trisect.pipeline.cell import Cell
from trisect.pipeline.rank import Run
from trisect.pipeline.stage import Values
from trisect.train.loop import Trainer
from trisect.train.recorders import NoRecorder
from trisect.train.setup import Setup
from trisect.views.history_rows import HistoryRows
from trisect.views.view import View

ROWS = 12


class Log(NoRecorder):
    def __init__(self) -> None:
        self.events: list[tuple[str, float, float, dict[str, Any]]] = []

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        self.events.append((name, start, seconds, fields))


MODEL = NamedModel("gcn", {"layers": 2, "hidden": 4, "dropout": 0.0}, 0)


def ring() -> Graph:
    """Twelve vertices in a ring, with features and two classes."""
    vertex = torch.arange(ROWS)
    x = torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(0))
    train = torch.ones(ROWS, dtype=torch.bool)
    splits = {"train": train, "val": train, "test": train}
    return Graph.from_edges(vertex, (vertex + 1) % ROWS, x=x, y=vertex % 2, splits=splits)


@pytest.fixture
def setup(rank_of: Callable[..., Setup], tmp_path: Path) -> Setup:
    """Two layers on a ring of vertices, in one process."""
    return rank_of(ring(), MODEL, Mesh(Layout(), 0, torch.device("cpu")), tmp_path)


def test_cells_run_in_order_and_are_told(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    program, log, backward = setup.program, Log(), Cell.backward

    def slow(cell: Cell, gradients: Values) -> Values:
        time.sleep(0.01)
        return backward(cell, gradients)

    monkeypatch.setattr(Cell, "backward", slow)
    program.begin(4)
    program.run(log, epoch=4)
    assert [name for name, *_ in log.events] == ["0F0", "0B0"]
    assert all(p.grad is not None for p in setup.modules.parameters())
    assert all(fields == {"epoch": 4} for *_, fields in log.events)
    seconds = {name: seconds for name, _, seconds, _ in log.events}
    assert seconds["0B0"] >= 0.01
    starts = [start for _, start, *_ in log.events]
    assert starts == sorted(starts)
    assert program.finish() > 0.0


def test_the_trainer_tells_its_step_behind_the_pass(setup: Setup) -> None:
    log = Log()
    Trainer(setup, TrainOptions(), log).train_epoch(1)
    assert [name for name, *_ in log.events] == ["0F0", "0B0", "0U0"]
    ends = [start + seconds for _, start, seconds, _ in log.events]
    assert ends == sorted(ends)
    assert all(fields == {"epoch": 1} for *_, fields in log.events)


LAYERS = {"layers": 3, "hidden": 4, "dropout": 0.3}
TOLD: list[dict[str, Any]] = [
    {"layout": {"vertex": 2}, "model": "gcn", "options": LAYERS},
    {"layout": {"vertex": 2}, "model": "gat", "options": {"layers": 2, "hidden": 4, "heads": 2}},
    {"layout": {"layer": 2, "chunks": 3}, "model": "gcnii", "options": LAYERS},
    {"layout": {"layer": 2, "recompute": True}, "model": "gcn", "options": LAYERS},
    {"of": "timeline_cases", "layout": {"time": 2, "blocks": 2, "temporal": "carry"}, "model": "cd-gcn"},
    {"of": "timeline_cases", "layout": {"time": 2, "blocks": 2, "temporal": "redistribute"}, "model": "cd-gcn"},
]


def test_what_crosses_is_told_between_the_pieces_of_a_cell(tmp_path: Path, ranks: ModuleType) -> None:
    """Within a cell, events follow each other without a gap; what crosses is what the schedule says."""
    cases = [{"module": "told_cases", "run": "told", "options": {"hidden": 4}, **case} for case in TOLD]
    for case, results in zip(cases, ranks.run_forks(2, cases, tmp_path), strict=True):
        for found in results:
            assert found["crossed"] == found["planned"] != [], case
            assert found["computed"] == found["cells"], case
            # the clock of events counts in parts of a microsecond
            assert found["overlap"] < 1e-5, case
            assert found["gap"] < 1e-5, case


def test_outputs_are_given_as_they_are_made(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, losses = Run.finish, []

    def noted(state: Run) -> Tensor:
        losses.append(float(finish(state)))
        return torch.zeros(())

    monkeypatch.setattr(Run, "finish", noted)
    graph = ring()
    model = full_model(MODEL, 3, 2)
    assert isinstance(model, Model)
    matrix = graph.normalised(model.normalisation, self_loops=model.self_loops)
    [(first, frames)] = list(setup.program.outputs(range(1)))
    with torch.no_grad():
        expected = model(graph.features(), View.whole(matrix))[setup.vertices]
        other = model(graph.features() * 1.01, View.whole(matrix))[setup.vertices]
    assert first == 0
    assert torch.allclose(frames[0], expected)
    assert not torch.allclose(frames[0], other)
    assert losses == [0.0]  # an evaluation has none


def test_a_block_is_given_before_the_next_one_is_computed(monkeypatch: pytest.MonkeyPatch, timeline: Any) -> None:
    done: list[int] = []
    plain = Cell.plain

    def noted(cell: Cell, **named: Any) -> Values | None:
        done.append(cell.number)
        return plain(cell, **named)

    monkeypatch.setattr(Cell, "plain", noted)
    model = NamedModel("cd-gcn", {"hidden": 4}, 0)
    program = Setup.of(model, timeline, "link-prediction", TrainOptions(), Layout(blocks=3)).program
    given = [(first, list(done)) for first, _ in program.outputs(range(program.plan.runs[-1][-1].stop))]
    assert [cells for _, cells in given] == [[0], [0, 1], [0, 1, 2]]
    assert [first for first, _ in given] == [block[0].start for block in program.plan.runs]


def test_history_is_told_of_a_pass(
    rank_of: Callable[..., Setup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass begins by deciding what its chunks see, turns when all have gone forward, and lets go of the rest."""
    told: list[object] = []
    for name in ("begin", "turn", "end"):
        honest = getattr(HistoryRows, name)

        def noted(rows: HistoryRows, *, honest: Any = honest, name: str = name, **how: Any) -> None:
            told.append((name, how))
            honest(rows, **how)

        monkeypatch.setattr(HistoryRows, name, noted)
    layout = Layout(chunks=3, history=History(start="exact", blend=0.8, period=1))
    program = rank_of(ring(), MODEL, Mesh(layout, 0, torch.device("cpu")), tmp_path).program
    for epoch in (1, 2):
        program.begin(epoch)
        program.run()
        program.finish()
    exact = [("begin", {"chunked": False, "keep": 0.0}), ("turn", {}), ("end", {})]
    stale = [("begin", {"chunked": True, "keep": 0.8}), ("turn", {}), ("end", {})]
    # once for each layer that is read
    assert [one for one, _ in groupby(told)] == [*exact, *stale]


def test_an_error_stops_the_pass_at_its_cell(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*values: object) -> None:
        raise ArithmeticError("no loss")

    monkeypatch.setattr(type(setup.program.task), "loss", fails)
    log = Log()
    setup.program.begin(4)
    with pytest.raises(ArithmeticError, match="no loss"):
        setup.program.run(log)
    assert log.events == []
    assert all(p.grad is None for p in setup.modules.parameters())


class Summing:
    """A transport that doubles gradients where they are summed up."""

    def reduce_gradients(self, gradients: list[Tensor]) -> None:
        for gradient in gradients:
            gradient *= 2


def test_a_parameter_that_nothing_reached_takes_part_with_zeros() -> None:
    parameters = [Parameter(torch.ones(2)), Parameter(torch.ones(3))]
    parameters[0].grad = torch.ones(2)
    rank = SimpleNamespace(parameters=parameters, transport=Summing())
    run: Any = SimpleNamespace(plan=SimpleNamespace(layout=Layout(vertex=2)), rank=rank, _events=None, _running=None)
    Run._reduce(run)
    gradients = [p.grad for p in parameters]
    assert all(gradient is not None for gradient in gradients)
    assert torch.equal(torch.cat([g for g in gradients if g is not None]), torch.tensor([2.0, 2.0, 0.0, 0.0, 0.0]))
