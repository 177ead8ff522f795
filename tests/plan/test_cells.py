"""What a cell is made of: groups of layers, what each verb posts, waits for and computes, and by which exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from trisect.layout import Layout
from trisect.plan.build import exchange_for, schedule_of, steps_of
from trisect.schedule import Verb
from trisect.views import halo
from trisect.views.carry import Carry
from trisect.views.exchange import Crossing, Place
from trisect.views.halo import Halo
from trisect.views.plan import Plan
from trisect.views.redistribute import RedistributeRows
from trisect.views.redistribute_steps import RedistributeSteps
from trisect.views.stay import Stay
from trisect.views.top import Top
from trisect.views.total import Total
from trisect.views.trace import Call
from trisect.views.window import Window

Maker = Callable[..., Plan]
TWO = ((range(2), range(2, 4)),)
ONE = ((range(4),),)
ACROSS = Layout(vertex=2, spatial="halo")


def said(plan: Plan, layer: int, *, rank: int = 0, back: bool = False, **place: Any) -> list[str]:
    """Return, for each verb of a layer, what it posts (P), waits for (W) and computes on a rank.

    A crossing has its width, its peer and its chunk where it has one; a work its share where that is not all of it.
    """
    at, told = Place(plan, rank, layer=layer, **place), []
    for call in plan.calls(layer):
        words = []
        for step in steps_of(at, call, exchange_for(at, call), back=back):
            if isinstance(step, Crossing):
                peer = "" if step.peer is None else f">{step.peer}" if step.verb is Verb.POST else f"<{step.peer}"
                words.append(
                    f"{step.verb.value}{step.width or ''}{peer}{'' if step.chunk is None else f'.{step.chunk}'}"
                )
            else:
                assert step.layer == layer
                words.append(f"{step.part}{step.side and '-' + step.side}{'' if step.share == 1 else f'*{step.share}'}")
        told.append(" ".join(words))
    return told


def exchanges(plan: Plan, layer: int, rank: int = 0) -> list[type[Any] | None]:
    return [exchange_for(Place(plan, rank, layer=layer), call) for call in plan.calls(layer)]


# Verbs


def test_one_process_crosses_nothing(plan_of: Maker) -> None:
    plan = plan_of("gcn", Layout())
    assert [said(plan, layer) for layer in (0, 1)] == [["before behind"], ["before behind"]]
    assert [said(plan, layer, back=True) for layer in (0, 1)] == [["behind before"], ["behind before"]]
    plan = plan_of("cd-gcn", Layout(), ONE, layers=1)
    assert said(plan, 0) == ["before behind", "recur"]
    # a head asks for nothing
    assert said(plan, 1) == []
    assert exchanges(plan, 0) == [None, Stay]


def test_a_halo_comes_before_each_sum(plan_of: Maker) -> None:
    plan = plan_of("gcn", ACROSS)
    assert exchanges(plan, 0) == exchanges(plan, 1) == [Halo]
    assert [said(plan, layer) for layer in (0, 1)] == [["before P3 W3 behind"], ["before P2 W2 behind"]]
    assert [said(plan, layer, back=True) for layer in (0, 1)] == [["behind before"], ["behind P2 W2 before"]]
    # a layer that finds its sum ready, and one that reads no neighbours, wait for nobody
    plan = plan_of("gcn", ACROSS, aggregated=True)
    assert exchanges(plan, 0) == [None]
    assert (said(plan, 0), said(plan, 0, back=True), said(plan, 1)) == (["ready"], ["ready"], ["before P2 W2 behind"])
    plan = plan_of("gcnii", ACROSS, layers=1)
    assert [said(plan, layer) for layer in range(4)] == [[], [], ["before P4 W4 behind"], []]
    # rows themselves are gathered by the same exchange
    assert said(plan_of("gat", ACROSS, layers=1), 0) == ["before P2 W2 behind"]


def test_columns_cross_twice(plan_of: Maker) -> None:
    plan = plan_of("gcn", Layout(vertex=2, spatial="redistribute"))
    assert exchanges(plan, 1) == [RedistributeRows]
    assert said(plan, 1) == ["before P2 W2 sum P2 W2 behind"]
    assert said(plan, 1, back=True) == ["behind P2 W2 sum P2 W2 before"]
    # of the features no gradient is wanted
    assert said(plan, 0, back=True) == ["behind before"]


def test_interior_rows_hide_a_halo_and_nothing_else(plan_of: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = halo.OVERLAP_ROWS
    assert not Halo.overlaps(plan_of("gcn", ACROSS, rows=rows - 1))
    assert Halo.overlaps(plan_of("gcn", ACROSS, rows=rows))
    # of each chunk, where there are several
    chunked = Layout(vertex=2, chunks=2, spatial="halo")
    assert not Halo.overlaps(plan_of("gcn", chunked, rows=2 * rows - 1))
    assert Halo.overlaps(plan_of("gcn", chunked, rows=2 * rows))
    monkeypatch.setattr(halo, "OVERLAP_ROWS", 1)
    there, back = ["before P2 behind-interior W2 behind-boundary"], ["P2 behind-interior W2 behind-boundary before"]
    plan = plan_of("gcn", ACROSS, symmetric=True)
    assert (said(plan, 1), said(plan, 1, back=True)) == (there, back)
    # gradients of another matrix are sent, and not pulled; those that nobody wants stay
    assert said(plan_of("gcn", ACROSS), 1, back=True) == ["behind P2 W2 before"]
    assert said(plan, 0, back=True) == ["behind before"]
    assert said(plan_of("cd-gcn", ACROSS, ONE), 1) == ["before P4 behind-interior W4 behind-boundary", "recur"]
    # gradients of rows that were gathered leave when those of boundary rows have been found
    attention = plan_of("gat", ACROSS, layers=1, symmetric=True)
    assert said(attention, 0) == there
    assert said(attention, 0, back=True) == ["behind-boundary P2 behind-interior W2 before"]
    # chunks read rows that are there at once or not at all
    assert said(plan_of("gat", chunked, layers=1, symmetric=True), 0) == ["before P2 W2 behind"]
    assert said(plan_of("gcn", Layout()), 1) == ["before behind"]
    by_columns = plan_of("gcn", Layout(vertex=2, spatial="redistribute"))
    assert said(by_columns, 1) == ["before P2 W2 sum P2 W2 behind"]


def test_sums_over_all_rows_cross_parts(plan_of: Maker) -> None:
    """A layer that asks for several verbs shares its work among its sums over neighbours."""
    plan = plan_of("gcn", ACROSS)
    calls = (Call("sum", 3), Call("aggregate", 3), Call("gather", 5, trained=True), Call("sum", 4, trained=True))
    plan = replace(plan, layers=(replace(plan.layers[0], calls=calls), plan.layers[1]))
    assert exchanges(plan, 0) == [Total, Halo, Halo, Total]
    assert said(plan, 0) == ["P3 W3", "before*0.5 P3 W3 behind*0.5", "before*0.5 P5 W5 behind*0.5", "P4 W4"]
    # gradients of totals cross in any case, since all parts read them
    assert said(plan, 0, back=True) == ["P3 W3", "behind*0.5 before*0.5", "behind*0.5 P5 W5 before*0.5", "P4 W4"]
    alone = replace(plan, layout=Layout(), rows=(8,))
    assert exchanges(alone, 0) == [None] * 4
    assert said(alone, 0) == ["", "before*0.5 behind*0.5", "before*0.5 behind*0.5", ""]


def test_a_summary_is_merged_over_parts(plan_of: Maker) -> None:
    plan = plan_of("evolvegcn-h", ACROSS, ONE)
    assert exchanges(plan, 0) == [Top, Stay, Halo]
    assert said(plan, 0) == ["top P3 W3", "recur", "before P3 W3 behind"]
    assert said(plan, 0, back=True) == ["top", "recur", "behind before"]
    assert said(plan, 1, back=True) == ["P4 W4 top", "recur", "behind P4 W4 before"]


@pytest.mark.parametrize(
    ("model", "temporal", "exchange", "first", "second"),
    [
        (
            "cd-gcn",
            "carry",
            Carry,
            " ".join(f"recur*0.125 P>1.{chunk}" for chunk in range(8)),
            " ".join(f"W<0.{chunk} recur*0.125" for chunk in range(8)),
        ),
        ("cd-gcn", "redistribute", RedistributeSteps, "P7 W7 recur P4 W4", "P7 W7 recur P4 W4"),
        ("tm-gcn", "halo", Window, "P>1.0 recur", "W<0 recur"),
        ("evolvegcn-o", "auto", Stay, "recur", "recur"),
        ("evolvegcn-h", "auto", Carry, "recur P>1.0", "W<0.0 recur"),
    ],
)
def test_a_state_that_crosses_runs(
    plan_of: Maker, model: str, temporal: str, exchange: type[Any], first: str, second: str
) -> None:
    plan = plan_of(model, Layout(time=2, temporal=temporal), TWO, layers=1)
    at = next(number for number, call in enumerate(plan.calls(0)) if call.verb == "recur")
    assert exchanges(plan, 0)[at] is exchange
    assert [said(plan, 0, rank=rank)[at] for rank in (0, 1)] == [first, second]


def test_states_go_back_the_way_that_they_came(plan_of: Maker) -> None:
    plan = plan_of("cd-gcn", Layout(time=2, chunks=2, temporal="carry"), TWO, layers=1)
    assert said(plan, 0, rank=0, back=True)[1] == "W<1.1 recur*0.5 W<1.0 recur*0.5"
    assert said(plan, 0, rank=1, back=True)[1] == "recur*0.5 P>0.1 recur*0.5 P>0.0"
    # computed again, the state before the run is known; but its gradient is handed back
    assert said(plan, 0, rank=1, again=True)[1] == "recur*0.5 recur*0.5"
    assert said(plan, 0, rank=1, again=True, back=True) == said(plan, 0, rank=1, back=True)
    plan = plan_of("tm-gcn", Layout(time=2, temporal="halo"), TWO, layers=1)
    assert said(plan, 0, rank=0, back=True)[1] == "recur W<1.0"
    assert said(plan, 0, rank=1, back=True)[1] == "recur P>0"
    assert said(plan, 0, rank=1, again=True)[1] == "recur"
    # features that are the same in all steps do not cross: all ranks have them; what ends a pass is not dealt back
    plan = plan_of("cd-gcn", Layout(time=2, temporal="redistribute"), TWO, fixed=True)
    assert said(plan, 0)[1] == "P4 W4 recur P4 W4"
    assert said(plan, 1)[1] == "P8 W8 recur P4 W4"
    assert said(plan, 1, ends=True)[1] == "P8 W8 recur"
    # gradients of the frames that parameters made, and of what a layer before made
    assert said(plan, 0, back=True)[1] == "P4 W4 recur P4 W4"
    assert said(plan, 1, back=True)[1] == "P4 W4 recur P8 W8"


def test_only_vertex_states_cross_in_chunks(plan_of: Maker) -> None:
    def chunks(model: str, temporal: str) -> int:
        plan = plan_of(model, Layout(time=2, chunks=3, temporal=temporal), TWO, layers=1)
        return max(action.chunk for actions in schedule_of(plan) for action in actions) + 1

    assert (chunks("cd-gcn", "carry"), chunks("tm-gcn", "carry")) == (3, 3)
    assert (chunks("cd-gcn", "redistribute"), chunks("tm-gcn", "halo"), chunks("evolvegcn-h", "auto")) == (1, 1, 1)


def test_a_rank_without_steps_takes_part_in_what_is_dealt_out_alone(plan_of: Maker) -> None:
    idle = ((range(4), range(4, 4)),)
    cut = Layout(time=2, vertex=2, spatial="halo")
    plan = plan_of("cd-gcn", replace(cut, temporal="redistribute"), idle, layers=1)
    assert exchanges(plan, 0, rank=2) == [None, RedistributeSteps]
    assert said(plan, 0, rank=2) == ["before behind", "P7 W7 recur P4 W4"]
    assert said(plan, 0, rank=0) == ["before P3 W3 behind", "P7 W7 recur P4 W4"]
    assert said(plan_of("cd-gcn", replace(cut, temporal="carry"), idle, layers=1), 0, rank=2) == ["before behind", ""]


# Layers of a stage


def test_each_stage_has_its_own_layers(plan_of: Maker) -> None:
    plan = plan_of("cd-gcn", Layout(vertex=2, layer=2, spatial="halo"), ONE)
    assert [plan.numbers(stage) for stage in (0, 1)] == [[0], [1, 2]]
    assert [plan.groups(stage) for stage in (0, 1)] == [((0,),), ((1, 2),)]
    # without a head, and without what turns embeddings into outputs
    assert plan_of("gcn", Layout(layer=2)).numbers(1) == [1]
    assert plan.hidden(dynamic=True).numbers(1) == [1]
    assert plan_of("gcn", Layout(layer=2)).hidden(dynamic=False).numbers(1) == []
    assert plan_of("gcn", Layout(layer=2)).hidden(dynamic=False).groups(1) == ((),)


@pytest.mark.parametrize(("layers", "groups"), [(1, 1), (2, 2), (4, 2), (9, 3), (16, 4)])
def test_recomputed_groups_have_about_the_root_of_the_layers(plan_of: Maker, layers: int, groups: int) -> None:
    found = plan_of("gcn", Layout(recompute=True), layers=layers).groups(0)
    size = layers // groups
    assert found == tuple(tuple(range(size * g, size * (g + 1))) for g in range(groups))
    assert plan_of("gcn", Layout(), layers=layers).groups(0) == (tuple(range(layers)),)


def test_a_head_is_of_the_last_group(plan_of: Maker) -> None:
    plan = plan_of("cd-gcn", Layout(recompute=True), ONE, layers=4)
    assert plan.groups(0) == ((0, 1), (2, 3, 4))
    assert plan_of("cd-gcn", Layout(recompute=True, layer=2), ONE, layers=4).groups(1) == ((2,), (3, 4))


def test_the_last_state_ends_a_pass(plan_of: Maker) -> None:
    plan = plan_of("cd-gcn", Layout(layer=2), ONE, layers=4)
    assert [plan.last_recurrent(stage) for stage in (0, 1)] == [(1, 1), (3, 1)]
    assert plan_of("gcn", Layout(), ONE).last_recurrent(0) is None
    # of a layer that asks for several, the last
    calls = plan.layers[3].calls
    twice = replace(plan, layers=(*plan.layers[:3], replace(plan.layers[3], calls=(*calls, *calls))))
    assert twice.last_recurrent(1) == (3, 2)
    blocks = ((range(2),), (range(2, 4),))

    def ended(plan: Plan) -> list[str]:
        [first, *_] = [a for a in schedule_of(plan).ranks[0] if a.verb is Verb.FORWARD]
        return [f"{work.part}{work.layer}" for work in first.works]

    alone = replace(plan_of("cd-gcn", Layout(blocks=2), blocks, layers=1))
    assert ended(alone) == ["before0", "behind0", "recur0"]
    calls = alone.layers[0].calls
    for count, own in ((1, [*calls, Call("aggregate", 4)]), (2, [*calls, *calls, Call("aggregate", 4)])):
        plan = replace(alone, layers=(replace(alone.layers[0], calls=tuple(own)),))
        assert ended(plan) == ["before0", "behind0", "recur0"] * count


def test_which_verbs_read_neighbours(plan_of: Maker) -> None:
    def read(plan: Plan, layer: int) -> list[str]:
        return [call.verb for call in plan.reads(layer)]

    assert read(plan_of("gcn", Layout()), 0) == ["aggregate"]
    assert read(plan_of("gat", Layout(), layers=1), 0) == ["gather"]
    assert read(plan_of("cd-gcn", Layout(), ONE), 0) == ["aggregate"]
    assert read(plan_of("evolvegcn-h", Layout(), ONE), 0) == ["aggregate"]
    # a sum that is kept reads nothing, and neither do a local layer and the head
    assert read(plan_of("gcn", Layout(), aggregated=True), 0) == []
    assert read(plan_of("gcn", Layout(), aggregated=True), 1) == ["aggregate"]
    assert read(plan_of("gcnii", Layout(), layers=1), 0) == []
    assert read(plan_of("cd-gcn", Layout(), ONE), 2) == []
    # what cannot be kept is read all the same
    assert read(plan_of("gat", Layout(), layers=1, aggregated=True), 0) == ["gather"]


def test_shared_inputs_cross_where_later_stages_read_them(plan_of: Maker) -> None:
    plan = plan_of("gcnii", Layout(layer=3), layers=4)
    inner = [stage for stage in (1, 2) if any("h0" in layer.reads for layer in plan.layers[plan.bounds[stage] :])]
    assert inner
    for stage in inner:
        assert plan.boundary_widths(stage) == [4, 4]
        assert plan.shared_across(plan.bounds[stage]) == ("h0",)
    assert plan.shared_across(0) == plan.shared_across(len(plan.layers)) == ()
    assert plan_of("gcn", Layout(layer=2)).boundary_widths(1) == [4]


def test_gradients_are_wanted_of_what_was_made_with_parameters(plan_of: Maker) -> None:
    plan = plan_of("gcn", Layout(), layers=3)
    assert [plan.reads_trained(layer) for layer in range(4)] == [False, True, True, True]
    # another stage wants them, whatever it trains
    frozen: Sequence[Any] = [replace(layer, parameters=0) for layer in plan.layers]
    assert not any(replace(plan, layers=tuple(frozen)).reads_trained(layer) for layer in range(4))
    cut = replace(plan, layers=tuple(frozen), bounds=(0, 2, 3))
    assert [cut.reads_trained(layer) for layer in range(4)] == [False, False, True, True]
