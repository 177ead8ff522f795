"""The bound by which layouts are put in order is below what the simulator says, and near it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.plan.workloads import cluster, static, timeline

from trisect.layout import parse_layout
from trisect.plan.stages import stage_bounds
from trisect.plan.timing import epoch_seconds, least_of_any, least_seconds


@pytest.mark.parametrize(
    ("data", "text", "near"),
    [
        ("static", "vertex=1", 0.99),
        ("static", "vertex=4,spatial=halo", 0.9),
        ("static", "vertex=4,spatial=redistribute", 0.9),
        ("static", "vertex=2,recompute=true", 0.8),
        ("static", "layer=4", 0.8),
        ("static", "layer=4,chunks=16", 0.7),
        ("static", "layer=2,vertex=2,chunks=8", 0.7),
        ("timeline", "blocks=4", 0.9),
        ("timeline", "time=4,temporal=carry", 0.9),
        ("timeline", "time=24,temporal=carry", 0.9),
        ("timeline", "time=4,temporal=redistribute,blocks=2", 0.7),
        ("timeline", "time=2,vertex=2,temporal=carry,spatial=halo", 0.8),
    ],
)
def test_a_bound_from_below(data, text, near):
    workload = static(layers=8) if data == "static" else timeline(steps=48)
    machine = cluster(hosts=4, devices=8)
    plan = workload.plan(parse_layout(text))
    least, simulated = least_seconds(workload, plan, machine), epoch_seconds(workload, plan, machine).total
    assert near * simulated < least < 1.01 * simulated
    alone = least_of_any(workload, workload.plan(parse_layout("vertex=1")), machine)
    assert alone / plan.layout.world < simulated


def test_a_layer_that_costs_as_much_as_many_leaves_the_others_cut_evenly():
    bounds = stage_bounds([86.0, *[3.0] * 31], 8)
    sizes = [high - low for low, high in pairwise(bounds)]
    assert sizes[0] == 1
    assert sorted(sizes[1:]) == [4, 4, 4, 4, 5, 5, 5]
    assert stage_bounds([1.0, 1.0, 4.0, 1.0], 2) in ([0, 2, 4], [0, 3, 4])
