"""What a stage holds on its way forward: rows are let go by whoever is the last to read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from trisect.engine.units import Ref, StageUnits, units_of
from trisect.exchanges.facts import Facts
from trisect.layout import Layout

Maker = Callable[..., Facts]
TWO = ((range(2), range(2, 4)),)


def left_over(stage: StageUnits) -> set[Ref]:
    """Go forward over units and crossings in order; give what is held in the end, and fail on what is not there."""
    held: set[Ref] = set(stage.enters)
    crossings = dict(stage.crossed)
    for unit in stage.units:
        for half in [half for half in crossings if half <= unit.first]:
            held = crossed(stage, half, held)
            del crossings[half]
        assert {ref for ref in unit.reads if not stage.apart} <= held, (unit, held)
        held = (held | set(unit.writes)) - set(unit.frees)
    for half in crossings:
        held = crossed(stage, half, held)
    return held


def crossed(stage: StageUnits, half: int, held: set[Ref]) -> set[Ref]:
    values = stage.crossed[half]
    assert set(values.sources) <= held | {step.out for step in stage.apart.values()}, (values, held)
    return (held | set(values.targets)) - set(values.frees)


@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gcnii", "resgcn+"])
def test_rows_that_turn_into_columns_are_let_go(facts_of: Maker, model: str) -> None:
    facts = facts_of(model, Layout(vertex=2, spatial="redistribute"), layers=3)
    stage = units_of(facts, 0, [])
    turned = {ref for values in stage.crossed.values() for ref in values.sources}
    assert len(turned) >= 2 * 3 - 1
    assert not left_over(stage) & turned
    # the negative control: crossings that free nothing leave the sums by columns of every layer
    kept = {half: replace(values, frees=()) for half, values in stage.crossed.items()}
    assert len(left_over(replace(stage, crossed=kept)) & turned) >= 3


@pytest.mark.parametrize("model", ["cd-gcn", "tm-gcn"])
def test_rows_that_are_dealt_to_runs_are_let_go(facts_of: Maker, model: str) -> None:
    facts = facts_of(model, Layout(time=2, temporal="redistribute"), TWO)
    stage = units_of(facts, 0, [])
    outs = {step.out for step in stage.apart.values()}
    dealt = {ref for values in stage.crossed.values() for ref in values.sources} - outs
    assert dealt
    assert not left_over(stage) & dealt


def test_what_a_group_begins_with_stays(facts_of: Maker) -> None:
    layout = Layout(vertex=2, spatial="redistribute", recompute=True)
    stage = units_of(facts_of("gcn", layout, layers=6), 0, [])
    assert stage.kept
    assert stage.kept <= left_over(stage)
