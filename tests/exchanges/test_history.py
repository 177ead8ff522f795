"""History as an exchange: whom it fits, that it sends nothing, and what it does as a pass begins, turns and ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trisect.exchanges.facts import Facts
from trisect.exchanges.halo import Halo
from trisect.exchanges.history import History
from trisect.layout import Layout
from trisect.nn import build
from trisect.plan.plan import make_facts
from trisect.schedule.action import Action


def facts_of(*, stale: bool) -> Facts:
    model = build("gcnii", 3, 2, layers=1, hidden=4)
    layout = Layout(chunks=2)
    bounds = (0, len(model.stack))
    return make_facts(model.stack, None, layout, bounds=bounds, rows=(6,), chunk_rows=((0, 3, 6),), stale=stale)


def test_it_fits_chunks_that_read_history_and_layers_that_read_neighbours() -> None:
    stale = facts_of(stale=True)
    assert History.fits(stale)
    assert not History.fits(facts_of(stale=False))
    assert not History.fits(replace(stale, timeline=True))
    boards = [History().needs_board(stale, number) for number in range(len(stale.layers))]
    assert boards == [layer.spatial for layer in stale.layers]
    assert any(boards)
    assert not all(boards)
    # one part has no halo, so nothing else asks for a board
    assert not any(Halo().needs_board(stale, number) for number in range(len(stale.layers)))


class Told:
    """A rank whose rows of an earlier epoch note what they are told."""

    def __init__(self, keep: float | None) -> None:
        self.chunked, self.keep, self.history = True, keep, self
        self.calls: list[object] = []

    def begin(self, *, chunked: bool, keep: float | None) -> None:
        self.calls.append(("begin", chunked, keep))

    def turn(self) -> None:
        self.calls.append("turn")

    def end(self) -> None:
        self.calls.append("end")


def test_it_is_told_of_a_pass_and_sends_nothing() -> None:
    history = History()
    port: Any = Told(0.8)
    history.begin(port)
    history.turn(port)
    history.end(port)
    assert port.calls == [("begin", True, 0.8), "turn", "end"]
    port.history = None
    history.begin(port)
    assert len(port.calls) == 3
    action = Action.parse("0F0")
    assert history.volume(facts_of(stale=True), [(0, action)], ()) == {}
    with pytest.raises(RuntimeError, match="not sent"):
        history.post(action, port)
    with pytest.raises(RuntimeError, match="not waited for"):
        history.wait(action, port, None)
