"""History as an exchange: whom it fits, that it sends nothing, and what rows are told as a pass begins and ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trisect.exchanges.facts import Facts
from trisect.exchanges.halo import Halo
from trisect.exchanges.history import History
from trisect.graph.graph import Graph
from trisect.layout import Layout
from trisect.nn import build
from trisect.plan.plan import make_facts
from trisect.schedule.action import Action
from trisect.train.fit import fit
from trisect.views.history_rows import HistoryRows


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


def test_rows_are_told_of_a_pass(monkeypatch: pytest.MonkeyPatch, community: Graph) -> None:
    """A pass begins by deciding what its chunks see, turns when all have gone forward, and lets go of the rest."""
    told: list[object] = []
    for name in ("begin", "turn", "end"):
        honest = getattr(HistoryRows, name)

        def noted(rows: HistoryRows, *, honest: Any = honest, name: str = name, **how: Any) -> None:
            told.append((name, how))
            honest(rows, **how)

        monkeypatch.setattr(HistoryRows, name, noted)
    fit("gcn", community, layout={"chunks": 3, "history": {"start": "exact", "blend": 0.8, "period": 1}}, epochs=2)
    exact = [("begin", {"chunked": False, "keep": 0.0}), ("turn", {}), ("end", {})]
    stale = [("begin", {"chunked": True, "keep": 0.8}), ("turn", {}), ("end", {})]
    assert told[:6] == [*exact, *stale]
