"""Which layouts are tried, which one leads, what does not fit and why."""

from __future__ import annotations

import pytest
from tests.plan.workloads import cluster, static, timeline

from trisect.errors import LayoutError
from trisect.layout import parse_layout
from trisect.plan.cluster import Link
from trisect.plan.estimate import estimate
from trisect.plan.search import cuts, layouts, search, too_large, worlds
from trisect.plan.tell import tell


def test_worlds_and_cuts():
    assert worlds(8) == [1, 2, 4, 8]
    assert worlds(6) == [1, 2, 3, 4, 6]
    assert sorted(cuts(4)) == [(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)]


def test_only_what_the_data_allow():
    every = list(layouts(static(), worlds(8), approximate=False))
    assert {layout.time for layout in every} == {1}
    assert {layout.blocks for layout in every} == {1}
    assert {layout.chunks for layout in every} == {1}
    assert max(layout.layer for layout in every) <= 4
    assert any(layout.chunks > 1 for layout in layouts(static(), worlds(8), approximate=True))
    assert {layout.time for layout in layouts(timeline(), worlds(4), approximate=False)} == {1, 2, 4}


def test_more_ranks_where_they_help_and_one_where_they_do_not():
    workload = static(layers=3, hidden=64, vertices=100_000, edges=1_000_000)
    fast = search(workload, cluster(), 4)
    assert fast.layout.world == 4
    assert fast.best[0].exact
    totals = [each.seconds.total for each in fast.best]
    assert totals == sorted(totals)
    slow = Link(bandwidth=1e5, latency=1e-2, message=1e-2)
    alone = search(workload, cluster(inside=slow, between=slow), 4)
    assert alone.layout.world == 1
    assert "more ranks would be slower" in alone.reason
    assert search(workload, cluster(), 4, all_devices=True, count=20).best[-1].layout.world == 4


def test_what_does_not_fit_is_said():
    workload = static("gcnii", layers=16, hidden=64, vertices=100_000, edges=400_000)
    small = cluster(device={"memory": 700 << 20})
    choice = search(workload, small, 4)
    assert choice.best
    assert all(each.fits for each in choice.best)
    assert any("activations" in too_large(each) for each in choice.refused)
    tiny = search(workload, cluster(device={"memory": 340 << 20}), 2)
    with pytest.raises(LayoutError, match=r"No layout of 2 devices fits .* needs .* MiB: "):
        _ = tiny.layout


def test_approximate_layouts_only_where_allowed():
    workload = static("gcn", layers=16, hidden=32, vertices=50_000, edges=2_000_000)
    assert all(each.exact for each in search(workload, cluster(), 8).best)
    assert not all(each.exact for each in search(workload, cluster(), 8, approximate=True).best)


def test_the_plan_in_words_and_as_data():
    choice = search(static(), cluster(source="preset"), 2)
    text = "\n".join(tell(choice))
    assert "a preset, not measured" in text
    assert "exposed communication" in text
    assert "This rests on:" in text
    assert choice.reason in text
    plain = choice.plain()
    assert plain["best"][0]["layout"] == str(choice.layout)
    assert plain["best"][0]["memory"]["total"] == plain["best"][0]["memory_bytes"]


def test_a_thousand_ranks_are_estimated_from_a_few():
    workload = static(vertices=100_000, edges=1_000_000)
    many = estimate(workload, parse_layout("vertex=1024"), cluster(devices=8))
    assert many.seconds is not None
    assert many.seconds.total > 0
    expected = sum(estimate(workload, parse_layout("vertex=64"), cluster(devices=8)).bytes_by_axis.values())
    assert many.total_bytes > expected


def test_of_many_devices_few_layouts_are_looked_at():
    workload = timeline(steps=256, vertices=1_000_000, edges=50_000_000, hidden=16)
    choice = search(workload, cluster(devices=8), 256)
    assert choice.layout.world > 64
    every = sum(1 for _ in layouts(workload, worlds(256), approximate=False))
    assert 10 * choice.tried < every


def test_what_is_found_is_the_best_of_all():
    workload = timeline(steps=8, vertices=20_000, edges=400_000)
    choice = search(workload, cluster(), 2)
    seconds = [
        made.seconds.total
        for layout in layouts(workload, worlds(2), approximate=False)
        if (made := estimate(workload, layout, cluster())).fits and made.seconds is not None
    ]
    assert min(each.seconds.total for each in choice.best) == pytest.approx(min(seconds), rel=0.02)


def test_rows_are_dealt_out_equally_where_the_last_layer_reads_none():
    """A model that ends with a local layer is cut for columns all the same."""
    workload = static("gcnii", vertices=1003, halo={4: 30.0})
    plan = workload.plan(parse_layout("vertex=4"))
    assert plan.layers[-1].across == "none"
    assert plan.across == plan.layout.spatial == "redistribute"
    assert sorted(plan.rows) == [250, 251, 251, 251]
    near = static("gcnii", vertices=1003, halo={4: 0.01}).plan(parse_layout("vertex=4"))
    assert (near.across, near.layout.spatial) == ("halo", "auto")
