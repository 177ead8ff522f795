from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.errors import LayoutError
from trisect.graph.timeline.timeline import Timeline
from trisect.partition import timeline as module
from trisect.partition.timeline import balanced, cut_timeline, deal, halo_rows, step_work, union_graph


def make(vertices: int = 40, steps: int = 7, events: int = 60, seed: int = 0, **more: object) -> Timeline:
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, events, (steps,), generator=generator)
    total = int(counts.sum())
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    # two groups with few events between them
    src = torch.randint(0, vertices, (total,), generator=generator)
    near = torch.randint(0, vertices // 2, (total,), generator=generator) + (src >= vertices // 2) * (vertices // 2)
    far = torch.randint(0, vertices, (total,), generator=generator)
    dst = torch.where(torch.rand(total, generator=generator) < 0.9, near, far)
    return Timeline.from_arrays(src, dst, offsets, vertices=vertices, **more)  # type: ignore[arg-type]


def heaviest(work: list[int], runs: list[range]) -> int:
    return max(sum(work[run.start : run.stop]) for run in runs)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=9), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_runs_are_as_even_as_they_can_be(work: list[int], parts: int) -> None:
    runs = balanced(work, parts)
    assert len(runs) == parts
    assert [step for run in runs for step in run] == list(range(len(work)))
    if len(work) < parts:
        return
    assert all(runs)
    best = min(
        heaviest(work, [range(a, b) for a, b in zip((0, *cuts), (*cuts, len(work)), strict=True)])
        for cuts in combinations(range(1, len(work)), parts - 1)
    )
    assert heaviest(work, runs) == best


def test_even_counts_are_not_even_work() -> None:
    # the negative control of the test above: the comparator tells runs of equal length from balanced ones
    work = [9, 1, 1, 1]
    assert heaviest(work, [range(2), range(2, 4)]) > heaviest(work, balanced(work, 2))


def test_each_block_is_dealt_to_all_moments() -> None:
    runs = deal([1] * 11, 3, 2, first=5)
    assert len(runs) == 3
    assert all(len(block) == 2 for block in runs)
    assert [step for block in runs for run in block for step in run] == list(range(5, 16))
    few = deal([1, 1, 1], 2, 2)
    assert [step for block in few for run in block for step in run] == [0, 1, 2]
    assert few[-1][-1].stop == 3


def test_work_counts_the_window() -> None:
    timeline = make(smoothing={"kind": "edge-life", "length": 3}, undirected=True)
    work = step_work(timeline)
    counts = timeline.offsets.diff()
    assert work[0] == 2 * int(counts[0]) + 40
    assert work[5] == 2 * int(counts[3:6].sum()) + 40
    assert step_work(timeline, 2.5)[5] == 2 * int(counts[3:6].sum()) + 100


@pytest.mark.parametrize("undirected", [False, True])
def test_halo_rows_are_the_columns_of_other_parts(undirected: bool) -> None:
    timeline = make(smoothing={"kind": "edge-life", "length": 2}, undirected=undirected)
    owner = torch.arange(40) % 3
    found = halo_rows(timeline, owner, 3)
    for step in range(timeline.steps):
        dense = timeline.snapshot(step).dense() != 0
        for part in range(3):
            read = dense[owner == part].any(0) & (owner != part)
            assert int(found[step, part]) == int(read.sum())
    assert not found.equal(halo_rows(timeline, owner.flip(0).sort().values, 3))


@pytest.mark.parametrize("method", ["metis", "hypergraph", "stream"])
def test_parts_follow_the_groups(method: module.Method) -> None:
    if method == "hypergraph":
        pytest.importorskip("mtkahypar")
    timeline = make(vertices=200, steps=6, events=900, smoothing={"kind": "edge-life", "length": 2})
    first, second = (cut_timeline(timeline, 2, method=method) for _ in range(2))
    assert first.order.equal(second.order)
    sizes = torch.tensor(first.starts).diff()
    assert sizes.min() > 60
    owner = torch.empty(200, dtype=torch.int64)
    owner[first.order] = torch.repeat_interleave(torch.arange(2), sizes)
    worse = torch.arange(200) % 2
    assert halo_rows(timeline, owner, 2).sum() < halo_rows(timeline, worse, 2).sum() / 2


def test_union_counts_pairs_both_ways() -> None:
    timeline = Timeline.from_arrays([0, 0, 1], [1, 1, 2], [0, 1, 3], vertices=3)
    assert union_graph(timeline).dense().tolist() == [[0, 2, 0], [2, 0, 1], [0, 1, 0]]


def test_without_metis_intervals_have_equal_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr(module.metis, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=r"pymetis is not installed, so vertices are cut by their order"):
        found = cut_timeline(make(), 3)
    assert found.order.tolist() == list(range(40))
    with pytest.raises(LayoutError, match=r"install trisect\[hypergraph\]"):
        cut_timeline(make(), 3, method="hypergraph")


def test_more_parts_than_vertices_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"layout\.vertex is 50, more than the timeline's 40 vertices"):
        cut_timeline(make(), 50)
