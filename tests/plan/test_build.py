"""Schedules: their text on small cases, soundness for every cut, and what `validate` says of broken ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.plan.build import schedule_of
from trisect.schedule import Action, Pass, Schedule, Verb, draw, simulate, validate
from trisect.views import halo
from trisect.views.plan import Plan, Runs, runs_until

Maker = Callable[..., Plan]
Cell = tuple[int, int | None]
COMPUTED = (Verb.FORWARD, Verb.AGAIN, Verb.BACKWARD)


def runs_of(*sizes: Sequence[int]) -> Runs:
    """Consecutive runs: the number of steps of each run of each block."""
    runs, at = [], 0
    for block in sizes:
        row = []
        for size in block:
            row.append(range(at, at + size))
            at += size
        runs.append(tuple(row))
    return tuple(runs)


def text_of(plan: Plan, pass_: Pass = Pass.TRAIN) -> list[str]:
    schedule = schedule_of(plan, pass_=pass_)
    validate(schedule)
    return str(schedule).splitlines()


def works_of(actions: Sequence[Action]) -> list[str]:
    """Return the work of each piece: its parts, each with its layer, and its side where it has one."""
    return [
        " ".join(f"{work.part}{work.layer}{work.side[:1]}" for work in action.works)
        for action in actions
        if action.verb in COMPUTED
    ]


# Texts


def test_one_process(plan_of: Maker) -> None:
    assert text_of(plan_of("gcn", Layout())) == ["0F0 0B0 0U0"]
    assert text_of(plan_of("gcn", Layout(chunks=3))) == ["0F0 0F1 0F2 0B2 0B1 0B0 0U0"]
    assert text_of(plan_of("gcn", Layout()), Pass.EVALUATE) == ["0F0~e"]


def test_two_parts(plan_of: Maker) -> None:
    """The first layer sums features, of which no gradient is wanted; the second multiplies before it sums."""
    line = (
        "0F0.0-0 0PhF0.0 0F0.0-0 0WhF0.0 0F0.0-1 0PhF0.1 0F0.1-1 0WhF0.1 0F0.1-1"
        " 0B0.1-1 0PhB0.1 0B0.1-1 0WhB0.1 0B0.0-1 0G0 0U0"
    )
    layout = Layout(vertex=2, spatial="halo")
    assert text_of(plan_of("gcn", layout)) == [line, line]
    # where the first layer multiplies, its rows are made with parameters
    line = "0F0.0-0 0PhF0.0 0F0.0-0 0WhF0.0 0F0.0-0 0B0.0-0 0PhB0.0 0B0.0-0 0WhB0.0 0B0.0-0 0G0 0U0"
    assert text_of(plan_of("gcn", layout, layers=1)) == [line, line]
    # a sum that is kept does not cross, and neither does a layer that reads no neighbours
    line = "0F0.0-1 0PhF0.1 0F0.1-1 0WhF0.1 0F0.1-1 0B0.1-1 0PhB0.1 0B0.1-1 0WhB0.1 0B0.0-1 0G0 0U0"
    assert text_of(plan_of("gcn", layout, aggregated=True)) == [line, line]
    line = "0F0.0-2 0PhF0.2 0F0.2-2 0WhF0.2 0F0.2-3 0B0.2-3 0PhB0.2 0B0.2-2 0WhB0.2 0B0.0-2 0G0 0U0"
    assert text_of(plan_of("gcnii", layout, layers=1)) == [line, line]


def test_two_parts_whose_interior_hides_the_halo(plan_of: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(vertex=2, spatial="halo")
    plain = plan_of("gcn", layout, symmetric=True)
    forward = ["before0", "", "behind0 before1", "", "behind1 loss3"]
    backward = ["loss3 behind1", "", "before1 behind0 before0"]
    assert works_of(schedule_of(plain).ranks[0]) == [*forward, *backward]
    lines = text_of(plain)
    monkeypatch.setattr(halo, "OVERLAP_ROWS", 1)
    assert text_of(plain) == lines
    forward = ["before0", "behind0i", "behind0b before1", "behind1i", "behind1b loss3"]
    backward = ["loss3", "behind1i", "behind1b before1 behind0 before0"]
    assert works_of(schedule_of(plain).ranks[1]) == [*forward, *backward]
    # gradients of another matrix are sent back, and not pulled
    backward = ["loss3 behind1", "", "before1 behind0 before0"]
    assert works_of(schedule_of(plan_of("gcn", layout)).ranks[0]) == [*forward, *backward]


def test_two_parts_by_columns(plan_of: Maker) -> None:
    line = (
        "0F0.0-0 0PrF0.0 0F0.0-0 0WrF0.0 0F0.0-0 0PrF0.0 0F0.0-0 0WrF0.0 0F0.0-0"
        " 0B0.0-0 0PrB0.0 0B0.0-0 0WrB0.0 0B0.0-0 0PrB0.0 0B0.0-0 0WrB0.0 0B0.0-0 0G0 0U0"
    )
    plan = plan_of("gcn", Layout(vertex=2, spatial="redistribute"), layers=1)
    assert text_of(plan) == [line, line]
    forward, backward = ["before0", "", "sum0", "", "behind0 loss2"], ["loss2 behind0", "", "sum0", "", "before0"]
    assert works_of(schedule_of(plan).ranks[0]) == [*forward, *backward]


def test_two_stages_with_chunks(plan_of: Maker) -> None:
    assert text_of(plan_of("gcn", Layout(layer=2, chunks=2))) == [
        "0EbB1<1 0EbB0<1 0F0 0PbF0>1 0F1 0PbF1>1 0WbB1<1 0B1 0WbB0<1 0B0 0U0",
        "1EbF0<0 1EbF1<0 1WbF0<0 1F0 1WbF1<0 1F1 1B1 1PbB1>0 1B0 1PbB0>0 1U0",
    ]


def test_two_stages_of_two_parts(plan_of: Maker) -> None:
    first = "0EbB0<{0} 0F0.0-0 0PhF0.0 0F0.0-0 0WhF0.0 0F0.0-0 0PbF0>{0} 0WbB0<{0} 0B0 0G0 0U0"
    second = (
        "1EbF0<{0} 1WbF0<{0} 1F0.1-1 1PhF0.1 1F0.1-1 1WhF0.1 1F0.1-1"
        " 1B0.1-1 1PhB0.1 1B0.1-1 1WhB0.1 1B0.1-1 1PbB0>{0} 1G0 1U0"
    )
    assert text_of(plan_of("gcn", Layout(layer=2, vertex=2, spatial="halo"))) == [
        first.format(2),
        first.format(3),
        second.format(0),
        second.format(1),
    ]


def test_a_carry(plan_of: Maker) -> None:
    plan = plan_of("cd-gcn", Layout(time=2, temporal="carry", chunks=2), runs_of([1, 1]), layers=1)
    assert text_of(plan) == [
        "0EcB1.0@0<1 0EcB0.0@0<1 0F0.0-0@0 0PcF0.0@0>1 0F0.0-0@0 0PcF1.0@0>1 0F0.0-1@0"
        " 0B0.0-1@0 0WcB1.0@0<1 0B0.0-0@0 0WcB0.0@0<1 0B0.0-0@0 0G0 0U0",
        "0EcF0.0@0<0 0EcF1.0@0<0 0F0.0-0@0 0WcF0.0@0<0 0F0.0-0@0 0WcF1.0@0<0 0F0.0-1@0"
        " 0B0.0-1@0 0PcB1.0@0>0 0B0.0-0@0 0PcB0.0@0>0 0B0.0-0@0 0G0 0U0",
    ]
    first, second = (works_of(actions) for actions in schedule_of(plan))
    assert first == [
        *("before0 behind0 recur0", "recur0", "local1 loss2"),
        *("loss2 local1", "recur0", "recur0 behind0 before0"),
    ]
    assert second == [
        *("before0 behind0", "recur0", "recur0 local1 loss2"),
        *("loss2 local1 recur0", "recur0", "behind0 before0"),
    ]


def test_a_window(plan_of: Maker) -> None:
    """A step reads two steps before it: run 1 reads run 0 of its block, and run 0 of block 1 reads both of block 0."""
    plan = plan_of("tm-gcn", Layout(time=2, temporal="halo", blocks=2), runs_of([1, 1], [1, 1]), layers=1)
    assert text_of(plan) == [
        "0EwF0.0@1<1 0EwB0.0@1<1 0EwB0.0@0<1 0F0.0-0@0 0PwF0.0@0>1 0F0.0-0@0"
        " 0F0.0-0@1 0PwF0.0@1>1 0F0.0-0@1 0WwF0.0@1<1 0F0.0-1@1"
        " 0B0.0-1@1 0PwB0.0@1>1 0B0.0-0@1 0WwB0.0@1<1 0B0.0-0@1"
        " 0A0@0~a 0B0.0-1@0 0WwB0.0@0<1 0B0.0-0@0 0G0 0U0",
        "0EwF0.0@0<0 0EwF0.0@1<0 0EwB0.0@1<0 0F0.0-0@0 0WwF0.0@0<0 0F0.0-0@0 0PwF0.0@1>0 0F0.0-0@0"
        " 0F0.0-0@1 0WwF0.0@1<0 0F0.0-1@1 0B0.0-1@1 0PwB0.0@1>0 0B0.0-0@1"
        " 0A0@0~a 0B0.0-1@0 0PwB0.0@0>0 0B0.0-0@0 0WwB0.0@1<0 0B0.0-0@0 0G0 0U0",
    ]


def test_steps_redistributed(plan_of: Maker) -> None:
    line = (
        "0F0.0-0@0 0PtF0.0@0 0F0.0-0@0 0WtF0.0@0 0F0.0-0@0 0PtF0.0@0 0F0.0-0@0 0WtF0.0@0 0F0.0-1@0"
        " 0B0.0-1@0 0PtB0.0@0 0B0.0-0@0 0WtB0.0@0 0B0.0-0@0 0PtB0.0@0 0B0.0-0@0 0WtB0.0@0 0B0.0-0@0 0G0 0U0"
    )
    layout = Layout(time=2, temporal="redistribute")
    assert text_of(plan_of("cd-gcn", layout, runs_of([1, 1]), layers=1)) == [line, line]
    # a rank without steps still has its share of the rows
    plan = plan_of("cd-gcn", layout, runs_of([2, 0]), layers=1)
    assert text_of(plan) == [line, line]
    for actions in schedule_of(plan):
        assert sum("recur0" in words for words in works_of(actions)) == 2


def test_blocks_are_computed_again(plan_of: Maker) -> None:
    runs = runs_of([1], [1])
    # of all blocks but the last only the states are wanted, so the head is left out
    plan = plan_of("cd-gcn", Layout(blocks=2), runs, layers=1)
    assert text_of(plan) == ["0F0@0 0F0@1 0B0@1 0A0@0~a 0B0@0 0U0"]
    states, everything = "before0 behind0 recur0", "before0 behind0 recur0 local1 loss2"
    back = "loss2 local1 recur0 behind0 before0"
    assert works_of(schedule_of(plan).ranks[0]) == [states, everything, back, everything, back]
    # a last stage without state has nothing to do in them
    plan = plan_of("gcn", Layout(layer=2, blocks=2), runs)
    assert text_of(plan) == [
        "0EbB0@1<1 0EbB0@0<1 0F0@0 0PbF0@0>1 0F0@1 0PbF0@1>1 0WbB0@1<1 0B0@1 0A0@0~a 0WbB0@0<1 0B0@0 0U0",
        "1EbF0@0<0 1EbF0@1<0 1WbF0@0<0 1F0@0 1WbF0@1<0 1F0@1 1B0@1 1PbB0@1>0 1A0@0~a 1B0@0 1PbB0@0>0 1U0",
    ]
    there, back = "before1 behind1 loss3", "loss3 behind1 before1"
    assert works_of(schedule_of(plan).ranks[1]) == ["", there, back, there, back]
    assert works_of(schedule_of(plan).ranks[0])[0] == "before0 behind0"


def test_groups_are_computed_again(plan_of: Maker) -> None:
    """The front group goes forward once more inside the backward of its cell."""
    plan = plan_of("gcn", Layout(recompute=True), layers=4)
    assert text_of(plan) == ["0F0 0B0 0U0"]
    front, rear = "before0 behind0 before1 behind1", "before2 behind2 before3 behind3 loss5"
    again = "loss5 behind3 before3 behind2 before2 before0 behind0 before1 behind1 behind1 before1 behind0 before0"
    assert works_of(schedule_of(plan).ranks[0]) == [f"{front} {rear}", again]
    line = (
        "0F0.0-0 0PhF0.0 0F0.0-0 0WhF0.0 0F0.0-1 0PhF0.1 0F0.1-1 0WhF0.1 0F0.1-1"
        " 0B0.1-1 0PhB0.1 0B0.1-1 0WhB0.1 0B0.0-1 0PhF0.0~a 0B0.0-0 0WhF0.0~a 0B0.0-0 0G0 0U0"
    )
    assert text_of(plan_of("gcn", Layout(vertex=2, recompute=True, spatial="halo"))) == [line, line]


def test_a_summary_and_a_fetch(plan_of: Maker) -> None:
    plan = plan_of("evolvegcn-h", Layout(vertex=2, spatial="halo"), runs_of([2]), layers=1)
    line = "0F0.0-0@0 0PmF0.0@0 0F0.0-0@0 0WmF0.0@0 0F0.0-0@0 0PhF0.0@0 0F0.0-0@0 0WhF0.0@0 0F0.0-1@0 0B0@0 0G0 0U0"
    assert text_of(plan) == [line, line]
    # the rows of a second layer were made with parameters: the gradients of its summary and of its halo cross
    plan = plan_of("evolvegcn-h", Layout(vertex=2, spatial="halo"), runs_of([2]))
    back = "0B0.1-2@0 0PhB0.1@0 0B0.1-1@0 0WhB0.1@0 0B0.1-1@0 0PmB0.1@0 0B0.1-1@0 0WmB0.1@0 0B0.0-1@0 0G0 0U0"
    assert all(text.endswith(f" {back}") for text in text_of(plan))
    line = (
        "0F0.0-0 0PhF0.0 0F0.0-0 0WhF0.0 0F0.0-0 0PfF0.0 0F0.0-0 0WfF0.0 0F0.0-0"
        " 0B0.0-0 0PfB0.0 0B0.0-0 0WfB0.0 0B0.0-0 0PhB0.0 0B0.0-0 0WhB0.0 0B0.0-0 0G0 0U0"
    )
    plan = plan_of("gcn", Layout(vertex=2, spatial="halo"), layers=1, fetches=True)
    assert text_of(plan) == [line, line]


def test_evaluation(plan_of: Maker) -> None:
    plan = plan_of("cd-gcn", Layout(layer=2, blocks=2), runs_of([1], [1])).forward_only()
    assert text_of(plan, Pass.EVALUATE) == [
        "0F0@0~e 0PbF0@0>1~e 0F0@1~e 0PbF0@1>1~e",
        "1EbF0@0<0~e 1EbF0@1<0~e 1WbF0@0<0~e 1F0@0~e 1WbF0@1<0~e 1F0@1~e",
    ]
    # all blocks go to the end
    assert works_of(schedule_of(plan, pass_=Pass.EVALUATE).ranks[1]) == ["before1 behind1 recur1 local2 loss3"] * 2


# Every cut

STATIC = ("gcn", "gcnii", "gat")
DYNAMIC = ("cd-gcn", "tm-gcn", "evolvegcn-o", "evolvegcn-h")


@st.composite
def cuts(draw: st.DrawFn) -> Callable[[Maker], Plan]:
    """Plan of a model under a layout that it allows, on one graph or on a timeline."""
    model = draw(st.sampled_from((*STATIC, *DYNAMIC)))
    timeline = model in DYNAMIC or draw(st.booleans())
    layout = Layout(
        time=draw(st.integers(1, 4)) if timeline else 1,
        layer=draw(st.integers(1, 3)),
        vertex=draw(st.integers(1, 3)),
        chunks=draw(st.integers(1, 4)),
        blocks=draw(st.integers(1, 4)) if timeline else 1,
        recompute=draw(st.booleans()),
        spatial="halo" if model == "gat" else draw(st.sampled_from(("halo", "redistribute", "auto"))),
        temporal=draw(
            st.sampled_from(("auto", "carry", "redistribute", *(("halo",) if model == "tm-gcn" else ())))
            if model in DYNAMIC
            else st.just("auto")
        ),
    )
    runs = None
    if timeline:
        sizes = st.lists(st.integers(0, 2), min_size=layout.time, max_size=layout.time).filter(any)
        runs = runs_of(*(draw(sizes) for _ in range(layout.blocks)))
    return partial(
        lambda plan_of, **named: plan_of(model, layout, runs, **named),
        layers=draw(st.integers(3, 4)),
        window=draw(st.integers(1, 6)),
        stale=not timeline and layout.chunks > 1 and layout.spatial != "redistribute" and draw(st.booleans()),
        aggregated=model != "gat" and model != "gcnii" and draw(st.booleans()),
        fetches=draw(st.booleans()),
    )


def alive(actions: Sequence[Action], blocks: int) -> int:
    """Of how many blocks a rank holds what backward needs, at most."""
    held: set[int] = set()
    most = 0
    left = {block: sum(a.verb is Verb.BACKWARD and a.block == block for a in actions) for block in range(blocks)}
    for action in actions:
        block = action.block
        if block is None:
            continue
        if action.verb is Verb.AGAIN or (action.verb is Verb.FORWARD and block == blocks - 1):
            held.add(block)
        elif action.verb is Verb.BACKWARD:
            left[block] -= 1
            if left[block] == 0:
                held.discard(block)
        most = max(most, len(held))
    return most


def cell(action: Action) -> Cell:
    return action.chunk if action.block is None else 0, action.block


def turns_of(actions: Sequence[Action]) -> list[tuple[Verb, Cell]]:
    """Return which cell is computed when, pieces that follow each other counted as one."""
    turns = [(action.verb, cell(action)) for action in actions if action.verb in COMPUTED]
    return [turn for turn, before in zip(turns, [None, *turns], strict=False) if turn != before]


def turns_of_an_epoch(plan: Plan, order: Sequence[int] | None = None) -> list[tuple[Verb, Cell]]:
    """Return which cell must be computed when, from what forward keeps."""
    if not plan.timeline:
        cells = [(chunk, None) for chunk in (range(plan.chunks) if order is None else order)]
        return [*((Verb.FORWARD, at) for at in cells), *((Verb.BACKWARD, at) for at in reversed(cells))]
    last = plan.blocks - 1
    back = [(verb, (0, block)) for block in range(last - 1, -1, -1) for verb in (Verb.AGAIN, Verb.BACKWARD)]
    return [*((Verb.FORWARD, (0, block)) for block in range(last + 1)), (Verb.BACKWARD, (0, last)), *back]


def work_by_cell(actions: Sequence[Action], verb: Verb) -> dict[Cell, dict[tuple[int, str], float]]:
    """Return how much of each part of each layer is done in the cells of a verb; 1.0 is all of it, sides together."""
    done: dict[Cell, dict[tuple[int, str], float]] = {}
    for action in actions:
        if action.verb is verb:
            own = done.setdefault(cell(action), {})
            for work in action.works:
                key = work.layer, work.part
                own[key] = own.get(key, 0.0) + work.share * (0.5 if work.side else 1.0)
    return done


@pytest.mark.parametrize("model", ["cd-gcn", "tm-gcn"])
def test_a_rank_without_steps_posts_where_the_others_do(plan_of: Maker, model: str) -> None:
    """Gradients leave a group before the group in front of it is computed again, on a rank without steps too."""
    layout = Layout(time=2, blocks=2, recompute=True, temporal="redistribute")
    schedule = schedule_of(plan_of(model, layout, runs_of([1, 0], [0, 1])))
    validate(schedule)
    posts = [[str(action) for action in actions if action.verb is Verb.POST] for actions in schedule]
    assert posts[0] == posts[1]
    assert posts[0].index("0PtB0.1@1") < posts[0].index("0PtF0.0@1~a")


@settings(max_examples=200, deadline=None)
@given(cut=cuts(), overlap=st.booleans())
def test_every_cut_is_sound(plan_of: Maker, cut: Callable[[Maker], Plan], overlap: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halo, "OVERLAP_ROWS", 1 if overlap else 1 << 30)
        plan = cut(plan_of)
        schedule = schedule_of(plan)
        validate(schedule)
        validate(schedule_of(plan.without_chunks()))
        runs = runs_until(plan.runs, plan.runs[-1][-1].stop, plan.runs[-1][-1].stop + 3) if plan.timeline else None
        validate(schedule_of(plan.forward_only(runs), pass_=Pass.EVALUATE))
        assert Schedule.parse(str(schedule), plan.layout) == schedule
    last = plan.blocks - 1
    for rank, actions in enumerate(schedule):
        stage = rank // plan.parts % plan.layout.layer
        groups = plan.groups(stage)
        # every cell goes forward and backward once, and again where it must; so one block at most is held
        assert turns_of(actions) == turns_of_an_epoch(plan)
        assert alive(actions, plan.blocks) <= 1
        # nothing of a peer crosses again; without groups and with one block nothing is computed again either
        assert not any(action.peer is not None and action.pass_ is Pass.AGAIN for action in actions)
        assert any(action.verb is Verb.AGAIN for action in actions) == (last > 0)
        if last == 0 and len(groups) == 1:
            assert not any(action.pass_ is Pass.AGAIN for action in actions)
        # a gradient crosses parts where rows are made with parameters: all but the features, and those multiplied first
        back = {a.first for a in actions if a.verb is Verb.POST and a.back and a.exchange in ("h", "r")}
        reading = {layer for group in groups for layer in group if plan.reads(layer)}
        first_gathers = plan.layers[0].calls[:1] and plan.layers[0].calls[0].verb == "gather"
        steps = any(block[rank // (plan.parts * plan.layout.layer)] for block in plan.runs)
        wanted = {layer for layer in reading if layer > 0 or first_gathers}
        assert back == (wanted if plan.parts > 1 and steps else set())


@settings(max_examples=200, deadline=None)
@given(cut=cuts(), overlap=st.booleans())
def test_backward_does_what_forward_did(plan_of: Maker, cut: Callable[[Maker], Plan], overlap: bool) -> None:
    """What a cell goes back through was done with all that backward needs; front groups are done twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halo, "OVERLAP_ROWS", 1 if overlap else 1 << 30)
        plan = cut(plan_of)
        schedule = schedule_of(plan)
    for rank, actions in enumerate(schedule):
        groups = plan.groups(rank // plan.parts % plan.layout.layer)
        front = {layer for group in groups[:-1] for layer in group}
        forward, again, back = (work_by_cell(actions, verb) for verb in (Verb.FORWARD, Verb.AGAIN, Verb.BACKWARD))
        for at, done in back.items():
            kept = again.get(at, forward[at])
            # columns of the features have no gradients to sum
            once = {key: share for key, share in kept.items() if key != (0, "sum")}
            twice = {key: share for key, share in kept.items() if key[0] in front}
            assert done == pytest.approx({key: once.get(key, 0) + twice.get(key, 0) for key in once.keys() | twice})
            # of what was computed again, forward did as much, or stopped where the last state was known
            assert forward[at] == pytest.approx({key: kept[key] for key in forward[at]})


@settings(max_examples=100, deadline=None)
@given(cut=cuts())
def test_pieces_go_through_all_layers(plan_of: Maker, cut: Callable[[Maker], Plan]) -> None:
    """Each piece begins with the layer at which the one before it ended, and a transfer is of that layer."""
    plan = cut(plan_of)
    for rank, actions in enumerate(schedule_of(plan)):
        stage = rank // plan.parts % plan.layout.layer
        numbers = [number for group in plan.groups(stage) for number in group]
        if not numbers:
            continue
        for verb in (Verb.FORWARD, Verb.AGAIN, Verb.BACKWARD):
            for at in {cell(action) for action in actions if action.verb is verb}:
                own = [k for k, action in enumerate(actions) if action.verb is verb and cell(action) == at]
                if len(own) == 1:
                    assert (actions[own[0]].first, actions[own[0]].last) == (None, None)
                    continue
                start, end = (numbers[-1], numbers[0]) if verb is Verb.BACKWARD else (numbers[0], numbers[-1])
                for one, two in pairwise(own):
                    piece = actions[one]
                    [reached] = {a.first for a in actions[one + 1 : two] if a.verb is not Verb.EXPECT}
                    assert reached is not None
                    assert (piece.first, piece.last) == (min(start, reached), max(start, reached))
                    start = reached
                final = actions[own[-1]]
                if verb is Verb.FORWARD and at[1] is not None and at[1] < plan.blocks - 1:
                    recurrent = plan.last_recurrent(stage)
                    end = end if stage < plan.layout.layer - 1 or recurrent is None else recurrent[0]
                assert (final.first, final.last) == (min(start, end), max(start, end))


@settings(max_examples=100, deadline=None)
@given(cut=cuts())
def test_what_is_sent_is_received_once(plan_of: Maker, cut: Callable[[Maker], Plan]) -> None:
    schedule = schedule_of(cut(plan_of))
    crossing = [(rank, a) for rank, actions in enumerate(schedule) for a in actions if a.peer is not None]
    sent = [(rank, a.peer, a.message) for rank, a in crossing if a.verb is Verb.POST]
    for verb in (Verb.EXPECT, Verb.WAIT):
        received = [(a.peer, rank, a.message) for rank, a in crossing if a.verb is verb]
        assert len(set(sent)) == len(sent)
        assert sorted(map(repr, sent)) == sorted(map(repr, received))


@settings(max_examples=60, deadline=None)
@given(
    stages=st.integers(1, 4),
    parts=st.integers(1, 3),
    order=st.integers(1, 6).flatmap(lambda n: st.permutations(range(n))),
)
def test_chunks_in_another_order_stay_sound(plan_of: Maker, stages: int, parts: int, order: list[int]) -> None:
    layout = Layout(layer=stages, vertex=parts, chunks=len(order), spatial="halo")
    plan = plan_of("gcn", layout, layers=5)
    schedule, moved = schedule_of(plan), schedule_of(plan, order=order)
    validate(moved)
    for actions in moved:
        assert turns_of(actions) == turns_of_an_epoch(plan, order)
    assert sorted(map(str, moved.ranks[0])) == sorted(map(str, schedule.ranks[0]))
    if list(order) != sorted(order):
        assert moved != schedule
        if stages > 1:
            # all ranks must take the same order
            with pytest.raises(LayoutError):
                validate(Schedule((*moved.ranks[:-1], schedule.ranks[-1]), layout))


# Time


def test_the_bubble_is_that_of_gpipe(plan_of: Maker) -> None:
    stages, chunks = 4, 8
    schedule = schedule_of(plan_of("gcn", Layout(layer=stages, chunks=chunks), layers=8))
    spans = simulate(schedule, lambda rank, action: float(action.verb in COMPUTED))
    assert max(span.end for row in spans for span in row) == 2 * (chunks + stages - 1)


def test_the_halo_is_waited_for_less_when_work_overlaps_it(plan_of: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("gcn", Layout(vertex=2, spatial="halo"), layers=3, symmetric=True)

    def cost(rank: int, action: Action) -> float:
        shares = {"": 1.0, "boundary": 0.25, "interior": 0.75}
        if action.verb in COMPUTED:
            return sum(shares[work.side] for work in action.works if work.part == "behind")
        return 0.5 if action.verb is Verb.POST else 0.0

    ends, waits = [], []
    for rows in (1, 1 << 30):
        monkeypatch.setattr(halo, "OVERLAP_ROWS", rows)
        schedule = schedule_of(plan)
        spans = simulate(schedule, cost)
        ends.append(max(span.end for row in spans for span in row))
        waits.append(sum(s.end - s.start for s in spans[0] if s.action.verb is Verb.WAIT))
        # the piece between post and wait takes time where interior rows are done in it
        assert ("0F0.1-1" in draw(schedule, cost, columns=40)) == (rows == 1)
    # three sums each way, before them three halos and behind them the gradients of two
    assert waits == [0.0, 5 * 0.5]
    assert ends == [6.0, 6.0 + 5 * 0.5]


def test_a_carry_in_chunks_lets_ranks_overlap(plan_of: Maker) -> None:
    plan = plan_of("cd-gcn", Layout(time=4, temporal="carry"), runs_of([1, 1, 1, 1]), layers=1)

    def seconds(chunks: int) -> float:
        def cost(rank: int, action: Action) -> float:
            return sum(work.share for work in action.works if work.part in ("before", "recur"))

        spans = simulate(schedule_of(replace(plan, carry_chunks=chunks)), cost)
        return max(span.end for row in spans for span in row)

    # spatial 1 and temporal 1, forward and backward; a rank waits for the chunks of those before it
    assert seconds(1) == pytest.approx(2 + 2 * 4)
    assert seconds(16) == pytest.approx(2 + 2 * (1 + 3 / 16))


def test_recomputation_sends_no_carry(plan_of: Maker) -> None:
    plan = plan_of("cd-gcn", Layout(time=3, blocks=4, chunks=2, temporal="carry"), runs_of(*[[1, 1, 1]] * 4))
    posts = [a for row in schedule_of(plan) for a in row if a.verb is Verb.POST and a.exchange == "c"]
    handovers = 3 * 4 - 1
    assert len(posts) == 2 * handovers * 2 * 2
    assert sum(not a.back for a in posts) == handovers * 2 * 2


def test_the_picture_names_recomputation(plan_of: Maker) -> None:
    plan = plan_of("cd-gcn", Layout(time=2, blocks=2, chunks=2, temporal="carry"), runs_of([1, 1], [1, 1]), layers=1)
    picture = draw(schedule_of(plan))
    assert len(picture.splitlines()) == 2
    assert "0A0@0~a" in picture
    assert "0B0.0-1@1" in picture


# Broken schedules


def broken(schedule: Schedule, rank: int, change: Callable[[list[Action]], list[Action]]) -> Schedule:
    ranks = [list(actions) for actions in schedule]
    ranks[rank] = change(ranks[rank])
    assert ranks[rank] != list(schedule.ranks[rank])
    return Schedule(tuple(map(tuple, ranks)), schedule.layout)


def moved_to(schedule: Schedule, rank: int, position: int, target: int) -> Schedule:
    """The action at a position right before the one that was at the target."""

    def change(row: list[Action]) -> list[Action]:
        action = row.pop(position)
        row.insert(target - (position < target), action)
        return row

    return broken(schedule, rank, change)


SAMPLES: dict[str, tuple[str, Layout, Runs | None]] = {
    "halo": ("gcn", Layout(vertex=2, spatial="halo"), None),
    "groups": ("gcn", Layout(vertex=2, spatial="halo", recompute=True), None),
    "columns": ("gcn", Layout(vertex=2, spatial="redistribute"), None),
    "boundary": ("gcn", Layout(layer=2, chunks=2), None),
    "chunks": ("gcn", Layout(vertex=2, layer=2, chunks=2, spatial="halo"), None),
    "stages": ("cd-gcn", Layout(time=2, layer=2, blocks=2, temporal="redistribute"), runs_of([1, 1], [1, 1])),
    "carry": ("cd-gcn", Layout(time=2, blocks=2, chunks=2, temporal="carry"), runs_of([1, 1], [1, 1])),
    "window": ("tm-gcn", Layout(time=2, blocks=2, temporal="halo"), runs_of([1, 1], [1, 1])),
    "steps": ("cd-gcn", Layout(time=2, temporal="redistribute"), runs_of([1, 1])),
    "summary": ("evolvegcn-h", Layout(vertex=2, spatial="halo"), runs_of([2])),
}
STAGED = ("boundary", "chunks", "stages")
SEVERAL_CELLS = ("boundary", "chunks", "stages", "carry", "window")


def sample(plan_of: Maker, name: str) -> Schedule:
    schedule = schedule_of(plan_of(*SAMPLES[name]))
    validate(schedule)
    return schedule


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("verb", [Verb.POST, Verb.EXPECT, Verb.WAIT])
def test_each_lost_transfer_is_seen(plan_of: Maker, name: str, verb: Verb) -> None:
    """Without any one of the posts, expectations and waits the schedule is refused."""
    schedule = sample(plan_of, name)
    lost = 0
    for rank, actions in enumerate(schedule):
        for position, action in enumerate(actions):
            if action.verb is verb:
                lost += 1
                with pytest.raises(LayoutError):
                    validate(broken(schedule, rank, lambda row, k=position: row[:k] + row[k + 1 :]))  # type: ignore[misc]
    assert lost > 0 or (verb is Verb.EXPECT and name in ("halo", "groups", "columns", "steps", "summary"))


@pytest.mark.parametrize("name", SAMPLES)
def test_swapped_pairs_are_seen(plan_of: Maker, name: str) -> None:
    """A cell goes backward before its forward; what a rank of a pair sends first comes second."""
    schedule = sample(plan_of, name)

    def swapped(row: list[Action], one: int, two: int) -> list[Action]:
        row = list(row)
        row[one], row[two] = row[two], row[one]
        return row

    for rank, actions in enumerate(schedule):
        turn = next(k for k, action in enumerate(actions) if action.verb is Verb.BACKWARD)
        forward = next(k for k, a in enumerate(actions) if a.verb is Verb.FORWARD and cell(a) == cell(actions[turn]))
        assert forward < turn
        with pytest.raises(LayoutError, match="before its forward"):
            validate(broken(schedule, rank, lambda row, a=forward, b=turn: swapped(row, a, b)))  # type: ignore[misc]
        waits = [k for k, action in enumerate(actions) if action.verb is Verb.WAIT]
        # those of rows that become columns and of columns that become rows again have one text
        pairs = [(one, two) for one, two in pairwise(waits) if actions[one] != actions[two]]
        assert pairs or len(waits) < 2
        for one, two in pairs:
            with pytest.raises(LayoutError):
                validate(broken(schedule, rank, lambda row, a=one, b=two: swapped(row, a, b)))  # type: ignore[misc]


def test_what_is_wrong_is_said(plan_of: Maker) -> None:
    def without(schedule: Schedule, verb: Verb) -> Schedule:
        return broken(schedule, 1, lambda row: [a for a in row if a.verb is not verb])

    halo, boundary = (sample(plan_of, name) for name in ("halo", "boundary"))
    with pytest.raises(LayoutError, match="never waited for"):
        validate(without(halo, Verb.WAIT))
    with pytest.raises(LayoutError, match="was not posted"):
        validate(without(halo, Verb.POST))
    with pytest.raises(LayoutError, match="was not expected"):
        validate(without(boundary, Verb.EXPECT))
    with pytest.raises(LayoutError, match="deadlocks"):
        validate(without(boundary, Verb.POST))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_cell_that_is_begun_twice_is_refused(plan_of: Maker, name: str) -> None:
    schedule = sample(plan_of, name)
    words = {Verb.FORWARD: "forward", Verb.AGAIN: "recomputation", Verb.BACKWARD: "backward"}
    for rank, actions in enumerate(schedule):
        computed = [k for k, action in enumerate(actions) if action.verb in COMPUTED]
        last = actions[computed[-1]]
        # all but the turn that is the last one anyway
        others = [k for k in computed if (actions[k].verb, cell(actions[k])) != (last.verb, cell(last))]
        assert others
        for k in others:
            row = [*actions[: computed[-1] + 1], actions[k], *actions[computed[-1] + 1 :]]
            with pytest.raises(LayoutError, match=f"is a second {words[actions[k].verb]}"):
                validate(broken(schedule, rank, lambda _, row=row: row))  # type: ignore[misc]


@pytest.mark.parametrize("name", STAGED)
def test_a_boundary_message_leaves_behind_its_cell(plan_of: Maker, name: str) -> None:
    schedule = sample(plan_of, name)
    seen = set()
    for rank, actions in enumerate(schedule):
        posts = [k for k, action in enumerate(actions) if action.exchange == "b" and action.verb is Verb.POST]
        for k in posts:
            verb = Verb.BACKWARD if actions[k].back else Verb.FORWARD
            pieces = [j for j, a in enumerate(actions) if a.verb is verb and cell(a) == cell(actions[k])]
            assert pieces[-1] < k
            with pytest.raises(LayoutError, match=r"Pb[FB]\d.* leaves before the cell that makes it"):
                validate(moved_to(schedule, rank, k, pieces[0]))
            for piece in pieces[:-1]:
                seen.add(verb)
                with pytest.raises(LayoutError, match="is computed when what its cell makes has left"):
                    validate(moved_to(schedule, rank, k, piece + 1))
                following = next(j for j in pieces if j > piece)
                with pytest.raises(LayoutError, match=r"Pb[FB]\d.* comes before a piece behind \d[PW][ht]"):
                    validate(moved_to(schedule, rank, k, following))
    assert seen == (set() if name == "boundary" else {Verb.FORWARD, Verb.BACKWARD})


@pytest.mark.parametrize("name", STAGED)
def test_a_boundary_message_is_waited_for_before_its_cell(plan_of: Maker, name: str) -> None:
    schedule = sample(plan_of, name)
    seen = set()
    for rank, actions in enumerate(schedule):
        waits = [k for k, action in enumerate(actions) if action.exchange == "b" and action.verb is Verb.WAIT]
        for k in waits:
            verb = Verb.BACKWARD if actions[k].back else Verb.FORWARD
            pieces = [j for j, a in enumerate(actions) if a.verb is verb and cell(a) == cell(actions[k])]
            assert k < pieces[0]
            for piece in pieces:
                seen.add(verb)
                with pytest.raises(LayoutError, match=r"Wb[FB]\d.* is waited for when its cell has begun"):
                    validate(moved_to(schedule, rank, k, piece + 1))
    assert seen == {Verb.FORWARD, Verb.BACKWARD}


@pytest.mark.parametrize("name", SEVERAL_CELLS)
def test_cells_go_back_in_the_reverse_order(plan_of: Maker, name: str) -> None:
    """The cell that went forward last goes back first, with all that it posts and waits for."""
    schedule = sample(plan_of, name)
    ends = []
    for rank, actions in enumerate(schedule):
        back = [k for k, action in enumerate(actions) if action.verb is Verb.BACKWARD]
        first = [k for k in back if cell(actions[k]) == cell(actions[back[0]])]
        assert first != back
        low, high = first[0], first[-1] + 1
        while actions[low - 1].exchange == "b" and actions[low - 1].verb is Verb.WAIT:
            low -= 1
        while actions[high].exchange == "b":
            high += 1
        end = next(k for k, action in enumerate(actions) if action.verb in (Verb.REDUCE, Verb.STEP))

        def change(row: list[Action], low: int = low, high: int = high, end: int = end) -> list[Action]:
            return [*row[:low], *row[high:end], *row[low:high], *row[end:]]

        with pytest.raises(LayoutError, match="comes before the backward of a cell that went forward later") as raised:
            validate(broken(schedule, rank, change))
        ends.append(str(raised.value))
        if any(action.verb is Verb.AGAIN for action in actions):
            # and without recomputation nothing of its block is there
            lost = broken(schedule, rank, lambda row: [a for a in row if a.pass_ is not Pass.AGAIN])
            with pytest.raises(LayoutError, match="comes before it was computed again, and of its block nothing was"):
                validate(lost)
    assert all(f"rank {rank}: " in text for rank, text in enumerate(ends))


def test_recomputation_out_of_place_is_refused(plan_of: Maker) -> None:
    schedule = schedule_of(plan_of("cd-gcn", Layout(blocks=2), runs_of([1], [1]), layers=1))
    [actions] = schedule
    at = next(k for k, a in enumerate(actions) if a.verb is Verb.AGAIN)
    assert [a.verb for a in actions[at - 1 : at + 2]] == [Verb.BACKWARD, Verb.AGAIN, Verb.BACKWARD]
    with pytest.raises(LayoutError, match="second recomputation"):
        validate(broken(schedule, 0, lambda row: [*row[: at - 1], row[at], row[at - 1], *row[at:]]))
    with pytest.raises(LayoutError, match="comes before it was computed again"):
        validate(broken(schedule, 0, lambda row: [*row[:at], row[at + 1], row[at], row[-1]]))
    # of the last block all was kept
    late = Action(Verb.AGAIN, 0, 0, block=1, pass_=Pass.AGAIN)
    with pytest.raises(LayoutError, match="comes after its backward"):
        validate(broken(schedule, 0, lambda row: [*row[:at], late, *row[at:]]))
    with pytest.raises(LayoutError, match="comes before its forward"):
        validate(broken(schedule, 0, lambda row: row[1:]))
    with pytest.raises(LayoutError, match="comes after the step of its stage"):
        validate(broken(schedule, 0, lambda row: [*row[:-2], row[-1], row[-2]]))
