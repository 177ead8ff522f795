from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trisect.errors import LayoutError
from trisect.schedule.action import POINT_TO_POINT, Action, Half, Kind, Phase, Side

number = st.integers(0, 200)


@st.composite
def actions(draw: st.DrawFn) -> Action:
    kind = draw(st.sampled_from(Kind))
    phased = kind in (Kind.SEND, Kind.RECEIVE, Kind.POST, Kind.HALO, Kind.CARRY, Kind.REDISTRIBUTE)
    layer = draw(st.none() | number)
    sided = layer is not None and kind in (Kind.FORWARD, Kind.BACKWARD)
    return Action(
        kind,
        stage=draw(number),
        chunk=draw(number),
        layer=layer,
        block=draw(st.none() | number),
        phase=draw(st.sampled_from(Phase)) if phased else None,
        peer=draw(number) if kind in POINT_TO_POINT else None,
        incoming=draw(st.booleans()) if kind is Kind.CARRY else kind is Kind.RECEIVE,
        half=draw(st.none() | st.sampled_from(Half)) if layer is not None else None,
        side=draw(st.none() | st.sampled_from(Side)) if sided else None,
    )


@given(actions())
def test_text_parses_back(action: Action) -> None:
    assert Action.parse(str(action)) == action


@given(actions(), actions())
def test_different_actions_print_differently(one: Action, two: Action) -> None:
    assert (str(one) == str(two)) == (one == two)


def test_forms() -> None:
    assert str(Action(Kind.FORWARD, stage=2)) == "2F0"
    assert str(Action(Kind.SEND, chunk=3, phase=Phase.FORWARD, peer=1)) == "0SF3>1"
    assert str(Action(Kind.RECEIVE, stage=1, chunk=3, phase=Phase.FORWARD, peer=0)) == "1RF3<0"
    assert str(Action(Kind.CARRY, layer=0, block=4, phase=Phase.BACKWARD, peer=2, incoming=True)) == "0CB0.0@4<2"
    assert str(Action(Kind.FORWARD, layer=2, side=Side.BOUNDARY)) == "0F0.2b"
    assert str(Action(Kind.POST, layer=2, phase=Phase.BACKWARD)) == "0PB0.2"


@pytest.mark.parametrize(
    "text", ["", "F0", "2Q0", "2F", "2F0x", "0S0>1", "0SF0", "2FF0", "0F0>1", "0SF0<1", "0F0b", "0HF0.1b"]
)
def test_bad_text_is_refused(text: str) -> None:
    with pytest.raises(LayoutError):
        Action.parse(text)
