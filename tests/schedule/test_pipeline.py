from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.errors import LayoutError
from trisect.layout import Layout
from trisect.schedule import simulate, validate
from trisect.schedule.action import Kind
from trisect.schedule.pipeline import forward_only, pipeline
from trisect.schedule.schedule import Schedule


@settings(max_examples=60, deadline=None)
@given(stages=st.integers(1, 5), ways=st.integers(1, 4), chunks=st.integers(1, 7), data=st.data())
def test_pipelines_are_sound(stages: int, ways: int, chunks: int, data: st.DataObject) -> None:
    layout = Layout(layer=stages, vertex=ways, chunks=chunks)
    spatial = data.draw(st.lists(st.integers(0, 3), min_size=stages, max_size=stages))
    order = data.draw(st.permutations(range(chunks)))
    schedule = pipeline(layout, spatial, order)
    validate(schedule)
    validate(forward_only(layout, spatial))
    for actions in schedule:
        first = [a.chunk for a in actions if a.kind is Kind.FORWARD and a.layer in (None, 0)]
        last = [a.chunk for a in actions if a.kind is Kind.BACKWARD and a.layer in (None, 0)]
        assert first == list(order)
        assert last == first[::-1]


def test_the_bubble_is_that_of_gpipe() -> None:
    stages, chunks = 4, 8
    schedule = pipeline(Layout(layer=stages, chunks=chunks), [2] * stages)
    spans = simulate(schedule, lambda rank, action: float(action.kind in (Kind.FORWARD, Kind.BACKWARD)))
    end = max(span.end for row in spans for span in row)
    assert end == 2 * (chunks + stages - 1)


def test_a_lost_receive_is_seen() -> None:
    schedule = pipeline(Layout(layer=2, chunks=2), [1, 1])
    broken = tuple(a for a in schedule.ranks[1] if a.kind is not Kind.RECEIVE)
    with pytest.raises(LayoutError):
        validate(Schedule((schedule.ranks[0], broken), schedule.layout))


def test_time_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"layout\.time is 2"):
        pipeline(Layout(time=2), [1])
