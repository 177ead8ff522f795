"""Schedules of timelines: sound for every cut, one block's work alive at a time, and drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.schedule import draw, simulate, validate
from trisect.schedule.action import Action, Half, Kind, Phase
from trisect.schedule.schedule import Schedule
from trisect.schedule.timeline import LayerPlan, TimelinePlan, timeline_schedule

LAYERS = st.sampled_from(
    [
        LayerPlan("carry", "vertex"),
        LayerPlan("redistribute", "vertex"),
        LayerPlan("carry", "window", 3),
        LayerPlan("halo", "window", 2),
        LayerPlan("halo", "window", 6),
        LayerPlan("none", "weight"),
        LayerPlan("carry", "weight", summarises=True),
    ]
)


@st.composite
def plans(draw: st.DrawFn) -> tuple[Layout, TimelinePlan]:
    layout = Layout(time=draw(st.integers(1, 4)), layer=draw(st.integers(1, 3)), vertex=draw(st.integers(1, 2)))
    blocks = draw(st.integers(1, 4))
    runs, at = [], 0
    for _ in range(blocks):
        sizes = draw(st.lists(st.integers(0, 3), min_size=layout.time, max_size=layout.time).filter(any))
        block = []
        for size in sizes:
            block.append(range(at, at + size))
            at += size
        runs.append(tuple(block))
    each = draw(st.lists(st.integers(1, 2), min_size=layout.layer, max_size=layout.layer))
    bounds = tuple(sum(each[:k]) for k in range(layout.layer + 1))
    layers = draw(st.lists(LAYERS, min_size=bounds[-1], max_size=bounds[-1]))
    if any(layer.along == "carry" for layer in layers):
        layers = [replace(layer, along="carry") if layer.along == "halo" else layer for layer in layers]
    plan = TimelinePlan(
        runs=tuple(runs),
        bounds=bounds,
        layers=tuple(layers),
        chunks=draw(st.integers(1, 3)),
        aggregated=draw(st.booleans()),
        fetches=draw(st.booleans()),
    )
    return replace(layout, blocks=blocks), plan


def alive(actions: tuple[Action, ...], blocks: int) -> int:
    """How many blocks' worth of what backward needs a rank holds at most."""
    held: set[int] = set()
    most = 0
    left = {block: sum(a.kind is Kind.BACKWARD and a.block == block for a in actions) for block in range(blocks)}
    for action in actions:
        block = action.block
        if block is None:
            continue
        if action.kind is Kind.RECOMPUTE or (action.kind is Kind.FORWARD and block == blocks - 1):
            held.add(block)
        elif action.kind is Kind.BACKWARD:
            left[block] -= 1
            if left[block] == 0:
                held.discard(block)
        most = max(most, len(held))
    return most


@settings(max_examples=150, deadline=None)
@given(plans())
def test_timelines_are_sound(given: tuple[Layout, TimelinePlan]) -> None:
    layout, plan = given
    schedule = timeline_schedule(layout, plan)
    validate(schedule)
    validate(timeline_schedule(layout, plan, train=False))
    for actions in schedule:
        assert alive(actions, plan.blocks) <= 1
        # all that is gone back through was computed with all that backward needs: again, or in the last block
        again = {(a.block, a.layer, a.half, a.chunk) for a in actions if a.kind is Kind.RECOMPUTE}
        for action in actions:
            if action.kind is Kind.BACKWARD and action.block != plan.blocks - 1:
                assert (action.block, action.layer, action.half, action.chunk) in again


@settings(max_examples=60, deadline=None)
@given(plans())
def test_sends_match_receives(given: tuple[Layout, TimelinePlan]) -> None:
    layout, plan = given
    schedule = timeline_schedule(layout, plan)
    crossing = [(rank, a) for rank, actions in enumerate(schedule) for a in actions if a.peer is not None]
    sent = [(rank, a.peer, a.message) for rank, a in crossing if not a.incoming]
    received = [(a.peer, rank, a.message) for rank, a in crossing if a.incoming]
    assert len(set(sent)) == len(sent)
    assert sorted(map(repr, sent)) == sorted(map(repr, received))


def carry(times: int, blocks: int, chunks: int, layers: int = 1) -> tuple[Layout, TimelinePlan]:
    steps = [range(k, k + 1) for k in range(times * blocks)]
    runs = tuple(tuple(steps[b * times : (b + 1) * times]) for b in range(blocks))
    plan = TimelinePlan(runs, (0, layers), (LayerPlan("carry", "vertex"),) * layers, chunks=chunks)
    return Layout(time=times, blocks=blocks), plan


def test_recomputation_sends_no_carry() -> None:
    layout, plan = carry(3, 4, 2, layers=2)
    actions = [a for row in timeline_schedule(layout, plan) for a in row if a.kind is Kind.CARRY and not a.incoming]
    handovers = 3 * 4 - 1
    assert len(actions) == 2 * handovers * 2 * 2
    assert sum(a.phase is Phase.FORWARD for a in actions) == handovers * 2 * 2


def test_a_carry_in_chunks_lets_ranks_overlap() -> None:
    def seconds(chunks: int) -> float:
        layout, plan = carry(4, 1, chunks)

        def cost(rank: int, action: Action) -> float:
            if action.half is Half.TEMPORAL:
                return 1.0 / chunks
            return 1.0 if action.half is Half.SPATIAL else 0.0

        return max(span.end for row in simulate(timeline_schedule(layout, plan), cost) for span in row)

    # spatial 1 and temporal 1, forward and backward; a rank waits for the chunks of those before it
    assert seconds(1) == pytest.approx(2 + 2 * 4)
    assert seconds(16) == pytest.approx(2 + 2 * (1 + 3 / 16))


def test_the_picture_names_recomputation() -> None:
    layout, plan = carry(2, 2, 1)
    picture = draw(timeline_schedule(layout, plan))
    assert len(picture.splitlines()) == 2
    assert "0A0.0t@0" in picture
    assert "0B0.0s@1" in picture


def test_a_lost_carry_is_seen() -> None:
    layout, plan = carry(2, 2, 2)
    schedule = timeline_schedule(layout, plan)
    lost = tuple(a for a in schedule.ranks[0] if a.kind is not Kind.CARRY or a.incoming)
    with pytest.raises(LayoutError):
        validate(Schedule((lost, schedule.ranks[1]), layout))


def test_a_second_recomputation_is_refused() -> None:
    layout, plan = carry(1, 2, 1)
    [actions] = timeline_schedule(layout, plan)
    at = next(k for k, a in enumerate(actions) if a.kind is Kind.RECOMPUTE)
    with pytest.raises(LayoutError, match="second recomputation"):
        validate(Schedule(((*actions[: at + 1], *actions[at:]),), layout))
    moved = (*actions[:at], *actions[at + 1 : -1], actions[at], actions[-1])
    with pytest.raises(LayoutError, match="comes after its backward"):
        validate(Schedule((moved,), layout))


def test_carries_and_halos_do_not_mix() -> None:
    layers = (LayerPlan("carry", "vertex"), LayerPlan("halo", "window", 3))
    with pytest.raises(LayoutError, match="let all carry"):
        timeline_schedule(Layout(), TimelinePlan(((range(2),),), (0, 2), layers))


def test_an_empty_block_is_refused() -> None:
    plan = TimelinePlan(((range(2),), (range(2, 2),)), (0, 1), (LayerPlan("carry", "vertex"),))
    with pytest.raises(LayoutError, match="block 1 of 2 has no steps"):
        timeline_schedule(Layout(blocks=2), plan)
