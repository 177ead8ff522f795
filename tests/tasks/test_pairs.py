from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.noise import mix64
from trisect.tasks.pairs import (
    Candidates,
    Memory,
    Pairs,
    every_pair,
    sample,
    sample_destinations,
    sample_distinct,
    sample_torch,
)


def some_pairs(vertices: int, count: int, seed: int = 0) -> Pairs:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, vertices, (2, count), generator=generator)
    return Pairs.of(ends[0], ends[1], vertices)


def everyone(vertices: int) -> Candidates:
    return Candidates(vertices, torch.arange(vertices))


def codes(pair: tuple[torch.Tensor, torch.Tensor], vertices: int) -> list[int]:
    return (pair[0] * vertices + pair[1]).tolist()


def test_pairs_are_distinct_and_known() -> None:
    pairs = Pairs.of(torch.tensor([3, 0, 3]), torch.tensor([1, 2, 1]), 5)
    assert list(zip(pairs.src.tolist(), pairs.dst.tolist(), strict=True)) == [(0, 2), (3, 1)]
    assert pairs.contains(torch.tensor([2, 16, 3])).tolist() == [True, True, False]
    assert not Pairs.of(torch.empty(0), torch.empty(0), 5).contains(torch.tensor([1])).any()


@settings(deadline=None, max_examples=30)
@given(st.integers(3, 30), st.integers(0, 60), st.integers(1, 200), st.integers(0, 99))
def test_distinct_samples_are_new_and_proper(vertices: int, existing: int, count: int, key: int) -> None:
    pairs = some_pairs(vertices, existing)
    drawn = codes(sample_distinct(key, count, everyone(vertices), pairs), vertices)
    free = vertices * (vertices - 1) - int((pairs.src != pairs.dst).sum())
    assert len(drawn) == len(set(drawn)) == min(count, free)
    assert not set(drawn) & set(pairs.codes.tolist())
    assert all(code // vertices != code % vertices for code in drawn)


def test_training_samples_avoid_what_exists_and_follow_the_key() -> None:
    pairs = some_pairs(50, 300)
    drawn = codes(sample(7, 4000, everyone(50), pairs), 50)
    assert not set(drawn) & set(pairs.codes.tolist())
    assert all(code // 50 != code % 50 for code in drawn)
    assert drawn == codes(sample(7, 4000, everyone(50), pairs), 50)
    assert drawn != codes(sample(8, 4000, everyone(50), pairs), 50)


@settings(deadline=None, max_examples=60)
@given(
    vertices=st.integers(1, 40),
    existing=st.integers(0, 900),
    count=st.integers(0, 300),
    key=st.integers(0, (1 << 64) - 1),
    most=st.integers(1, 40),
)
def test_the_kernel_draws_what_torch_does(vertices: int, existing: int, count: int, key: int, most: int) -> None:
    """Also where nearly every pair exists, so that each try is needed, and from some of the vertices alone."""
    pairs = some_pairs(vertices, existing)
    rows = torch.randperm(vertices, generator=torch.Generator().manual_seed(existing))[:most]
    among = Candidates(vertices, rows)
    keys = [key, *(mix64(key ^ attempt) for attempt in (1, 2, 3))]
    for mine, theirs in zip(sample(key, count, among, pairs), sample_torch(keys, count, among, pairs), strict=True):
        assert torch.equal(mine, theirs)


def test_tries_matter_where_most_pairs_exist() -> None:
    """The negative control of the test above: with fewer streams other pairs are drawn."""
    pairs, among = some_pairs(12, 200), everyone(12)
    keys = [7, *(mix64(7 ^ attempt) for attempt in (1, 2, 3))]
    drawn = [codes(sample_torch(keys[:tries], 500, among, pairs), 12) for tries in (1, 2, 3, 4)]
    assert all(one != other for one, other in pairwise(drawn))
    assert drawn[-1] == codes(sample(7, 500, among, pairs), 12)


def test_training_samples_are_even() -> None:
    src, dst = sample(3, 40_000, everyone(20), some_pairs(20, 0))
    for ends in (src, dst):
        share = torch.bincount(ends, minlength=20) / 40_000
        assert share.sub(1 / 20).abs().max() < 0.005


@pytest.mark.parametrize("count", [60, 3000])
def test_samples_do_not_depend_on_the_order_of_vertices(count: int) -> None:
    vertices = 60
    order = torch.randperm(vertices, generator=torch.Generator().manual_seed(2))
    row_of = torch.argsort(order)
    pairs = some_pairs(vertices, 200)
    moved = Pairs.of(row_of[pairs.src], row_of[pairs.dst], vertices)
    for draw in (sample, sample_distinct):
        plain = draw(5, count, everyone(vertices), pairs)
        other = draw(5, count, Candidates(vertices, row_of), moved)
        assert torch.equal(plain[0], order[other[0]])
        assert torch.equal(plain[1], order[other[1]])


def test_candidates_bound_what_is_drawn() -> None:
    few = Candidates(30, torch.tensor([2, 9, 11, 20]))
    src, dst = sample(1, 100, few, some_pairs(30, 0))
    assert set(torch.cat([src, dst]).tolist()) == {2, 9, 11, 20}


def test_every_pair_comes_once() -> None:
    pairs = some_pairs(9, 20)
    parts = list(every_pair(everyone(9), pairs, budget=30))
    assert len(parts) > 1
    found = torch.cat([src * 9 + dst for src, dst, _ in parts])
    held = torch.cat([held for *_, held in parts])
    assert sorted(found.tolist()) == [s * 9 + d for s in range(9) for d in range(9) if s != d]
    assert set(found[held].tolist()) == {code for code in pairs.codes.tolist() if code // 9 != code % 9}


def test_destinations_change_and_sources_stay() -> None:
    pairs = some_pairs(40, 100)
    src, dst = sample_destinations(3, 5, everyone(40), pairs, None)
    assert torch.equal(src, pairs.src.repeat_interleave(5))
    assert not pairs.contains(src * 40 + dst).any()
    assert not (src == dst).any()
    again = sample_destinations(3, 5, everyone(40), pairs, None)
    assert torch.equal(dst, again[1])
    assert not torch.equal(dst, sample_destinations(4, 5, everyone(40), pairs, None)[1])
    many = sample_destinations(3, 400, everyone(40), some_pairs(40, 100), None)[1]
    assert (torch.bincount(many, minlength=40) / many.numel()).sub(1 / 40).abs().max() < 0.005


def test_destinations_do_not_depend_on_the_order_of_vertices() -> None:
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2))
    row_of = torch.argsort(order)
    pairs = some_pairs(40, 100)
    moved = Pairs.of(row_of[pairs.src], row_of[pairs.dst], 40)
    plain = sample_destinations(3, 5, everyone(40), pairs, None)
    other = sample_destinations(3, 5, Candidates(40, row_of), moved, order)
    wrong = sample_destinations(3, 5, Candidates(40, row_of), moved, None)
    same = sorted(codes(plain, 40))
    assert same == sorted(codes((order[other[0]], order[other[1]]), 40))
    assert same != sorted(codes((order[wrong[0]], order[wrong[1]]), 40))


def test_memory_counts_and_ages() -> None:
    steps = [torch.tensor([7, 3, 7]), torch.tensor([], dtype=torch.int64), torch.tensor([3, 9])]
    memory = Memory.gather(steps, 4)
    assert memory.pairs.codes.tolist() == [3, 7, 9]
    found = memory.of(torch.tensor([9, 8, 3, 7, 99]))
    often = torch.tensor([1.0, 0.0, 2.0, 2.0, 0.0])
    age = torch.tensor([1 / 3, 0.0, 1.0, 1.0, 0.0])
    assert torch.allclose(found, torch.stack([often.log1p(), age], 1))
    nothing = Memory.gather([torch.tensor([], dtype=torch.int64)], 4)
    assert not nothing.of(torch.tensor([1, 2])).any()
