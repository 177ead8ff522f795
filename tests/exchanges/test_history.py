"""History as an exchange: whom it fits, and that it sends nothing."""

from __future__ import annotations

from dataclasses import replace

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


def test_it_sends_nothing() -> None:
    action = Action.parse("0F0")
    assert History().volume(facts_of(stale=True), [(0, action)], ()) == {}
