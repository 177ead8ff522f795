from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.schedule import Action, Kind, Side, draw, simulate, validate
from trisect.schedule.pipeline import forward_only, high_water, pipeline
from trisect.schedule.schedule import Schedule


@settings(max_examples=60, deadline=None)
@given(stages=st.integers(1, 5), ways=st.integers(1, 4), chunks=st.integers(1, 7), data=st.data())
def test_pipelines_are_sound(stages: int, ways: int, chunks: int, data: st.DataObject) -> None:
    layout = Layout(layer=stages, vertex=ways, chunks=chunks)
    spatial = data.draw(st.lists(st.integers(0, 3), min_size=stages, max_size=stages))
    order = data.draw(st.permutations(range(chunks)))
    schedule = pipeline(layout, spatial, order, overlap=data.draw(st.booleans()))
    validate(schedule)
    assert Schedule.parse(str(schedule), layout) == schedule
    for actions in schedule:
        # GPipe's order keeps every chunk from its forward to its backward
        assert high_water(actions) == chunks
    validate(forward_only(layout, spatial))
    for actions in schedule:
        own = [a for a in actions if a.layer in (None, 0) and a.side is not Side.INTERIOR]
        first = [a.chunk for a in own if a.kind is Kind.FORWARD]
        last = [a.chunk for a in own if a.kind is Kind.BACKWARD]
        assert first == list(order)
        assert last == first[::-1]


def test_the_bubble_is_that_of_gpipe() -> None:
    stages, chunks = 4, 8
    schedule = pipeline(Layout(layer=stages, chunks=chunks), [2] * stages)
    spans = simulate(schedule, lambda rank, action: float(action.kind in (Kind.FORWARD, Kind.BACKWARD)))
    end = max(span.end for row in spans for span in row)
    assert end == 2 * (chunks + stages - 1)


def test_the_halo_is_waited_for_less_when_work_overlaps_it() -> None:
    layout, spatial = Layout(vertex=2), [3]

    def cost(rank: int, action: Action) -> float:
        if action.kind in (Kind.FORWARD, Kind.BACKWARD):
            return {None: 1.0, Side.BOUNDARY: 0.25, Side.INTERIOR: 0.75}[action.side]
        return 0.5 if action.kind in (Kind.POST, Kind.HALO) else 0.0

    ends, waits = [], []
    for overlap in (True, False):
        spans = simulate(pipeline(layout, spatial, overlap=overlap), cost)
        ends.append(max(span.end for row in spans for span in row))
        waits.append(sum(s.end - s.start for s in spans[0] if s.action.kind is Kind.HALO))
    assert waits == [0.0, 6 * 0.5]
    assert ends == [8.0, 8.0 + 6 * 0.5]
    text = draw(pipeline(layout, spatial), cost, columns=40)
    assert "0F0.1b" in text
    assert "0F0.1i" in text


def test_an_exchange_that_is_never_waited_for_is_seen() -> None:
    schedule = pipeline(Layout(vertex=2), [1])
    broken = tuple(tuple(a for a in actions if a.kind is not Kind.HALO) for actions in schedule)
    with pytest.raises(LayoutError, match="never waited for"):
        validate(Schedule(broken, schedule.layout))


def test_a_lost_receive_is_seen() -> None:
    schedule = pipeline(Layout(layer=2, chunks=2), [1, 1])
    broken = tuple(a for a in schedule.ranks[1] if a.kind is not Kind.RECEIVE)
    with pytest.raises(LayoutError):
        validate(Schedule((schedule.ranks[0], broken), schedule.layout))


def test_time_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"layout\.time is 2"):
        pipeline(Layout(time=2), [1])
