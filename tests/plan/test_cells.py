"""Where the halves of a stage are cut, and when interior rows hide the halo."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trisect.exchanges.facts import Facts
from trisect.layout import Layout
from trisect.plan import segments
from trisect.plan.segments import Segment, overlaps, segments_of

Maker = Callable[..., Facts]
TWO = ((range(2), range(2, 4)),)
ONE = ((range(4),),)


def cut(facts: Facts, stage: int = 0) -> list[str]:
    """Each segment as the letter that its input comes through and its halves."""
    return [
        f"{segment.arrives}:" + " | ".join(str(facts.halves[k]) for k in range(segment.first, segment.last + 1))
        for segment in segments_of(facts, stage)
    ]


def test_one_process_is_one_segment(facts_of: Maker) -> None:
    assert segments_of(facts_of("gcn", Layout()), 0) == (Segment(0, 4),)
    assert cut(facts_of("cd-gcn", Layout(), ONE, layers=1)) == [
        ":prepare 0 | combine 0 | temporal 0 | local 1 | output 2"
    ]


def test_a_halo_comes_before_each_combine(facts_of: Maker) -> None:
    facts = facts_of("gcn", Layout(vertex=2, spatial="halo"))
    assert cut(facts) == [":prepare 0", "h:combine 0 | prepare 1", "h:combine 1 | output 3"]
    # a layer that finds its sum ready, and one that reads no neighbours, wait for nobody
    facts = facts_of("gcn", Layout(vertex=2, spatial="halo"), aggregated=True)
    assert cut(facts) == [":combine 0 | prepare 1", "h:combine 1 | output 3"]
    facts = facts_of("gcnii", Layout(vertex=2, spatial="halo"), layers=1)
    assert cut(facts) == [":local 0 | local 1 | prepare 2", "h:combine 2 | local 3 | output 5"]


def test_columns_cross_twice(facts_of: Maker) -> None:
    facts = facts_of("gcn", Layout(vertex=2, spatial="redistribute"))
    assert cut(facts) == [
        ":prepare 0",
        "r:aggregate 0",
        "r:combine 0 | prepare 1",
        "r:aggregate 1",
        "r:combine 1 | output 3",
    ]


def test_each_stage_has_its_own_halves(facts_of: Maker) -> None:
    facts = facts_of("gcn", Layout(vertex=2, layer=2, spatial="halo"))
    assert cut(facts, 0) == [":prepare 0", "h:combine 0"]
    assert cut(facts, 1) == [":prepare 1", "h:combine 1 | output 3"]


def test_a_loss_on_pairs_fetches_rows(facts_of: Maker) -> None:
    facts = facts_of("gcn", Layout(vertex=2, spatial="halo"), layers=1, fetches=True)
    assert cut(facts) == [":prepare 0", "h:combine 0", "f:output 2"]


@pytest.mark.parametrize(
    ("model", "temporal", "wanted"),
    [
        ("cd-gcn", "carry", [":prepare 0 | combine 0", ":temporal 0", ":local 1 | output 2"]),
        ("cd-gcn", "redistribute", [":prepare 0 | combine 0", "t:temporal 0", "t:local 1 | output 2"]),
        ("tm-gcn", "halo", [":prepare 0 | combine 0", ":temporal 0", ":local 1 | output 2"]),
        ("evolvegcn-o", "auto", [":temporal 0 | prepare 0 | combine 0 | local 1 | output 2"]),
        ("evolvegcn-h", "auto", [":summary 0", ":temporal 0", ":prepare 0 | combine 0 | local 1 | output 2"]),
    ],
)
def test_a_state_that_crosses_is_done_apart(facts_of: Maker, model: str, temporal: str, wanted: list[str]) -> None:
    facts = facts_of(model, Layout(time=2, temporal=temporal), TWO, layers=1)
    assert cut(facts) == wanted
    apart = [segment.temporal for segment in segments_of(facts, 0)]
    assert apart == [0 if words.endswith(":temporal 0") else None for words in wanted]


def test_only_vertex_states_cross_in_chunks(facts_of: Maker) -> None:
    def chunks(model: str, temporal: str) -> int:
        facts = facts_of(model, Layout(time=2, chunks=3, temporal=temporal), TWO, layers=1)
        return max(segment.chunks for segment in segments_of(facts, 0))

    assert (chunks("cd-gcn", "carry"), chunks("tm-gcn", "carry")) == (3, 3)
    assert (chunks("cd-gcn", "redistribute"), chunks("tm-gcn", "halo"), chunks("evolvegcn-h", "auto")) == (1, 1, 1)


def test_a_stage_that_ends_with_steps_apart_reads_them_back(facts_of: Maker) -> None:
    facts = facts_of("cd-gcn", Layout(time=2, layer=2, temporal="redistribute"), TWO)
    assert cut(facts, 0) == [":prepare 0 | combine 0", "t:temporal 0", "t:"]
    assert cut(facts, 1) == [":prepare 1 | combine 1", "t:temporal 1", "t:local 2 | output 3"]


def test_a_summary_is_merged_over_parts(facts_of: Maker) -> None:
    facts = facts_of("evolvegcn-h", Layout(vertex=2, spatial="halo"), ONE, layers=1)
    assert cut(facts) == [":summary 0", "m:temporal 0 | prepare 0", "h:combine 0 | local 1 | output 2"]


@pytest.mark.parametrize(("layers", "groups"), [(1, 1), (2, 2), (4, 2), (9, 3), (16, 4)])
def test_recomputed_groups_have_about_the_root_of_the_layers(facts_of: Maker, layers: int, groups: int) -> None:
    found = segments_of(facts_of("gcn", Layout(recompute=True), layers=layers), 0)
    assert [segment.group for segment in found] == list(range(groups))
    assert [segment.first for segment in found] == [2 * (layers * 1 // groups) * g for g in range(groups)]
    assert len(segments_of(facts_of("gcn", Layout(), layers=layers), 0)) == 1


def test_interior_rows_hide_a_halo_and_nothing_else(facts_of: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    halo = Layout(vertex=2, spatial="halo")
    assert not overlaps(facts_of("gcn", halo, rows=segments.OVERLAP_ROWS - 1), 0)
    assert overlaps(facts_of("gcn", halo, rows=segments.OVERLAP_ROWS), 0)
    assert not overlaps(facts_of("gcn", Layout(vertex=2, chunks=2, spatial="halo"), rows=segments.OVERLAP_ROWS), 0)
    monkeypatch.setattr(segments, "OVERLAP_ROWS", 1)
    assert overlaps(facts_of("gcn", halo), 0)
    assert overlaps(facts_of("cd-gcn", halo, ONE), 0)
    assert not overlaps(facts_of("gcn", Layout()), 0)
    assert not overlaps(facts_of("gcn", Layout(vertex=2, spatial="redistribute")), 0)
    assert not overlaps(facts_of("evolvegcn-o", halo, ONE), 0)
    assert not overlaps(facts_of("cd-gcn", Layout(vertex=2, time=2, spatial="halo", temporal="carry"), TWO), 0)
    assert not overlaps(facts_of("gcn", halo, fetches=True), 0)
