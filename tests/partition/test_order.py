from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.errors import ConfigError, DataError
from trisect.graph import Adjacency, Graph, Timeline, adjacency_from_edges
from trisect.graph.graph import permuted
from trisect.partition import order as module
from trisect.partition.order import choose_order, locality, vertex_order

NAMES = ("community", "rcm", "degree", "random")


def communities(groups: int, size: int, degree: int, seed: int = 0) -> Adjacency:
    """Groups that read only themselves, vertices shuffled."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), size * degree)
    src, dst = (group * size + random.integers(0, size, group.size) for _ in range(2))
    shuffle = random.permutation(groups * size)
    return adjacency_from_edges(shuffle[src], shuffle[dst], vertices=groups * size)


def shuffled(matrix: Adjacency) -> Adjacency:
    return permuted(matrix, vertex_order(matrix, "random", seed=5))


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 30), st.integers(0, 60), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_orders_are_permutations_and_repeat(name: str, vertices: int, edges: int, seed: int) -> None:
    src, dst = np.random.default_rng(seed).integers(0, vertices, (2, edges))
    matrix = adjacency_from_edges(src, dst, vertices=vertices)
    order = vertex_order(matrix, name)  # type: ignore[arg-type]
    assert order.sort().values.tolist() == list(range(vertices))
    assert torch.equal(order, vertex_order(matrix, name))  # type: ignore[arg-type]


def test_degree_puts_the_hub_first() -> None:
    matrix = adjacency_from_edges([0, 1, 2, 3], [4, 4, 4, 0], vertices=6)
    assert vertex_order(matrix, "degree").tolist() == [4, 0, 1, 2, 3, 5]


def test_rcm_lines_up_a_shuffled_path() -> None:
    walk = np.random.default_rng(0).permutation(50)
    matrix = adjacency_from_edges(walk[:-1], walk[1:])
    order = vertex_order(matrix, "rcm")
    source, target = permuted(matrix, order).edge_index()
    assert int((source - target).abs().max()) == 1
    source, target = matrix.edge_index()
    assert int((source - target).abs().max()) > 1


def test_community_keeps_groups_together() -> None:
    matrix = communities(groups=20, size=30, degree=8)
    source, target = permuted(matrix, vertex_order(matrix, "community")).edge_index()
    assert int((source - target).abs().max()) < 30


def test_communities_are_bounded() -> None:
    matrix = communities(groups=1, size=200, degree=10)
    order = vertex_order(matrix, "community", largest=20)
    assert order.sort().values.tolist() == list(range(200))


def test_locality_counts_reads_that_come_again() -> None:
    # reading order of columns: 0 1 | 0 2 | 0
    matrix = adjacency_from_edges([0, 1, 0, 2, 0], [0, 0, 1, 1, 2])
    assert locality(matrix, window=2) == pytest.approx(2 / 5)
    assert locality(matrix, window=1) == 0.0
    assert locality(adjacency_from_edges([], [], vertices=3)) == 1.0


@given(st.integers(1, 20), st.integers(1, 80), st.integers(0, 1000), st.integers(1, 30))
@settings(max_examples=50, deadline=None)
def test_native_locality_equals_torch(vertices: int, edges: int, seed: int, window: int) -> None:
    src, dst = np.random.default_rng(seed).integers(0, vertices, (2, edges))
    matrix = adjacency_from_edges(src, dst, vertices=vertices)
    assert locality(matrix, window) == pytest.approx(module._locality_torch(matrix, window))


def test_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    scattered = communities(groups=50, size=40, degree=8)
    monkeypatch.setattr(module, "CACHE_BYTES", 256 * 400)
    order = choose_order(scattered)
    assert order is not None
    local = permuted(scattered, order)
    assert locality(local, 400) > locality(scattered, 400)
    # already local: nothing to gain
    assert choose_order(local) is None
    # no structure: nothing to gain either
    src, dst = np.random.default_rng(0).integers(0, 2000, (2, 20_000))
    assert choose_order(adjacency_from_edges(src, dst)) is None
    # the features fit
    monkeypatch.setattr(module, "CACHE_BYTES", 1 << 30)
    assert choose_order(scattered) is None


def test_choice_for_graphs_and_timelines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_BYTES", 256 * 400)
    source, target = communities(groups=50, size=40, degree=8).edge_index()
    graph = Graph.from_edges(source, target, vertices=2000)
    order = choose_order(graph)
    assert order is not None
    moved = graph.reordered(order)
    assert torch.equal(moved.to_user_order(moved.features()), graph.features())
    half = source.numel() // 2
    timeline = Timeline.from_arrays(source, target, [0, half, source.numel()], vertices=2000)
    assert choose_order(timeline) is not None
    assert choose_order(Timeline.from_arrays([], [], [0, 0], vertices=2000)) is None


def test_bad_requests_are_refused() -> None:
    matrix = adjacency_from_edges([0], [1])
    with pytest.raises(ConfigError, match="vertex order is 'metis'; choose one of community, rcm, degree, random"):
        vertex_order(matrix, "metis")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="square"):
        vertex_order(matrix.rows_between(0, 1), "rcm")


def test_real_graph(shared_data: Path) -> None:
    file = np.load(shared_data / "cora.npz")
    matrix = adjacency_from_edges(*file["edge_index"], vertices=2708)
    mixed = shuffled(matrix)
    better = permuted(mixed, vertex_order(mixed, "community"))
    assert locality(better, 200) > locality(mixed, 200) + 0.1
