from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.schedule import Action, Kind, Schedule, draw, evaluation, simulate, single, validate


def pipeline(stages: int, chunks: int) -> Schedule:
    """A GPipe order written out by hand, as a sample of a schedule with messages."""
    ranks = []
    for s in range(stages):
        words: list[str] = []
        for c in range(chunks):
            words += [f"{s}RF{c}<{s - 1}"] if s else []
            words += [f"{s}F{c}"]
            words += [f"{s}SF{c}>{s + 1}"] if s + 1 < stages else []
        for c in reversed(range(chunks)):
            words += [f"{s}RB{c}<{s + 1}"] if s + 1 < stages else []
            words += [f"{s}B{c}"]
            words += [f"{s}SB{c}>{s - 1}"] if s else []
        ranks.append(" ".join([*words, f"{s}U0"]))
    return Schedule.parse("\n".join(ranks))


def test_single_is_forward_backward_step() -> None:
    assert str(single()) == "0F0 0B0 0U0"
    assert str(single(chunks=3)) == "0F0 0F1 0F2 0B2 0B1 0B0 0U0"
    assert str(single(blocks=2)) == "0F0@0 0F0@1 0B0@1 0B0@0 0U0"
    assert str(evaluation()) == "0F0"


@given(st.integers(1, 6), st.none() | st.integers(1, 5))
def test_single_is_valid(chunks: int, blocks: int | None) -> None:
    validate(single(chunks, blocks))
    validate(evaluation(chunks, blocks))


def test_builder_refuses_zero_chunks() -> None:
    with pytest.raises(LayoutError, match=r"layout\.chunks is 0"):
        single(0)


@given(st.integers(1, 5), st.integers(1, 6))
def test_pipeline_is_valid_parses_back_and_takes_the_known_time(stages: int, chunks: int) -> None:
    schedule = pipeline(stages, chunks)
    validate(schedule)
    assert Schedule.parse(str(schedule)) == schedule
    spans = simulate(schedule, lambda rank, action: 1.0 if action.kind in (Kind.FORWARD, Kind.BACKWARD) else 0.0)
    assert max(span.end for row in spans for span in row) == 2 * (chunks + stages - 1)


def test_link_is_shared_and_delays_the_receiver() -> None:
    schedule = Schedule.parse("0F0 0SF0>1 0F1 0SF1>1\n1RF0<0 1RF1<0")
    spans = simulate(schedule, lambda rank, action: 5.0 if action.kind is Kind.SEND else 1.0)
    assert [span.end for span in spans[1]] == [6.0, 11.0]
    assert spans[0][-1].end == 2.0


def test_collective_waits_for_all_ranks() -> None:
    schedule = Schedule.parse("0F0 0HF0.0 0G0\n0HF0.0 0F0 0G0", Layout(vertex=2))
    spans = simulate(schedule, lambda rank, action: 1.0)
    assert spans[0][1] == spans[1][0]
    assert spans[0][2].start == 3.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0B0 0F0", r"0B0 comes before its forward"),
        ("0F0 0F0", r"second forward"),
        ("0F0 0B0 0B0", r"second backward"),
        ("0F0 0U0 0B0", r"after the step"),
        ("0F0 0RF0<1\n1RF0<0", r"deadlocks: rank 0 at 0RF0<1, rank 1 at 1RF0<0"),
        ("0SF0>1 0SF1>1\n1RF1<0 1RF0<0", r"rank 1 expects 1RF1<0, but the next message from rank 0 is 0SF0>1"),
        ("0SF0>1\n1F0", r"never received"),
        ("0SF0>7\n1F0", r"names rank 7"),
        ("0SF0>0\n1F0", r"names rank 0"),
    ],
)
def test_unsound_schedules_are_refused(text: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        validate(Schedule.parse(text))


def test_collectives_in_different_order_deadlock() -> None:
    with pytest.raises(LayoutError, match="deadlocks"):
        validate(Schedule.parse("0HF0.0 0HF0.1\n0HF0.1 0HF0.0", Layout(vertex=2)))


def test_the_wrong_action_is_marked() -> None:
    with pytest.raises(LayoutError, match=r"rank 1: \[1RF0<0\]"):
        validate(Schedule.parse("0F0 0RF0<1\n1RF0<0"))


def test_groups_follow_the_mesh() -> None:
    layout = Layout(time=2, layer=2, vertex=2)
    schedule = Schedule(tuple(() for _ in range(8)), layout)
    assert schedule.group(3, Action.parse("0HF0")) == (2, 3)
    assert schedule.group(3, Action.parse("0XF0")) == (3, 7)
    assert schedule.group(3, Action.parse("0G0")) == (2, 3, 6, 7)


def test_ranks_must_fit_the_layout() -> None:
    with pytest.raises(LayoutError, match="2 ranks"):
        Schedule(((), ()), Layout())


def test_drawing_shows_the_bubble() -> None:
    lines = draw(pipeline(2, 2)).splitlines()
    assert lines[0].split() == ["rank", "0", "0F0", "0F1", ".", ".", "0B1", "0B0"]
    assert lines[1].split() == ["rank", "1", ".", "1F0", "1F1", "1B1", "1B0", "."]
    assert draw(single(), lambda rank, action: 0.5, columns=6).count("-") == 3
