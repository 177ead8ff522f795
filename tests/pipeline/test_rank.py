"""The loop over a rank's actions: in order, told to the observer, and an error where a schedule is wrong.

The rank is set up from a job and shards on disk, as in a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trisect.comm.mesh import Mesh
from trisect.engine.executor import Executor
from trisect.graph.graph import Graph
from trisect.layout import Layout
from trisect.nn.base import Model
from trisect.nn.models.source import NamedModel, full_model
from trisect.schedule.action import Action
from trisect.train.setup import Setup

ROWS = 12


class Log:
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


def begun(setup: Setup) -> Executor:
    setup.program.begin(4)
    state = setup.program._state
    assert state is not None
    return state


def watch(state: Executor, slow: str = "") -> list[str]:
    """Note each action that is done, and take some time for one of them."""
    done: list[str] = []
    do = state.do

    def noted(action: Action) -> None:
        done.append(action.text)
        time.sleep(0.01 if action.text == slow else 0.0)
        do(action)

    state.do = noted  # type: ignore[method-assign]
    return done


def test_actions_run_in_order_and_are_told(setup: Setup) -> None:
    program, log, state = setup.program, Log(), begun(setup)
    done = watch(state, "0B0")
    steps: list[bool] = []
    losses: list[float] = []

    def on_step() -> None:
        # the optimiser steps once, when all gradients are there
        steps.append(all(p.grad is not None for p in setup.modules.parameters()))
        losses.append(program.total_loss())

    program.run(on_step, log, epoch=4)
    assert done == ["0F0", "0B0", "0U0"]
    assert steps == [True]
    assert [name for name, *_ in log.events] == done
    assert all(fields == {"epoch": 4} for *_, fields in log.events)
    seconds = {name: seconds for name, _, seconds, _ in log.events}
    assert seconds["0B0"] >= 0.01
    starts = [start for _, start, *_ in log.events]
    assert starts == sorted(starts)
    assert losses[0] > 0.0


def test_outputs_are_given_as_they_are_made(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, losses = Executor.finish, []

    def noted(state: Executor) -> Tensor:
        losses.append(float(finish(state)))
        return torch.zeros(())

    monkeypatch.setattr(Executor, "finish", noted)
    graph = ring()
    model = full_model(MODEL, 3, 2)
    assert isinstance(model, Model)
    matrix = graph.normalised(model.normalisation, self_loops=model.self_loops)
    [(first, frames)] = list(setup.program.outputs(range(1)))
    with torch.no_grad():
        expected = model(graph.features(), matrix, None)[setup.vertices]
        other = model(graph.features() * 1.01, matrix, None)[setup.vertices]
    assert first == 0
    assert torch.allclose(frames[0], expected)
    assert not torch.allclose(frames[0], other)
    assert losses == [0.0]  # an evaluation has none


def test_an_error_stops_the_loop_at_its_action(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*values: object) -> None:
        raise ArithmeticError("no loss")

    monkeypatch.setattr(type(setup.program.task), "loss", fails)
    log, state = Log(), begun(setup)
    done = watch(state)
    with pytest.raises(ArithmeticError, match="no loss"):
        setup.program.run(lambda: None, log)
    assert done == ["0F0"]
    assert log.events == []
