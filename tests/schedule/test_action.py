from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trisect.errors import LayoutError
from trisect.schedule.action import COMPUTE, TRANSFER, Action, Letter, Pass, Verb, declare
from trisect.views.catalogue import CATALOGUE
from trisect.views.exchange import LETTERS

number = st.integers(0, 200)


@st.composite
def actions(draw: st.DrawFn) -> Action:
    verb = draw(st.sampled_from(Verb))
    exchange = draw(st.sampled_from(sorted(LETTERS))) if verb in TRANSFER else None
    peer = draw(number) if exchange is not None and LETTERS[exchange].paired else None
    first = draw(st.none() | number)
    computes = first is not None and verb in COMPUTE
    return Action(
        verb,
        stage=draw(number),
        chunk=draw(number),
        first=first,
        last=draw(st.none() | number) if computes else None,
        block=draw(st.none() | number),
        exchange=exchange,
        back=exchange is not None and draw(st.booleans()),
        peer=peer,
        incoming=peer is not None and verb is not Verb.POST,
        pass_=draw(st.sampled_from(Pass)),
    )


@given(actions())
def test_text_parses_back(action: Action) -> None:
    assert Action.parse(str(action)) == action


@given(actions(), actions())
def test_different_actions_print_differently(one: Action, two: Action) -> None:
    assert (str(one) == str(two)) == (one == two)


def test_forms() -> None:
    assert str(Action(Verb.FORWARD, stage=2)) == "2F0"
    assert str(Action(Verb.POST, chunk=3, exchange="b", peer=1)) == "0PbF3>1"
    assert str(Action(Verb.EXPECT, stage=1, chunk=3, exchange="b", peer=0, incoming=True)) == "1EbF3<0"
    assert str(Action(Verb.WAIT, stage=1, chunk=3, exchange="b", peer=0, incoming=True)) == "1WbF3<0"
    assert str(Action(Verb.WAIT, first=0, block=4, exchange="c", back=True, peer=2, incoming=True)) == "0WcB0.0@4<2"
    assert str(Action(Verb.FORWARD, first=2, last=4)) == "0F0.2-4"
    assert str(Action(Verb.POST, first=2, exchange="h", back=True)) == "0PhB0.2"
    assert str(Action(Verb.AGAIN, first=3, last=3, block=4, pass_=Pass.AGAIN)) == "0A0.3-3@4~a"
    assert str(Action(Verb.FORWARD, pass_=Pass.EVALUATE)) == "0F0~e"


@pytest.mark.parametrize(
    "text",
    [
        *("", "F0", "2Q0", "2F", "2F0x", "2F0~x"),
        *("0P0>1", "0PbF0", "0PhF0.1>1", "0PxF0.1", "2FF0", "2FhF0"),
        *("0F0>1", "0F0<1", "0PbF0<1", "0WbF0>1", "0EbF0>1"),
        *("0F0b", "0F0.1-2b", "0F0.1-2i", "0PhF0.1b", "0PhF0.1-2"),
    ],
)
def test_bad_text_is_refused(text: str) -> None:
    with pytest.raises(LayoutError):
        Action.parse(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"verb": Verb.POST}, "needs the letter of its exchange"),
        ({"verb": Verb.FORWARD, "exchange": "h"}, "has no exchange"),
        ({"verb": Verb.POST, "exchange": "q"}, "'q' is no exchange"),
        ({"verb": Verb.POST, "exchange": "c"}, "a carry needs a single peer"),
        ({"verb": Verb.POST, "exchange": "h", "peer": 1}, "a halo has no single peer"),
        ({"verb": Verb.FORWARD, "back": True}, "no direction"),
        ({"verb": Verb.WAIT, "exchange": "b", "peer": 1}, "must be incoming"),
        ({"verb": Verb.FORWARD, "incoming": True}, "cannot be incoming"),
        ({"verb": Verb.FORWARD, "last": 1}, "names a last layer"),
        ({"verb": Verb.POST, "exchange": "h", "first": 1, "last": 1}, "names a last layer"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        Action(**fields)  # type: ignore[arg-type]


def test_both_sides_of_a_transfer_carry_the_same_message() -> None:
    assert Action.parse("0PbF3>1").message == Action.parse("1WbF3<0").message == Action.parse("1EbF3<0").message
    assert Action.parse("0PbF3>1").message != Action.parse("1WbF2<0").message
    assert Action.parse("0PcF1.2@3>1").message != Action.parse("0WcB1.2@3<0").message
    with pytest.raises(RuntimeError, match="names no peer"):
        _ = Action.parse("0PhF0.1").other


def test_what_planning_knows_besides_is_not_compared() -> None:
    """Actions as they ran know nothing of the work and the verbs that were planned."""
    plain = Action.parse("0PhF0.1")
    known = Action(Verb.POST, first=1, exchange="h", works=("work",), call="call", width=3)
    assert known == plain
    assert hash(known) == hash(plain)
    assert str(known) == str(plain)
    assert repr(known) == repr(plain)


def test_letters_are_those_of_the_catalogue() -> None:
    assert sorted(LETTERS) == sorted(exchange.letter for exchange in CATALOGUE)


def test_a_letter_stands_for_one_exchange() -> None:
    declare("h", Letter("halo", "vertex"))
    with pytest.raises(RuntimeError, match="'h' stands for a halo and for a hop"):
        declare("h", Letter("hop", "vertex"))
