from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trisect.views.catalogue  # noqa: F401  the exchanges declare their letters
from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.schedule import Action, Schedule, Verb, draw, simulate, validate

COMPUTED = (Verb.FORWARD, Verb.BACKWARD)


def pipeline(stages: int, chunks: int) -> Schedule:
    """A GPipe order written out by hand, as a sample of a schedule with messages."""
    ranks = []
    for s in range(stages):
        words: list[str] = []
        for c in range(chunks):
            words += [f"{s}EbF{c}<{s - 1}", f"{s}WbF{c}<{s - 1}"] if s else []
            words += [f"{s}F{c}"]
            words += [f"{s}PbF{c}>{s + 1}"] if s + 1 < stages else []
        for c in reversed(range(chunks)):
            words += [f"{s}EbB{c}<{s + 1}", f"{s}WbB{c}<{s + 1}"] if s + 1 < stages else []
            words += [f"{s}B{c}"]
            words += [f"{s}PbB{c}>{s - 1}"] if s else []
        ranks.append(" ".join([*words, f"{s}U0"]))
    return Schedule.parse("\n".join(ranks))


@given(st.integers(1, 5), st.integers(1, 6))
def test_pipeline_is_valid_parses_back_and_takes_the_known_time(stages: int, chunks: int) -> None:
    schedule = pipeline(stages, chunks)
    validate(schedule)
    assert Schedule.parse(str(schedule)) == schedule
    spans = simulate(schedule, lambda rank, action: float(action.verb in COMPUTED))
    assert max(span.end for row in spans for span in row) == 2 * (chunks + stages - 1)


def test_link_is_shared_and_delays_the_receiver() -> None:
    schedule = Schedule.parse("0F0 0PbF0>1 0F1 0PbF1>1\n1EbF0<0 1EbF1<0 1WbF0<0 1WbF1<0")
    spans = simulate(schedule, lambda rank, action: 5.0 if action.verb is Verb.POST else 1.0)
    assert [span.end for span in spans[1]] == [0.0, 0.0, 6.0, 11.0]
    assert spans[0][-1].end == 2.0


def test_collective_waits_for_all_ranks() -> None:
    schedule = Schedule.parse("0F0 0PhF0.0 0WhF0.0 0G0\n0PhF0.0 0WhF0.0 0F0 0G0", Layout(vertex=2))
    spans = simulate(schedule, lambda rank, action: 1.0)
    # rank 1 posts at once, and has the rows of rank 0 one second after that has computed them
    assert spans[0][2].end == spans[1][1].end == 2.0
    assert spans[0][3].start == spans[1][3].start == 3.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0B0 0F0", r"0B0 comes before its forward"),
        ("0F0 0F0", r"second forward"),
        ("0F0 0B0 0B0", r"second backward"),
        ("0F0 0U0 0B0", r"after the step"),
        ("0F0@0 0A0@0~a 0A0@0~a 0B0@0", r"second recomputation"),
        ("0F0@0 0B0@0 0A0@0~a", r"0A0@0~a comes after its backward"),
        ("0F0@0 0F0@1 0B0@1 0B0@0", r"0B0@0 comes before it was computed again, and of its block nothing was kept"),
        ("0F0 0F1 0B0 0B1", r"0B0 comes before the backward of a cell that went forward later"),
        ("0F0 0F1 0F0", r"0F0 is a second forward"),
        ("0F0.0-0 0PhF0.1 0F0.1-1 0WhF0.1 0F0.1-1 0F0.1-1", r"0F0.1-1 is a second forward"),
        ("0F0.0-0 0PhF0.1 0F1 0WhF0.1 0F0.1-1", r"0F1 comes before a piece behind 0PhF0.1"),
        ("0F0.0-0 0PhF1.1 0F0.1-1 0WhF1.1 0F0.1-1", r"0PhF1.1 crosses while another cell is computed"),
        ("0PbF0>1 0F0\n1F0", r"0PbF0>1 leaves before the cell that makes it"),
        ("0F0 0EbF0<1 0WbF0<1\n1EbF0<0 1WbF0<0", r"0WbF0<1 is waited for when its cell has begun"),
        (
            "0EbB0<1 0F0 0WbB0<1\n1EbF0<0 1WbF0<0",
            r"deadlocks: rank 0 at 0WbB0<1, rank 1 at 1WbF0<0",
        ),
        (
            "0F0 0PbF0>1 0F1 0PbF1>1\n1EbF1<0 1EbF0<0 1WbF1<0 1WbF0<0",
            r"rank 1 expects 1WbF1<0, but the next message from rank 0 is 0PbF0>1",
        ),
        ("0F0 0PbF0>1\n1F0", r"never received"),
        ("0F0 0PbF0>7\n1F0", r"names rank 7"),
        ("0F0 0PbF0>0\n1F0", r"names rank 0"),
        ("0F0 0PbF0>1\n1WbF0<0", r"1WbF0<0 is waited for and was not expected"),
        ("0F0 0PbF0>1\n1EbF0<0", r"never waited for"),
        ("0PhF0.1 0PhF0.1 0WhF0.1 0WhF0.1", r"posted a second time"),
        ("0WhF0.1", r"was not posted"),
        ("0PhF0.1", r"never waited for"),
    ],
)
def test_unsound_schedules_are_refused(text: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        validate(Schedule.parse(text))


def test_collectives_in_different_order_deadlock() -> None:
    one, two = "0PhF0.0 0WhF0.0", "0PhF0.1 0WhF0.1"
    validate(Schedule.parse(f"{one} {two}\n{one} {two}", Layout(vertex=2)))
    with pytest.raises(LayoutError, match="deadlocks"):
        validate(Schedule.parse(f"{one} {two}\n{two} {one}", Layout(vertex=2)))


def test_collectives_that_are_posted_in_different_order_are_refused() -> None:
    """What crosses a whole axis is matched by its order, so that each rank would read the other's."""
    one, two, waits = "0PtF0.0", "0PtB0.1", "0WtF0.0 0WtB0.1"
    validate(Schedule.parse(f"{one} {two} {waits}\n{one} {two} {waits}", Layout(time=2)))
    with pytest.raises(LayoutError, match=r"rank 1: 0PtB0.1 is posted where rank 0 posts 0PtF0.0"):
        validate(Schedule.parse(f"{one} {two} {waits}\n{two} {one} {waits}", Layout(time=2)))


def test_the_wrong_action_is_marked() -> None:
    with pytest.raises(LayoutError, match=r"rank 1: 1EbF0<0 \[1WbF0<0\]"):
        validate(Schedule.parse("0EbB0<1 0F0 0WbB0<1\n1EbF0<0 1WbF0<0"))


def test_groups_follow_the_mesh() -> None:
    layout = Layout(time=2, layer=2, vertex=2)
    schedule = Schedule(tuple(() for _ in range(8)), layout)
    assert schedule.group(3, Action.parse("0PhF0.1")) == (2, 3)
    assert schedule.group(3, Action.parse("0PtF0.1")) == (3, 7)
    assert schedule.group(3, Action.parse("0G0")) == (2, 3, 6, 7)


def test_ranks_must_fit_the_layout() -> None:
    with pytest.raises(LayoutError, match="2 ranks"):
        Schedule(((), ()), Layout())


def test_drawing_shows_the_bubble() -> None:
    lines = draw(pipeline(2, 2)).splitlines()
    assert lines[0].split() == ["rank", "0", "0F0", "0F1", ".", ".", "0B1", "0B0"]
    assert lines[1].split() == ["rank", "1", ".", "1F0", "1F1", "1B1", "1B0", "."]
    assert draw(Schedule.parse("0F0 0B0 0U0"), lambda rank, action: 0.5, columns=6).count("-") == 3
