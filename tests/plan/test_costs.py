"""Bytes of the cost model are those of the exchanges' formulas; work adds up; links are those that rows take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plan.workloads import cluster, static, timeline

from trisect.layout import parse_layout
from trisect.plan.build import schedule_of
from trisect.plan.costs import CostModel
from trisect.plan.volume import post_bytes, volume
from trisect.plan.work import work_of
from trisect.schedule.action import Verb
from trisect.views import halo
from trisect.views.exchange import LETTERS, Work

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
    plan = workload.plan(parse_layout(text))
    schedule, costs = schedule_of(plan), CostModel(workload, plan, cluster(), plan)
    total: dict[str, float] = {}
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if action.verb in (Verb.POST, Verb.REDUCE):
                axis = "weights" if action.verb is Verb.REDUCE else LETTERS[action.exchange].axis
                total[axis] = total.get(axis, 0.0) + costs.bytes(rank, action)
    by_axis: dict[str, float] = {}
    for (axis, _), size in volume(plan, schedule).items():
        by_axis[axis] = by_axis.get(axis, 0.0) + size
    assert {axis: size for axis, size in total.items() if size} == pytest.approx(by_axis, rel=1e-6)
    wider = static(hidden=16) if data == "static" else timeline(hidden=16)
    other = wider.plan(parse_layout(text))
    assert sum(volume(other, schedule_of(other)).values()) > 1.3 * sum(by_axis.values())


def test_an_epoch_is_the_work_of_its_layers():
    workload = static()
    plan, machine = workload.plan(parse_layout("vertex=1")), cluster()
    costs = CostModel(workload, plan, machine, plan)
    [forward, backward, _] = schedule_of(plan).ranks[0]
    # the first sum is kept; each other layer multiplies or sums first
    parts = [(0, "ready"), *((layer, part) for layer in (1, 2, 3) for part in ("before", "behind")), (5, "loss")]
    assert [(work.layer, work.part) for work in forward.works] == parts
    assert [(work.layer, work.part) for work in backward.works] == parts[::-1]
    alone = 0.0
    for layer, part in parts:
        work = work_of(plan, layer, part, back=False)
        alone += work.seconds(machine.device, rows=1000, entries=workload.entries[0], table=1000, steps=1)
    assert costs.compute(0, forward) == pytest.approx(alone)
    assert costs.compute(0, backward) > 1.3 * alone


def test_work_of_a_graph_convolution_by_hand():
    workload = static(layers=3, hidden=8)
    plan = workload.plan(parse_layout("vertex=1"))
    before, behind = (work_of(plan, 1, part, back=False) for part in ("before", "behind"))
    assert (behind.gathered, behind.passes) == (8 * 4, 1.0)
    assert before.flops + behind.flops == 2.0 * plan.layers[1].parameters
    # a sum that is kept gathers nothing, and is multiplied all the same
    ready = work_of(plan, 0, "ready", back=False)
    assert (ready.passes, ready.flops) == (0.0, 2.0 * plan.layers[0].parameters)


def test_rows_that_leave_a_host_take_the_slower_link():
    workload = static()
    plan = workload.plan(parse_layout("layer=4"))
    machine = cluster(hosts=2, devices=2)
    costs = CostModel(workload, plan, machine, plan)
    post = [next(a for a in actions if a.verb is Verb.POST and not a.back) for actions in schedule_of(plan).ranks[:3]]
    inside, across, again = (costs.transfer(rank, action) for rank, action in enumerate(post))
    assert across > 5 * inside
    assert again == pytest.approx(inside)
    # two hosts share what one device has between them: parts of a host all send at once
    parts = static().plan(parse_layout("vertex=4"))
    spread = CostModel(static(), parts, machine, parts)
    halo = next(a for a in schedule_of(parts).ranks[0] if a.verb is Verb.POST)
    one_host = CostModel(static(), parts, replace(machine, hosts=1, devices=4), parts)
    assert spread.transfer(0, halo) > 5 * one_host.transfer(0, halo)


def test_the_sides_of_a_chunk_have_the_rows_of_the_chunk(monkeypatch):
    workload = static(vertices=100_000, edges=400_000, halo={2: 0.2})

    def seconds(text):
        """Those of the first cell of the last stage forward, and how many of its pieces have a side."""
        plan = workload.plan(parse_layout(text))
        costs, rank = CostModel(workload, plan, cluster(), plan), plan.layout.world - 1
        pieces = [a for a in schedule_of(plan).ranks[rank] if a.verb is Verb.FORWARD and a.chunk == 0]
        return sum(costs.compute(rank, a) for a in pieces), sum(work.side != "" for a in pieces for work in a.works)

    sides, counted = seconds("layer=2,vertex=2,chunks=4")
    assert counted == 2 * 2
    monkeypatch.setattr(halo, "OVERLAP_ROWS", 1 << 30)
    chunk, counted = seconds("layer=2,vertex=2,chunks=4")
    assert counted == 0
    assert sides == pytest.approx(chunk)
    assert seconds("layer=2,vertex=2")[0] == pytest.approx(4 * chunk)
    plan = workload.plan(parse_layout("layer=2,vertex=2,chunks=4"))
    costs, every = CostModel(workload, plan, cluster(), plan), range(1)
    some = [costs.work(Work(1, "behind", 1.0, side), every, every, back=False)[0] for side in ("interior", "boundary")]
    assert min(some) > 0
    assert sum(some) == pytest.approx(costs.work(Work(1, "behind"), every, every, back=False)[0])


def test_rows_turned_into_columns_between_unequal_parts():
    plan = static(vertices=1003, hidden=10).plan(parse_layout("vertex=4,spatial=redistribute"))
    rows, widths = plan.rows, [2, 3, 2, 3]
    assert len(set(rows)) > 1
    expected = sum(4 * rows[a] * widths[b] for a in range(4) for b in range(4) if a != b)
    there, again = [a for a in schedule_of(plan).ranks[0] if a.verb is Verb.POST and a.first == 1 and not a.back]
    # on the way there and back, each time that of all parts
    for action in (there, again):
        assert post_bytes(plan, 0, action, ()) == ("redistribute", expected)


@pytest.mark.parametrize("model", ["evolvegcn-o", "evolvegcn-h", "cd-gcn"])
def test_cells_to_which_no_gradient_comes_have_no_backward(model):
    """A loss at the last step alone reaches earlier blocks by states of vertices and by summaries, not by weights."""
    everywhere = timeline(model, steps=8)
    at_the_end = replace(everywhere, loss_from=7)

    def backward(workload, block):
        plan = workload.plan(parse_layout("blocks=2"))
        costs = CostModel(workload, plan, cluster(), plan)
        actions = [a for a in schedule_of(plan).ranks[0] if a.verb is Verb.BACKWARD and a.block == block]
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
