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
from trisect.exchanges.facts import Facts, Runs
from trisect.layout import Layout
from trisect.plan import segments
from trisect.plan.build import in_order, schedule_of
from trisect.plan.plan import forward_only, runs_until, without_chunks
from trisect.schedule import Action, Pass, Schedule, Side, Verb, draw, simulate, validate

Maker = Callable[..., Facts]
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


def text_of(facts: Facts, pass_: Pass = Pass.TRAIN) -> list[str]:
    schedule = schedule_of(facts, pass_=pass_)
    validate(schedule)
    return str(schedule).splitlines()


# Texts


def test_one_process(facts_of: Maker) -> None:
    assert text_of(facts_of("gcn", Layout())) == ["0F0 0B0 0U0"]
    assert text_of(facts_of("gcn", Layout(chunks=3))) == ["0F0 0F1 0F2 0B2 0B1 0B0 0U0"]
    assert text_of(facts_of("gcn", Layout()), Pass.EVALUATE) == ["0F0~e"]


def test_two_parts(facts_of: Maker) -> None:
    line = (
        "0F0.0-0 0PhF0.1 0WhF0.1 0F0.1-2 0PhF0.3 0WhF0.3 0F0.3-4"
        " 0B0.3-4 0PhB0.3 0WhB0.3 0B0.1-2 0PhB0.1 0WhB0.1 0B0.0-0 0G0 0U0"
    )
    layout = Layout(vertex=2, spatial="halo")
    assert text_of(facts_of("gcn", layout, features=5)) == [line, line]
    # sums of features need no gradient
    line = line.replace(" 0PhB0.1 0WhB0.1", "")
    assert text_of(facts_of("gcn", layout)) == [line, line]


def test_two_parts_whose_interior_hides_the_halo(facts_of: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "OVERLAP_ROWS", 1)
    line = (
        "0F0.0-0b 0PhF0.1 0F0.0-0i 0WhF0.1 0F0.1-2b 0PhF0.3 0F0.1-2i 0WhF0.3 0F0.3-4b 0F0.3-4i"
        " 0B0.3-4b 0PhB0.3 0B0.3-4i 0WhB0.3 0B0.1-2b 0PhB0.1 0B0.1-2i 0WhB0.1 0B0.0-0b 0B0.0-0i 0G0 0U0"
    )
    assert text_of(facts_of("gcn", Layout(vertex=2, spatial="halo"), features=5)) == [line, line]


def test_two_parts_by_columns(facts_of: Maker) -> None:
    line = (
        "0F0.0-0 0PrF0.1 0WrF0.1 0F0.1-1 0PrF0.2 0WrF0.2 0F0.2-3"
        " 0B0.2-3 0PrB0.2 0WrB0.2 0B0.1-1 0PrB0.1 0WrB0.1 0B0.0-0 0G0 0U0"
    )
    assert text_of(facts_of("gcn", Layout(vertex=2, spatial="redistribute"), layers=1)) == [line, line]


def test_two_stages_with_chunks(facts_of: Maker) -> None:
    assert text_of(facts_of("gcn", Layout(layer=2, chunks=2))) == [
        "0EbB1<1 0EbB0<1 0F0 0PbF0>1 0F1 0PbF1>1 0WbB1<1 0B1 0WbB0<1 0B0 0U0",
        "1EbF0<0 1EbF1<0 1WbF0<0 1F0 1WbF1<0 1F1 1B1 1PbB1>0 1B0 1PbB0>0 1U0",
    ]


def test_two_stages_of_two_parts(facts_of: Maker) -> None:
    first = "0EbB0<{0} 0F0.0-0 0PhF0.1 0WhF0.1 0F0.1-1 0PbF0>{0} 0WbB0<{0} 0B0.1-1 0PhB0.1 0WhB0.1 0B0.0-0 0G0 0U0"
    second = "1EbF0<{0} 1WbF0<{0} 1F0.2-2 1PhF0.3 1WhF0.3 1F0.3-4 1B0.3-4 1PhB0.3 1WhB0.3 1B0.2-2 1PbB0>{0} 1G0 1U0"
    assert text_of(facts_of("gcn", Layout(layer=2, vertex=2, spatial="halo"), features=5)) == [
        first.format(2),
        first.format(3),
        second.format(0),
        second.format(1),
    ]


def test_a_carry(facts_of: Maker) -> None:
    facts = facts_of("cd-gcn", Layout(time=2, temporal="carry", chunks=2), runs_of([1, 1]), layers=1)
    assert text_of(facts) == [
        "0EcB1.2@0<1 0EcB0.2@0<1 0F0.0-1@0 0F0.2-2@0 0PcF0.2@0>1 0F1.2-2@0 0PcF1.2@0>1 0F0.3-4@0"
        " 0B0.3-4@0 0WcB1.2@0<1 0B1.2-2@0 0WcB0.2@0<1 0B0.2-2@0 0B0.0-1@0 0G0 0U0",
        "0EcF0.2@0<0 0EcF1.2@0<0 0F0.0-1@0 0WcF0.2@0<0 0F0.2-2@0 0WcF1.2@0<0 0F1.2-2@0 0F0.3-4@0"
        " 0B0.3-4@0 0B1.2-2@0 0PcB1.2@0>0 0B0.2-2@0 0PcB0.2@0>0 0B0.0-1@0 0G0 0U0",
    ]


def test_a_window(facts_of: Maker) -> None:
    """A step reads two steps before it: run 1 reads run 0 of its block, and run 0 of block 1 reads both of block 0."""
    facts = facts_of("tm-gcn", Layout(time=2, temporal="halo", blocks=2), runs_of([1, 1], [1, 1]), layers=1)
    assert text_of(facts) == [
        "0EwF0.2@1<1 0EwB0.2@1<1 0EwB0.2@0<1 0F0.0-1@0 0PwF0.2@0>1 0F0.2-2@0"
        " 0F0.0-1@1 0PwF0.2@1>1 0WwF0.2@1<1 0F0.2-2@1 0F0.3-4@1"
        " 0B0.3-4@1 0B0.2-2@1 0PwB0.2@1>1 0WwB0.2@1<1 0B0.0-1@1"
        " 0A0.0-1@0~a 0A0.2-2@0~a 0A0.3-4@0~a 0B0.3-4@0 0B0.2-2@0 0WwB0.2@0<1 0B0.0-1@0 0G0 0U0",
        "0EwF0.2@0<0 0EwF0.2@1<0 0EwB0.2@1<0 0F0.0-1@0 0WwF0.2@0<0 0F0.2-2@0"
        " 0PwF0.2@1>0 0F0.0-1@1 0WwF0.2@1<0 0F0.2-2@1 0F0.3-4@1"
        " 0B0.3-4@1 0B0.2-2@1 0PwB0.2@1>0 0B0.0-1@1 0WwB0.2@1<0"
        " 0A0.0-1@0~a 0A0.2-2@0~a 0A0.3-4@0~a 0B0.3-4@0 0B0.2-2@0 0PwB0.2@0>0 0B0.0-1@0 0G0 0U0",
    ]


def test_steps_redistributed(facts_of: Maker) -> None:
    line = (
        "0F0.0-1@0 0PtF0.2@0 0WtF0.2@0 0F0.2-2@0 0PtF0.3@0 0WtF0.3@0 0F0.3-4@0"
        " 0B0.3-4@0 0PtB0.3@0 0WtB0.3@0 0B0.2-2@0 0PtB0.2@0 0WtB0.2@0 0B0.0-1@0 0G0 0U0"
    )
    layout = Layout(time=2, temporal="redistribute")
    assert text_of(facts_of("cd-gcn", layout, runs_of([1, 1]), layers=1)) == [line, line]
    # a rank without steps still has its share of the rows
    idle = "0PtF0.2@0 0WtF0.2@0 0F0.2-2@0 0PtF0.3@0 0WtF0.3@0 0PtB0.3@0 0WtB0.3@0 0B0.2-2@0 0PtB0.2@0 0WtB0.2@0 0G0 0U0"
    assert text_of(facts_of("cd-gcn", layout, runs_of([2, 0]), layers=1)) == [line, idle]


def test_blocks_are_computed_again(facts_of: Maker) -> None:
    runs = runs_of([1], [1])
    # of all blocks but the last only the states are wanted, so the head is left out
    assert text_of(facts_of("cd-gcn", Layout(blocks=2), runs, layers=1)) == ["0F0.0-2@0 0F0@1 0B0@1 0A0@0~a 0B0@0 0U0"]
    # a last stage without state has nothing to do in them
    assert text_of(facts_of("gcn", Layout(layer=2, blocks=2), runs)) == [
        "0EbB0@1<1 0EbB0@0<1 0F0@0 0PbF0@0>1 0F0@1 0PbF0@1>1 0WbB0@1<1 0B0@1 0A0@0~a 0WbB0@0<1 0B0@0 0U0",
        "1EbF0@0<0 1EbF0@1<0 1WbF0@0<0 1WbF0@1<0 1F0@1 1B0@1 1PbB0@1>0 1A0@0~a 1B0@0 1PbB0@0>0 1U0",
    ]


def test_groups_are_computed_again(facts_of: Maker) -> None:
    facts = facts_of("gcn", Layout(recompute=True), layers=4)
    assert text_of(facts) == ["0F0.0-3 0F0.4-8 0B0.4-8 0A0.0-3~a 0B0.0-3 0U0"]
    line = (
        "0F0.0-0 0PhF0.1 0WhF0.1 0F0.1-1 0F0.2-2 0PhF0.3 0WhF0.3 0F0.3-4 0B0.3-4 0PhB0.3 0WhB0.3 0B0.2-2"
        " 0A0.0-0~a 0PhF0.1~a 0WhF0.1~a 0A0.1-1~a 0B0.1-1 0PhB0.1 0WhB0.1 0B0.0-0 0G0 0U0"
    )
    assert text_of(facts_of("gcn", Layout(vertex=2, recompute=True, spatial="halo"), features=5)) == [line, line]


def test_a_summary_and_a_fetch(facts_of: Maker) -> None:
    facts = facts_of("evolvegcn-h", Layout(vertex=2, spatial="halo"), runs_of([2]), features=5)
    # the best rows of features need no gradient
    line = (
        "0F0.0-0@0 0PmF0.1@0 0WmF0.1@0 0F0.1-2@0 0PhF0.3@0 0WhF0.3@0 0F0.3-4@0"
        " 0PmF0.5@0 0WmF0.5@0 0F0.5-6@0 0PhF0.7@0 0WhF0.7@0 0F0.7-9@0"
        " 0B0.7-9@0 0PhB0.7@0 0WhB0.7@0 0B0.5-6@0 0PmB0.5@0 0WmB0.5@0"
        " 0B0.3-4@0 0PhB0.3@0 0WhB0.3@0 0B0.1-2@0 0B0.0-0@0 0G0 0U0"
    )
    assert text_of(facts) == [line, line]
    line = (
        "0F0.0-0 0PhF0.1 0WhF0.1 0F0.1-1 0PfF0.2 0WfF0.2 0F0.2-2"
        " 0B0.2-2 0PfB0.2 0WfB0.2 0B0.1-1 0PhB0.1 0WhB0.1 0B0.0-0 0G0 0U0"
    )
    facts = facts_of("gcn", Layout(vertex=2, spatial="halo"), layers=1, fetches=True)
    assert text_of(facts) == [line, line]


def test_evaluation(facts_of: Maker) -> None:
    facts = forward_only(facts_of("cd-gcn", Layout(layer=2, blocks=2), runs_of([1], [1])))
    assert text_of(facts, Pass.EVALUATE) == [
        "0F0@0~e 0PbF0@0>1~e 0F0@1~e 0PbF0@1>1~e",
        "1EbF0@0<0~e 1EbF0@1<0~e 1WbF0@0<0~e 1F0@0~e 1WbF0@1<0~e 1F0@1~e",
    ]


# Every cut

STATIC = ("gcn", "gcnii", "gat")
DYNAMIC = ("cd-gcn", "tm-gcn", "evolvegcn-o", "evolvegcn-h")


@st.composite
def cuts(draw: st.DrawFn) -> Callable[[Maker], Facts]:
    """Facts of a model under a layout that it allows, on one graph or on a timeline."""
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
        lambda facts_of, **named: facts_of(model, layout, runs, **named),
        layers=draw(st.integers(3, 4)),
        window=draw(st.integers(1, 6)),
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


def cell(action: Action) -> tuple[object, ...]:
    return action.chunk, action.first, action.last, action.side, action.block


@pytest.mark.parametrize("model", ["cd-gcn", "tm-gcn"])
def test_a_rank_without_steps_posts_where_the_others_do(facts_of: Maker, model: str) -> None:
    """Gradients leave a group when the group in front of it was computed again, on a rank without steps too."""
    layout = Layout(time=2, blocks=2, recompute=True, temporal="redistribute")
    schedule = schedule_of(facts_of(model, layout, runs_of([1, 0], [0, 1])))
    validate(schedule)
    posts = [[str(action) for action in actions if action.verb is Verb.POST] for actions in schedule]
    assert posts[0] == posts[1]
    # the group in front ends with rows that were dealt out: they come back first
    assert posts[0].index("0PtF0.2@1~a") < posts[0].index("0PtF0.3@1~a") < posts[0].index("0PtB0.3@1")


@settings(max_examples=200, deadline=None)
@given(cut=cuts(), overlap=st.booleans())
def test_every_cut_is_sound(facts_of: Maker, cut: Callable[[Maker], Facts], overlap: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "OVERLAP_ROWS", 1 if overlap else 1 << 30)
        facts = cut(facts_of)
        schedule = schedule_of(facts)
        validate(schedule)
        validate(schedule_of(without_chunks(facts)))
        runs = runs_until(facts.runs, facts.runs[-1][-1].stop, facts.runs[-1][-1].stop + 3) if facts.timeline else None
        forward = forward_only(facts, runs)
        validate(schedule_of(forward, pass_=Pass.EVALUATE))
        assert Schedule.parse(str(schedule), facts.layout) == schedule
        groups = [segments.segments_of(facts, stage)[-1].group for stage in range(facts.layout.layer)]
    last = facts.blocks - 1
    for rank, actions in enumerate(schedule):
        assert alive(actions, facts.blocks) <= 1
        # what is gone back through was computed with all that backward needs: again, or at the end of forward
        kept: set[tuple[object, ...]] = set()
        for action in actions:
            if action.verb is Verb.AGAIN or (action.verb is Verb.FORWARD and action.block in (None, last)):
                kept.add(cell(action))
            elif action.verb is Verb.BACKWARD:
                assert cell(action) in kept
        # nothing of a peer crosses again; without groups and with one block nothing is computed again either
        assert not any(action.peer is not None and action.pass_ is Pass.AGAIN for action in actions)
        if last == 0 and groups[rank // facts.parts % facts.layout.layer] == 0:
            assert not any(action.verb is Verb.AGAIN for action in actions)
        # a step's forward is gone back through exactly once
        backward = [cell(action) for action in actions if action.verb is Verb.BACKWARD]
        assert len(set(backward)) == len(backward)


@settings(max_examples=100, deadline=None)
@given(cut=cuts())
def test_what_is_sent_is_received_once(facts_of: Maker, cut: Callable[[Maker], Facts]) -> None:
    schedule = schedule_of(cut(facts_of))
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
def test_chunks_in_another_order_stay_sound(facts_of: Maker, stages: int, parts: int, order: list[int]) -> None:
    layout = Layout(layer=stages, vertex=parts, chunks=len(order), spatial="halo")
    schedule = schedule_of(facts_of("gcn", layout, layers=5))
    moved = Schedule(tuple(tuple(in_order(actions, order)) for actions in schedule), layout)
    validate(moved)
    for actions in moved:
        forward = [a.chunk for a in actions if a.verb is Verb.FORWARD]
        backward = [a.chunk for a in actions if a.verb is Verb.BACKWARD]
        assert list(dict.fromkeys(forward)) == list(order)
        assert list(dict.fromkeys(backward)) == list(order)[::-1]
    if list(order) != sorted(order):
        assert moved != schedule
        if stages > 1:
            # all ranks must take the same order
            with pytest.raises(LayoutError):
                validate(Schedule((*moved.ranks[:-1], schedule.ranks[-1]), layout))


# Time


def test_the_bubble_is_that_of_gpipe(facts_of: Maker) -> None:
    stages, chunks = 4, 8
    schedule = schedule_of(facts_of("gcn", Layout(layer=stages, chunks=chunks), layers=8))
    spans = simulate(schedule, lambda rank, action: float(action.verb in COMPUTED))
    assert max(span.end for row in spans for span in row) == 2 * (chunks + stages - 1)


def test_the_halo_is_waited_for_less_when_work_overlaps_it(facts_of: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = facts_of("gcn", Layout(vertex=2, spatial="halo"), layers=3, features=5)

    def cost(rank: int, action: Action) -> float:
        if action.verb in COMPUTED:
            return {None: 1.0, Side.BOUNDARY: 0.25, Side.INTERIOR: 0.75}[action.side]
        return 0.5 if action.verb is Verb.POST else 0.0

    ends, waits = [], []
    for rows in (1, 1 << 30):
        monkeypatch.setattr(segments, "OVERLAP_ROWS", rows)
        schedule = schedule_of(facts)
        spans = simulate(schedule, cost)
        ends.append(max(span.end for row in spans for span in row))
        waits.append(sum(s.end - s.start for s in spans[0] if s.action.verb is Verb.WAIT))
        assert ("0F0.1-2b" in draw(schedule, cost, columns=40)) == ("0F0.1-2i" in str(schedule)) == (rows == 1)
    # four pieces of work each way, between them three halos
    assert waits == [0.0, 6 * 0.5]
    assert ends == [8.0, 8.0 + 6 * 0.5]


def test_a_carry_in_chunks_lets_ranks_overlap(facts_of: Maker) -> None:
    facts = facts_of("cd-gcn", Layout(time=4, temporal="carry"), runs_of([1, 1, 1, 1]), layers=1)

    def seconds(chunks: int) -> float:
        def cost(rank: int, action: Action) -> float:
            if action.verb not in COMPUTED:
                return 0.0
            return {0: 1.0, 2: 1.0 / chunks}.get(action.half, 0.0)

        spans = simulate(schedule_of(replace(facts, carry_chunks=chunks)), cost)
        return max(span.end for row in spans for span in row)

    # spatial 1 and temporal 1, forward and backward; a rank waits for the chunks of those before it
    assert seconds(1) == pytest.approx(2 + 2 * 4)
    assert seconds(16) == pytest.approx(2 + 2 * (1 + 3 / 16))


def test_recomputation_sends_no_carry(facts_of: Maker) -> None:
    facts = facts_of("cd-gcn", Layout(time=3, blocks=4, chunks=2, temporal="carry"), runs_of(*[[1, 1, 1]] * 4))
    posts = [a for row in schedule_of(facts) for a in row if a.verb is Verb.POST and a.exchange == "c"]
    handovers = 3 * 4 - 1
    assert len(posts) == 2 * handovers * 2 * 2
    assert sum(not a.back for a in posts) == handovers * 2 * 2


def test_the_picture_names_recomputation(facts_of: Maker) -> None:
    facts = facts_of("cd-gcn", Layout(time=2, blocks=2, temporal="carry"), runs_of([1, 1], [1, 1]), layers=1)
    picture = draw(schedule_of(facts))
    assert len(picture.splitlines()) == 2
    assert "0A0.2-2@0~a" in picture
    assert "0B0.0-1@1" in picture


# Broken schedules


def broken(schedule: Schedule, rank: int, change: Callable[[list[Action]], list[Action]]) -> Schedule:
    ranks = [list(actions) for actions in schedule]
    ranks[rank] = change(ranks[rank])
    assert ranks[rank] != list(schedule.ranks[rank])
    return Schedule(tuple(map(tuple, ranks)), schedule.layout)


SAMPLES: dict[str, tuple[str, Layout, Runs | None]] = {
    "halo": ("gcn", Layout(vertex=2, spatial="halo"), None),
    "columns": ("gcn", Layout(vertex=2, spatial="redistribute"), None),
    "boundary": ("gcn", Layout(layer=2, chunks=2), None),
    "carry": ("cd-gcn", Layout(time=2, blocks=2, chunks=2, temporal="carry"), runs_of([1, 1], [1, 1])),
    "window": ("tm-gcn", Layout(time=2, blocks=2, temporal="halo"), runs_of([1, 1], [1, 1])),
    "steps": ("cd-gcn", Layout(time=2, temporal="redistribute"), runs_of([1, 1])),
    "summary": ("evolvegcn-h", Layout(vertex=2, spatial="halo"), runs_of([2])),
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("verb", [Verb.POST, Verb.EXPECT, Verb.WAIT])
def test_each_lost_transfer_is_seen(facts_of: Maker, name: str, verb: Verb) -> None:
    """Without any one of the posts, expectations and waits the schedule is refused."""
    schedule = schedule_of(facts_of(*SAMPLES[name]))
    validate(schedule)
    lost = 0
    for rank, actions in enumerate(schedule):
        for position, action in enumerate(actions):
            if action.verb is verb:
                lost += 1
                with pytest.raises(LayoutError):
                    validate(broken(schedule, rank, lambda row, k=position: row[:k] + row[k + 1 :]))  # type: ignore[misc]
    assert lost > 0 or (verb is Verb.EXPECT and name in ("halo", "columns", "steps", "summary"))


@pytest.mark.parametrize("name", SAMPLES)
def test_swapped_pairs_are_seen(facts_of: Maker, name: str) -> None:
    """A cell goes backward before its forward; what a rank of a pair sends first comes second."""
    schedule = schedule_of(facts_of(*SAMPLES[name]))

    def swapped(row: list[Action], one: int, two: int) -> list[Action]:
        row = list(row)
        row[one], row[two] = row[two], row[one]
        return row

    for rank, actions in enumerate(schedule):
        turn = next(k for k, action in enumerate(actions) if action.verb is Verb.BACKWARD)
        forward = next(k for k, action in enumerate(actions) if cell(action) == cell(actions[turn]))
        assert forward < turn
        with pytest.raises(LayoutError, match="before its forward"):
            validate(broken(schedule, rank, lambda row, a=forward, b=turn: swapped(row, a, b)))  # type: ignore[misc]
        waits = [k for k, action in enumerate(actions) if action.verb is Verb.WAIT]
        for one, two in pairwise(waits):
            with pytest.raises(LayoutError):
                validate(broken(schedule, rank, lambda row, a=one, b=two: swapped(row, a, b)))  # type: ignore[misc]


def test_what_is_wrong_is_said(facts_of: Maker) -> None:
    def without(schedule: Schedule, verb: Verb) -> Schedule:
        return broken(schedule, 1, lambda row: [a for a in row if a.verb is not verb])

    halo, boundary = (schedule_of(facts_of(*SAMPLES[name])) for name in ("halo", "boundary"))
    with pytest.raises(LayoutError, match="never waited for"):
        validate(without(halo, Verb.WAIT))
    with pytest.raises(LayoutError, match="was not posted"):
        validate(without(halo, Verb.POST))
    with pytest.raises(LayoutError, match="was not expected"):
        validate(without(boundary, Verb.EXPECT))
    with pytest.raises(LayoutError, match="deadlocks"):
        validate(without(boundary, Verb.POST))


def test_recomputation_out_of_place_is_refused(facts_of: Maker) -> None:
    schedule = schedule_of(facts_of("cd-gcn", Layout(blocks=2), runs_of([1], [1]), layers=1))
    [actions] = schedule
    at = next(k for k, a in enumerate(actions) if a.verb is Verb.AGAIN)
    with pytest.raises(LayoutError, match="second recomputation"):
        validate(broken(schedule, 0, lambda row: row[: at + 1] + row[at:]))
    with pytest.raises(LayoutError, match="comes before its forward"):
        validate(broken(schedule, 0, lambda row: [*row[:at], *row[at + 1 : -1], row[at], row[-1]]))
    schedule = schedule_of(facts_of("gcn", Layout(recompute=True), layers=4))
    assert str(schedule.ranks[0][3]) == "0A0.0-3~a"
    with pytest.raises(LayoutError, match="comes after its backward"):
        validate(broken(schedule, 0, lambda row: [*row[:3], row[4], row[3], row[5]]))
