"""The stream's parts: balanced, the same for a seed, near METIS's, in memory that is linear in the vertices."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from trisect.data.load import load
from trisect.data.records import StaticRecord
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import adjacency_from_edges
from trisect.graph.graph import Graph
from trisect.native.library import available
from trisect.partition import cut_graph, method, metis, quality, stream, stream_plain
from trisect.partition.neighbours import Neighbours

native = pytest.mark.skipif(not available(), reason="the native kernels are not built")


def groups(vertices: int, count: int, degree: int = 6, seed: int = 0, both: bool = True) -> Adjacency:
    """Groups of vertices with nine of ten edges inside, numbered at random."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(vertices, (vertices * degree,), generator=generator)
    near = src // (vertices // count) * (vertices // count) + torch.randint(
        vertices // count, src.shape, generator=generator
    )
    far = torch.randint(vertices, src.shape, generator=generator)
    dst = torch.where(torch.rand(src.shape, generator=generator) < 0.9, near.clamp_max(vertices - 1), far)
    shuffled = torch.randperm(vertices, generator=generator)
    src, dst = shuffled[src], shuffled[dst]
    if both:
        src, dst = torch.cat([src, dst]), torch.cat([dst, src])
    return adjacency_from_edges(src, dst, vertices=vertices)


def heaviest_share(matrix: Adjacency, part: Tensor, parts: int) -> float:
    weights = Neighbours.of(matrix).weights.double()
    load = torch.bincount(part, weights, parts)
    return float(load.max() / load.mean())


@native
@pytest.mark.parametrize("parts", [2, 5, 16])
@pytest.mark.parametrize("both", [True, False])
def test_parts_are_balanced_the_same_for_a_seed_and_near_those_of_metis(parts: int, both: bool) -> None:
    matrix = groups(20_000, 100, both=both)
    part = stream.cut(matrix, parts, seed=3)
    assert part.dtype == torch.int64
    assert part.unique().tolist() == list(range(parts))
    assert torch.equal(part, stream.cut(matrix, parts, seed=3))
    assert not torch.equal(part, stream.cut(matrix, parts, seed=4))
    assert heaviest_share(matrix, part, parts) <= stream.tolerance_of(parts) + 0.001
    ours, theirs = (quality(matrix, each, parts).cut for each in (part, metis.cut(matrix, parts)))
    assert ours <= 1.1 * theirs
    # the comparison can fail: intervals of the order, which says nothing here, cut much more
    assert quality(matrix, metis.cut_by_order(matrix, parts), parts).cut > 1.5 * theirs


@native
def test_a_real_graph_is_cut_as_well_as_metis_does(shared_data: Path) -> None:
    record = load({"name": "ego-twitter"}, data_dir=shared_data)
    assert isinstance(record, StaticRecord)
    matrix = Graph.from_record(record).adjacency
    for parts in (2, 8, 64):
        part = stream.cut(matrix, parts)
        assert heaviest_share(matrix, part, parts) <= stream.tolerance_of(parts) + 0.001
        ours, theirs = (quality(matrix, each, parts) for each in (part, metis.cut(matrix, parts)))
        assert ours.cut <= 1.1 * theirs.cut
        assert ours.volume <= 1.1 * theirs.volume


@native
@pytest.mark.parametrize("shape", ["star", "path", "isolated", "two"])
def test_odd_graphs_have_no_empty_part(shape: str) -> None:
    count = 9_000
    vertex = torch.arange(count)
    src, dst = {
        "star": (torch.zeros(count - 1, dtype=torch.int64), vertex[1:]),
        "path": (vertex[:-1], vertex[1:]),
        "isolated": (vertex[:2], vertex[1:3]),
        "two": (vertex[:1], vertex[1:2]),
    }[shape]
    matrix = adjacency_from_edges(src, dst, vertices=2 if shape == "two" else count)
    for parts in (2, 3) if shape != "two" else (2,):
        assert torch.bincount(stream.cut(matrix, parts), minlength=parts).min() > 0
    if shape != "two":
        assert cut_graph(matrix, 2, 3, method="stream").order.sort().values.equal(vertex)


@native
def test_without_metis_the_smallest_graph_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metis, "find_spec", lambda name: None)
    matrix = groups(20_000, 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        part = stream.cut(matrix, 4)
    assert heaviest_share(matrix, part, 4) <= 1.002
    assert quality(matrix, part, 4).cut < 0.6 * quality(matrix, metis.cut_by_order(matrix, 4), 4).cut


@native
@pytest.mark.parametrize("both", [True, False])
def test_passes_of_the_kernels_are_those_of_plain_python(both: bool) -> None:
    graph = Neighbours.of(groups(400, 8, both=both))
    limit = stream.heaviest(graph.weights, 4, 1.03)
    ours, plain = (torch.full((graph.count,), -1, dtype=torch.int32) for _ in range(2))
    for _ in range(2):
        graph.stream(ours, 4, limit)
        stream_plain.stream(graph, plain, 4, limit)
        assert torch.equal(ours, plain)
    before = ours.clone()
    graph.sweep(ours, 4, limit, 3)
    stream_plain.sweep(graph, plain, 4, limit, 3)
    assert torch.equal(ours, plain)
    assert not torch.equal(ours, before)


def test_without_kernels_a_small_graph_is_streamed_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "available", lambda: False)
    matrix = groups(600, 6)
    part = stream.cut(matrix, 3)
    assert heaviest_share(matrix, part, 3) <= 1.02
    assert quality(matrix, part, 3).cut < quality(matrix, metis.cut_by_order(matrix, 3), 3).cut
    monkeypatch.setattr(stream, "_MOST_PLAIN", 500)
    with pytest.warns(UserWarning, match="native kernels are not built"):
        assert torch.equal(stream.cut(matrix, 3), metis.cut_by_order(matrix, 3))


@native
def test_a_contracted_graph_keeps_weights_and_edges_between_clusters() -> None:
    graph = Neighbours.of(groups(3_000, 20, both=False))
    label = graph.clusters(int(20 * graph.weights.double().mean()), 3, seed=1)
    smaller = graph.contracted(label, graph.entries)
    assert smaller is not None
    assert smaller.count == int(label.max()) + 1 < graph.count / 2
    assert torch.equal(smaller.weights, torch.zeros_like(smaller.weights).index_add_(0, label.long(), graph.weights))
    dense = torch.zeros(smaller.count, smaller.count)
    for side in graph.sides:
        row, column = side.coordinates()
        dense.index_put_((label[row].long(), label[column].long()), torch.ones(row.numel()), accumulate=True)
    dense.fill_diagonal_(0.0)
    [side] = smaller.sides
    row = torch.repeat_interleave(torch.arange(smaller.count), side.ends - side.starts)
    again = torch.zeros_like(dense)
    again[row, side.indices.long()] = side.values_as(torch.float32)
    assert torch.equal(again, dense)
    assert graph.contracted(label, side.entries - 1) is None


@native
def test_graphs_of_clusters_are_linear_in_the_vertices(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many edges a vertex has, what is made beside the graph does not grow with them."""
    made: list[int] = []
    contracted = Neighbours.contracted

    def counted(graph: Neighbours, label: Tensor, most: int) -> Neighbours | None:
        smaller = contracted(graph, label, most)
        made.append(0 if smaller is None else smaller.entries)
        return smaller

    monkeypatch.setattr(Neighbours, "contracted", counted)
    monkeypatch.setattr(stream, "_FEW", 200)
    monkeypatch.setattr(metis, "cut_small", lambda *values: None)
    for degree in (4, 64):
        made.clear()
        matrix = groups(8_000, 8, degree=degree)
        assert torch.bincount(stream.cut(matrix, 4), minlength=4).min() > 0
        assert made
        assert max(made) <= 8 * matrix.rows
    assert matrix.entries > 8 * matrix.rows


def test_beyond_the_memory_that_is_free_metis_is_replaced_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = groups(2_000, 10)
    monkeypatch.setattr(method, "_SMALL", 1_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        usual = cut_graph(matrix, 2)
        streamed = cut_graph(matrix, 2, method="stream")
    monkeypatch.setenv("TRISECT_MEMORY", "1MiB")
    with pytest.warns(UserWarning, match=r"METIS would take about \d+ MiB .* cut by a stream"):
        replaced = cut_graph(matrix, 2)
    assert torch.equal(replaced.order, streamed.order)
    assert not torch.equal(replaced.order, usual.order)
    assert method.metis_bytes(10**9, 10**11) > 30 * stream.stream_bytes(10**9)
