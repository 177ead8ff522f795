"""Bytes of the cost model are those of the exchanges' formulas; work adds up; links are those that rows take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plan.workloads import cluster, static, timeline

from trisect.exchanges.catalogue import exchange_of, volume
from trisect.exchanges.redistribute_rows import crossing_bytes
from trisect.layout import parse_layout
from trisect.nn.halves import HalfKind
from trisect.plan.build import schedule_of
from trisect.plan.costs import CostModel
from trisect.plan.work import work_of
from trisect.schedule.action import Action, Side, Verb

LAYOUTS = [
    ("static", "vertex=4"),
    ("static", "vertex=4,spatial=redistribute"),
    ("static", "layer=4"),
    ("static", "layer=2,vertex=2,chunks=4"),
    ("static", "vertex=2,recompute=true"),
    ("timeline", "time=4,temporal=carry"),
    ("timeline", "time=4,temporal=redistribute,blocks=2"),
    ("timeline", "layer=2,blocks=4"),
    ("timeline", "vertex=2,time=2,layer=2,blocks=2"),
]


@pytest.mark.parametrize(("data", "text"), LAYOUTS)
def test_bytes_of_all_ranks_are_the_volume(data, text):
    workload = static() if data == "static" else timeline()
    facts = workload.plan(parse_layout(text))
    schedule, costs = schedule_of(facts), CostModel(workload, facts, cluster(), facts)
    total: dict[str, float] = {}
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if action.verb in (Verb.POST, Verb.REDUCE):
                axis = exchange_of(action).axis
                total[axis] = total.get(axis, 0.0) + costs.bytes(rank, action)
    by_axis: dict[str, float] = {}
    for (axis, _), size in volume(facts, schedule).items():
        by_axis[axis] = by_axis.get(axis, 0.0) + size
    assert {axis: size for axis, size in total.items() if size} == pytest.approx(by_axis, rel=1e-6)
    wider = static(hidden=16) if data == "static" else timeline(hidden=16)
    other = wider.plan(parse_layout(text))
    assert sum(volume(other, schedule_of(other)).values()) > 1.3 * sum(by_axis.values())


def test_an_epoch_is_the_work_of_its_halves():
    workload = static()
    facts, machine = workload.plan(parse_layout("vertex=1")), cluster()
    costs = CostModel(workload, facts, machine, facts)
    alone = 0.0
    for half in range(len(facts.halves)):
        work = work_of(facts, half, back=False)
        alone += work.seconds(machine.device, rows=1000, entries=workload.entries[0], table=1000, steps=1)
    assert costs.compute(0, Action(Verb.FORWARD)) == pytest.approx(alone)
    assert costs.compute(0, Action(Verb.BACKWARD)) > 1.3 * alone


def test_work_of_a_graph_convolution_by_hand():
    workload = static(layers=3, hidden=8)
    facts = workload.plan(parse_layout("vertex=1"))
    combine = facts.half_index(HalfKind.COMBINE, 1)
    forward = work_of(facts, combine, back=False)
    assert (forward.gathered, forward.passes) == (8 * 4, 1.0)
    product = [work_of(facts, half, back=False).flops for half in range(len(facts.halves)) if facts.layer_of(half) == 1]
    assert sum(product) == 2.0 * facts.layers[1].parameters


def test_rows_that_leave_a_host_take_the_slower_link():
    workload = static()
    facts = workload.plan(parse_layout("layer=4"))
    machine = cluster(hosts=2, devices=2)
    costs = CostModel(workload, facts, machine, facts)
    post = [next(a for a in actions if a.verb is Verb.POST and not a.back) for actions in schedule_of(facts).ranks[:3]]
    inside, across, again = (costs.transfer(rank, action) for rank, action in enumerate(post))
    assert across > 5 * inside
    assert again == pytest.approx(inside)
    # two hosts share what one device has between them: parts of a host all send at once
    parts = static().plan(parse_layout("vertex=4"))
    spread = CostModel(static(), parts, machine, parts)
    halo = next(a for a in schedule_of(parts).ranks[0] if a.verb is Verb.POST)
    one_host = CostModel(static(), parts, replace(machine, hosts=1, devices=4), parts)
    assert spread.transfer(0, halo) > 5 * one_host.transfer(0, halo)


def test_the_sides_of_a_chunk_have_the_rows_of_the_chunk():
    workload = static(vertices=100_000, edges=400_000)
    facts = workload.plan(parse_layout("layer=2,vertex=2,chunks=4"))
    costs = CostModel(workload, facts, cluster(), facts)
    chunk = costs.compute(0, Action(Verb.FORWARD))
    last = facts.stage_halves(0).stop - 1
    sides = [costs.compute(0, Action(Verb.FORWARD, 0, 0, 0, last, side)) for side in Side]
    assert sum(sides) == pytest.approx(chunk)
    whole = workload.plan(parse_layout("layer=2,vertex=2"))
    assert CostModel(workload, whole, cluster(), whole).compute(0, Action(Verb.FORWARD)) == pytest.approx(4 * chunk)


def test_rows_turned_into_columns_between_unequal_parts():
    facts = static(vertices=1003, hidden=10).plan(parse_layout("vertex=4,spatial=redistribute"))
    rows, widths = facts.rows, [2, 3, 2, 3]
    assert len(set(rows)) > 1
    expected = sum(4 * rows[a] * widths[b] for a in range(4) for b in range(4) if a != b)
    assert crossing_bytes(facts, 1) == expected


@pytest.mark.parametrize("model", ["evolvegcn-o", "evolvegcn-h", "cd-gcn"])
def test_cells_to_which_no_gradient_comes_have_no_backward(model):
    """A loss at the last step alone reaches earlier blocks by states of vertices and by summaries, not by weights."""
    everywhere = timeline(model, steps=8)
    at_the_end = replace(everywhere, loss_from=7)

    def backward(workload, block):
        facts = workload.plan(parse_layout("blocks=2"))
        costs = CostModel(workload, facts, cluster(), facts)
        actions = [a for a in schedule_of(facts).ranks[0] if a.verb is Verb.BACKWARD and a.block == block]
        return sum(costs.compute(0, action) for action in actions)

    assert backward(at_the_end, 1) == backward(everywhere, 1) > 0
    early, all_of_it = backward(at_the_end, 0), backward(everywhere, 0)
    if model == "cd-gcn":  # all but the outputs themselves
        assert 0.95 * all_of_it < early < all_of_it
    elif model == "evolvegcn-h":  # the summary of the second layer reads what the first made
        assert 0.2 * all_of_it < early < all_of_it
    else:  # what is left are the weights, however many rows there are
        more = replace(timeline(model, steps=8, vertices=2000), loss_from=7)
        assert 0 < early == pytest.approx(backward(more, 0))
        assert early < 0.7 * all_of_it
