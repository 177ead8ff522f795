"""What `validate` says of a schedule in which an action runs before what it reads: one action moved or removed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from trisect.errors import LayoutError
from trisect.exchanges.facts import Facts, Runs
from trisect.layout import Layout
from trisect.plan import segments
from trisect.plan.build import schedule_of
from trisect.plan.plan import forward_only
from trisect.schedule import Action, Pass, Schedule, Verb, validate

Maker = Callable[..., Facts]
ONE: Runs = ((range(2),),)
TWO: Runs = ((range(1), range(1, 2)),)
BLOCKS: Runs = ((range(1), range(1, 2)), (range(2, 3), range(3, 4)))
SAMPLES: dict[str, tuple[str, Layout, Runs | None]] = {
    "groups": ("gcn", Layout(recompute=True), None),
    "halo": ("gcn", Layout(vertex=2, spatial="halo"), None),
    "chunks": ("gcn", Layout(vertex=2, layer=2, chunks=2, spatial="halo"), None),
    "columns": ("gcn", Layout(vertex=2, spatial="redistribute"), None),
    "boundary": ("gcn", Layout(layer=2, chunks=2), None),
    "carry": ("cd-gcn", Layout(time=2, blocks=2, chunks=2, temporal="carry"), BLOCKS),
    "window": ("tm-gcn", Layout(time=2, blocks=2, temporal="halo"), BLOCKS),
    "steps": ("cd-gcn", Layout(time=2, temporal="redistribute"), TWO),
    "summary": ("evolvegcn-h", Layout(vertex=2, spatial="halo"), ONE),
}


def sample(facts_of: Maker, name: str) -> Schedule:
    schedule = schedule_of(facts_of(*SAMPLES[name], features=5))
    validate(schedule)
    return schedule


def changed(schedule: Schedule, rank: int, row: list[Action]) -> Schedule:
    assert row != list(schedule.ranks[rank])
    ranks = [row if r == rank else list(actions) for r, actions in enumerate(schedule)]
    return Schedule(tuple(map(tuple, ranks)), schedule.layout)


def moved(schedule: Schedule, rank: int, one: str, two: str) -> Schedule:
    """The action `one` right before `two`."""
    row = list(schedule.ranks[rank])
    action = Action.parse(one)
    row.remove(action)
    row.insert(row.index(Action.parse(two)), action)
    return changed(schedule, rank, row)


@pytest.mark.parametrize(
    ("name", "rank", "one", "two"),
    [
        # a cell before the cell that makes its rows
        ("groups", 0, "0F0.2-4", "0F0.0-1"),
        ("carry", 0, "0F0.3-4@0", "0F1.2-2@0"),
        # a cell before what an exchange brings
        ("halo", 0, "0F0.1-2", "0WhF0.1"),
        ("halo", 1, "0F0.3-4", "0WhF0.3"),
        ("chunks", 2, "1F1.3-4", "1WhF1.3"),
        ("columns", 0, "0F0.1-1", "0WrF0.1"),
        ("columns", 1, "0F0.2-3", "0WrF0.2"),
        ("steps", 0, "0F0.2-2@0", "0WtF0.2@0"),
        ("summary", 0, "0F0.1-2@0", "0WmF0.1@0"),
        ("boundary", 1, "1F1", "1WbF1<0"),
        ("carry", 1, "0F1.2-2@0", "0WcF1.2@0<0"),
        ("window", 1, "0F0.2-2@0", "0WwF0.2@0<0"),
        # a transfer before the cell that makes what it sends
        ("halo", 0, "0PhF0.1", "0F0.0-0"),
        ("columns", 0, "0PrF0.2", "0F0.1-1"),
        ("steps", 1, "0PtF0.3@0", "0F0.2-2@0"),
        ("boundary", 0, "0PbF1>1", "0F1"),
        # a block before the one whose state it goes on with
        ("window", 0, "0F0.0-1@1", "0F0.0-1@0"),
        # a chunk, or a block, before the one that went forward after it
        ("boundary", 1, "1B0", "1B1"),
        # the same backward
        ("halo", 0, "0B0.1-2", "0B0.3-4"),
        ("halo", 0, "0B0.1-2", "0WhB0.3"),
        ("columns", 1, "0B0.1-1", "0WrB0.2"),
        ("steps", 0, "0B0.2-2@0", "0WtB0.3@0"),
        ("boundary", 0, "0B1", "0WbB1<1"),
        ("carry", 0, "0B1.2-2@1", "0WcB1.2@1<1"),
        ("halo", 1, "0PhB0.3", "0B0.3-4"),
        ("steps", 1, "0PtB0.2@0", "0B0.2-2@0"),
        ("boundary", 1, "1PbB0>0", "1B0"),
    ],
)
def test_what_runs_too_early_is_named(facts_of: Maker, name: str, rank: int, one: str, two: str) -> None:
    schedule = sample(facts_of, name)
    # what is moved is moved just before what it needs: nothing else changes for other ranks
    with pytest.raises(
        LayoutError, match=f"{re.escape(one)} ran before {re.escape(two)}; the schedule is wrong"
    ) as raised:
        validate(moved(schedule, rank, one, two))
    assert f"[{one}]" in str(raised.value)


@pytest.mark.parametrize(("rank", "one", "two"), [(0, "0PcF1.2@0>1", "0F1.2-2@0"), (1, "0PcB0.2@1>0", "0B0.2-2@1")])
def test_a_state_is_handed_on_by_the_cell_that_makes_it(facts_of: Maker, rank: int, one: str, two: str) -> None:
    schedule = moved(sample(facts_of, "carry"), rank, one, two)
    with pytest.raises(LayoutError, match=f"{re.escape(one)} ran before the cell whose state it hands on"):
        validate(schedule)


def test_a_block_of_which_nothing_was_kept_is_computed_again(facts_of: Maker) -> None:
    schedule = sample(facts_of, "carry")
    lost = Action.parse("0A1.2-2@0~a")
    row = [action for action in schedule.ranks[0] if action != lost]
    with pytest.raises(LayoutError, match=r"0B1.2-2@0 ran before it was computed again"):
        validate(changed(schedule, 0, row))


def test_a_cell_needs_an_input(facts_of: Maker) -> None:
    """In evaluation no backward asks for the cell that is missing."""
    facts = forward_only(facts_of(*SAMPLES["columns"]))
    schedule = schedule_of(facts, pass_=Pass.EVALUATE)
    validate(schedule)
    row = [action for action in schedule.ranks[1] if str(action) != "0F0.1-1~e"]
    with pytest.raises(LayoutError, match=r"0F0.2-3~e ran without its input, since nothing computes half 1"):
        validate(changed(schedule, 1, row))


def test_interior_rows_may_be_late(facts_of: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """They neither leave nor are read by others; but the next cell of the same rank reads them."""
    monkeypatch.setattr(segments, "OVERLAP_ROWS", 1)
    schedule = sample(facts_of, "halo")
    validate(moved(schedule, 0, "0F0.0-0i", "0F0.1-2b"))
    with pytest.raises(LayoutError, match=r"0F0.1-2b ran before 0F0.0-0i"):
        validate(moved(schedule, 0, "0F0.0-0i", "0PhF0.3"))
    with pytest.raises(LayoutError, match=r"0PhF0.1 ran before 0F0.0-0b"):
        validate(moved(schedule, 0, "0F0.0-0b", "0F0.0-0i"))


@pytest.mark.parametrize("name", SAMPLES)
def test_no_cell_may_come_first_or_last(facts_of: Maker, name: str) -> None:
    """Each cell but those that read the data alone is refused at the front, each but the last at the end."""
    schedule = sample(facts_of, name)
    for rank, actions in enumerate(schedule):
        cells = [k for k, a in enumerate(actions) if a.verb in (Verb.FORWARD, Verb.BACKWARD)]
        start = min(actions[k].first or 0 for k in cells)
        for k in cells:
            action, rest = actions[k], [*actions[:k], *actions[k + 1 :]]
            reads_data = action.verb is Verb.FORWARD and (action.first or 0) == start
            if not reads_data or actions[k].stage > 0:
                with pytest.raises(LayoutError):
                    validate(changed(schedule, rank, [action, *rest]))
            if k != cells[-1]:
                with pytest.raises(LayoutError):
                    validate(changed(schedule, rank, [*rest[: cells[-1]], action, *rest[cells[-1] :]]))
