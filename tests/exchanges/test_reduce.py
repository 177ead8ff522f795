"""Gradients summed over replicas: the bytes of a ring, and parameters that nothing reached."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from trisect.exchanges.catalogue import REDUCE, exchange_of, volume
from trisect.exchanges.reduce import Reduce, stage_bytes
from trisect.layout import Layout
from trisect.nn import build
from trisect.plan.build import schedule_of
from trisect.plan.plan import make_facts
from trisect.schedule.action import Action


def test_bytes_are_those_of_a_ring_over_each_stage() -> None:
    model = build("gcn", 3, 2, layers=2, hidden=4)
    layout = Layout(vertex=2, layer=2, spatial="halo")
    facts = make_facts(model.stack, None, layout, bounds=(0, 1, 2), rows=(5, 5), extra=7)
    sizes = [4 * sum(p.numel() for p in layer.parameters()) for layer in model.stack]
    sizes[-1] += 4 * 7
    assert stage_bytes(facts) == sizes
    # each of the two ranks of a stage sends half of its bucket twice
    assert volume(facts, schedule_of(facts))["weights", "reduce"] == 2 * sum(sizes)


class Summing:
    """A rank whose gradients are doubled where they are summed up."""

    def __init__(self, parameters: list[Parameter]) -> None:
        self.parameters, self.transport = parameters, self

    def reduce_gradients(self, gradients: list[Tensor]) -> None:
        for gradient in gradients:
            gradient *= 2


def test_a_parameter_that_nothing_reached_takes_part_with_zeros() -> None:
    parameters = [Parameter(torch.ones(2)), Parameter(torch.ones(3))]
    parameters[0].grad = torch.ones(2)
    port: Any = Summing(parameters)
    action = Action.parse("0G0")
    assert exchange_of(action) is REDUCE
    Reduce().post(action, port)
    gradients = [p.grad for p in parameters]
    assert all(gradient is not None for gradient in gradients)
    assert torch.equal(torch.cat([g for g in gradients if g is not None]), torch.tensor([2.0, 2.0, 0.0, 0.0, 0.0]))
    with pytest.raises(RuntimeError, match="not waited for"):
        Reduce().wait(action, port, None)
