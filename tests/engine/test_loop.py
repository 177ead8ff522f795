"""The loop over a rank's actions: in order, told to the observer, and an error where a schedule is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh
from trisect.comm.transport import Transport
from trisect.engine.executor import Executor
from trisect.engine.rank import RankEngine
from trisect.graph.adjacency import Adjacency
from trisect.layout import Layout
from trisect.nn import build
from trisect.nn.base import Model
from trisect.partition.halo import part_graph_of
from trisect.partition.partition import Partition
from trisect.plan.build import schedule_of
from trisect.plan.plan import make_facts
from trisect.schedule.action import Action, Pass
from trisect.shards.graph_shard import GraphShard

ROWS = 12


class Log:
    def __init__(self) -> None:
        self.events: list[tuple[str, float, float, dict[str, Any]]] = []

    def event(self, name: str, start: float, seconds: float, **fields: Any) -> None:
        self.events.append((name, start, seconds, fields))


def engine(loss: Callable[[Tensor], Tensor] = lambda out: out.square().sum()) -> tuple[RankEngine, Model]:
    """Two layers on a ring of vertices, in one process."""
    pointers = torch.arange(0, 2 * ROWS + 1, 2)
    indices = torch.stack([torch.arange(ROWS), (torch.arange(ROWS) + 1) % ROWS], 1).sort(1).values.flatten()
    matrix = Adjacency.from_csr(pointers, indices.int(), torch.full((2 * ROWS,), 0.5), ROWS)
    model = build("gcn", 3, 2, layers=2, hidden=4, dropout=0.0)
    assert isinstance(model, Model)
    layout = Layout()
    x = torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(0))
    shard = GraphShard(part_graph_of(matrix, Partition.equal(ROWS, 1), 0), lambda: x, torch.arange(ROWS))
    facts = make_facts(model.stack, None, layout, bounds=(0, 2), rows=(ROWS,))
    transport = Transport(Mesh(layout, 0, torch.device("cpu")), Ledger())
    return RankEngine(facts, transport, shard, dict(enumerate(model.stack)), lambda out, rows, step: loss(out)), model


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


def test_actions_run_in_order_and_are_told() -> None:
    rank, model = engine()
    log, state = Log(), rank.begin(None)
    done = watch(state, "0B0")
    steps: list[bool] = []
    # the optimiser steps once, when all gradients are there
    state.on_step = lambda: steps.append(all(p.grad is not None for p in model.parameters()))
    [actions] = schedule_of(rank.facts)
    state.run(actions, log, epoch=4)
    assert done == ["0F0", "0B0", "0U0"]
    assert steps == [True]
    assert [name for name, *_ in log.events] == done
    assert all(fields == {"epoch": 4} for *_, fields in log.events)
    seconds = {name: seconds for name, _, seconds, _ in log.events}
    assert seconds["0B0"] >= 0.01
    starts = [start for _, start, *_ in log.events]
    assert starts == sorted(starts)
    assert float(state.finish()) > 0.0


def test_outputs_are_given_as_they_are_made() -> None:
    rank, model = engine()
    state = rank.begin(None, pass_=Pass.EVALUATE)
    with torch.no_grad():
        [(first, frames)] = list(state.stream(schedule_of(rank.facts, pass_=Pass.EVALUATE).ranks[0]))
        wanted = model(rank.shard.features(range(1))[0], rank.shard.snapshots(range(1))[0], None)
    assert first == 0
    assert torch.allclose(frames[0], wanted)
    assert float(state.finish()) == 0.0


def test_an_error_stops_the_loop_at_its_action() -> None:
    def fails(out: Tensor) -> Tensor:
        raise ArithmeticError("no loss")

    rank, _ = engine(fails)
    log, state = Log(), rank.begin(None)
    done = watch(state)
    with pytest.raises(ArithmeticError, match="no loss"):
        state.run(schedule_of(rank.facts).ranks[0], log)
    assert done == ["0F0"]
    assert log.events == []
