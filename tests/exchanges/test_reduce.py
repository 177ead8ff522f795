"""Gradients summed over replicas: the bytes of a ring."""

from __future__ import annotations

from trisect.exchanges.catalogue import REDUCE, exchange_of, volume
from trisect.exchanges.reduce import stage_bytes
from trisect.layout import Layout
from trisect.nn import build
from trisect.plan.build import schedule_of
from trisect.plan.plan import make_plan
from trisect.schedule.action import Action


def test_bytes_are_those_of_a_ring_over_each_stage() -> None:
    model = build("gcn", 3, 2, layers=2, hidden=4)
    layout = Layout(vertex=2, layer=2, spatial="halo")
    facts = make_plan(model.stack, None, layout, bounds=(0, 1, 2), rows=(5, 5), extra=7)
    sizes = [4 * sum(p.numel() for p in layer.parameters()) for layer in model.stack]
    sizes[-1] += 4 * 7
    assert stage_bytes(facts) == sizes
    # each of the two ranks of a stage sends half of its bucket twice
    assert volume(facts, schedule_of(facts))["weights", "reduce"] == 2 * sum(sizes)


def test_the_action_is_the_reduction() -> None:
    assert exchange_of(Action.parse("0G0")) is REDUCE
