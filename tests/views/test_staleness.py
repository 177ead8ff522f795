"""Shares of historical reads and drift of rows, against what is counted by hand."""

from __future__ import annotations

import pytest
import torch

from trisect.graph.adjacency import Adjacency
from trisect.partition import cut_graph, part_graph_of
from trisect.partition.halo import PartGraph, merge_chunks
from trisect.partition.partition import Partition
from trisect.views.staleness import DriftMeter, historical_reads


def random_graph(n: int = 60, seed: int = 0) -> Adjacency:
    dense = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < 0.1
    dense.fill_diagonal_(True)
    row, column = torch.nonzero(dense, as_tuple=True)
    pointers = torch.zeros(n + 1, dtype=torch.int64)
    pointers[1:] = torch.cumsum(torch.bincount(row, minlength=n), 0)
    return Adjacency.from_csr(pointers, column, None, n)


def part_graphs(parts: int, chunks: int) -> tuple[Adjacency, Partition, list[PartGraph]]:
    graph = random_graph()
    partition = cut_graph(graph, parts, chunks)
    place = partition.position_of()
    row, column = graph.coordinates()
    key = torch.sort(place[row] * graph.rows + place[column]).values
    row, column = key // graph.rows, key % graph.rows
    pointers = torch.zeros(graph.rows + 1, dtype=torch.int64)
    pointers[1:] = torch.cumsum(torch.bincount(row, minlength=graph.rows), 0)
    ordered = Adjacency.from_csr(pointers, column, None, graph.rows)
    return ordered, partition, [part_graph_of(ordered, partition, part) for part in range(parts)]


@pytest.mark.parametrize("parts", [1, 2])
def test_historical_reads_are_those_of_later_chunks(parts: int) -> None:
    graph, partition, found = part_graphs(parts, 4)
    order = [2, 0, 3, 1]
    chunk = torch.repeat_interleave(torch.arange(parts * 4) % 4, torch.tensor(partition.starts).diff()).tolist()
    when = [order.index(c) for c in chunk]
    row, column = graph.coordinates()
    late = sum(when[j] > when[i] for i, j in zip(row.tolist(), column.tolist(), strict=True))
    counted = [historical_reads(part_graph, order) for part_graph in found]
    assert sum(historical for historical, _ in counted) == late > 0
    assert sum(reads for _, reads in counted) == graph.entries
    # another order is another count, and no order none
    assert sum(historical_reads(part_graph, order[::-1])[0] for part_graph in found) != late
    assert historical_reads(found[0], [])[0] == 0


def test_merged_chunks_are_those_of_a_coarser_partition() -> None:
    graph, partition, found = part_graphs(2, 5)
    starts = [partition.starts[p * 5 + c] for p in range(2) for c in (0, 2, 4)] + [partition.starts[-1]]
    coarse = Partition(partition.order, tuple(starts), 2, 3)
    for part, part_graph in enumerate(found):
        wanted, merged = part_graph_of(graph, coarse, part), merge_chunks(part_graph, 2)
        assert merged.chunk_rows == wanted.chunk_rows
        assert merged.receive == wanted.receive
        for mine, theirs in zip(merged.send, wanted.send, strict=True):
            assert [rows.tolist() for rows in mine] == [rows.tolist() for rows in theirs]
        assert merge_chunks(part_graph, 3).chunk_rows != wanted.chunk_rows


def test_drift_is_relative_to_the_fresh_rows() -> None:
    meter = DriftMeter()
    old = {"history.0": torch.ones(10, 3), "history.1": torch.ones(10, 3)}
    meter.before(old, 10)
    meter.after({0: torch.full((10, 3), 2.0), 1: torch.ones(10, 3)})
    assert meter.layers == 2
    assert meter.total == pytest.approx(0.5)
    meter.before({"history.1": torch.zeros(10, 3)}, 10)
    meter.after({1: torch.ones(10, 3)})
    assert (meter.layers, meter.total) == (1, pytest.approx(1.0))
