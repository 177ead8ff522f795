from __future__ import annotations

import torch

from trisect.graph.adjacency import Adjacency
from trisect.partition.halo import part_graph_of
from trisect.partition.partition import Partition


def two_parts(rows: int, crossing: int) -> tuple[Adjacency, Partition]:
    """Two parts of so many vertices, each of which reads itself; the first ones read their like in the other part."""
    count = 2 * rows
    dense = torch.eye(count)
    for vertex in range(crossing):
        dense[vertex, rows + vertex] = dense[rows + vertex, vertex] = 1.0
    row, column = dense.nonzero(as_tuple=True)
    pointers = torch.zeros(count + 1, dtype=torch.int64)
    pointers[1:] = torch.cumsum(torch.bincount(row, minlength=count), 0)
    return Adjacency.from_csr(pointers, column, None, count), Partition(torch.arange(count), (0, rows, count), 2)


def test_interior_rows_are_those_that_take_no_part_in_the_exchange() -> None:
    for part in (0, 1):
        part_graph = part_graph_of(*two_parts(16, 5), part)
        assert part_graph.halo.numel() == 5
        assert part_graph.interior() == (5,)


def test_few_interior_rows_are_not_apart() -> None:
    assert part_graph_of(*two_parts(16, 14), 0).interior() == (14,)
    assert part_graph_of(*two_parts(16, 15), 0).interior() == (16,)
    assert part_graph_of(*two_parts(16, 16), 0).interior() == (16,)
