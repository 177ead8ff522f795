from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.errors import DataError
from trisect.graph import csr
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import adjacency_from_edges


@st.composite
def matrices(draw: st.DrawFn) -> Adjacency:
    rows, columns = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    count = draw(st.integers(0, 60))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    src = torch.randint(0, columns, (count,), generator=generator)
    dst = torch.randint(0, rows, (count,), generator=generator)
    weight = torch.randn(count, generator=generator) if draw(st.booleans()) else None
    return adjacency_from_edges(src, dst, weight, rows, columns=columns)


def arrays_of(matrix: Adjacency) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]:
    return matrix.indices, matrix.starts, matrix.ends, matrix.columns, matrix.column_base, matrix.entries


def ranges(draw: st.DrawFn, size: int) -> tuple[int, int]:
    start = draw(st.integers(0, size))
    return start, draw(st.integers(start, size))


@given(matrices(), st.data())
@settings(max_examples=150, deadline=None)
def test_views_and_their_transposes_equal_dense_slices(matrix: Adjacency, data: st.DataObject) -> None:
    dense = matrix.dense()
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):
            a, b = ranges(data.draw, matrix.rows)
            matrix, dense = matrix.rows_between(a, b), dense[a:b]
        else:
            a, b = ranges(data.draw, matrix.columns)
            matrix, dense = matrix.columns_between(a, b), dense[:, a:b]
        assert torch.equal(matrix.dense(), dense)
    turned = matrix.transpose()
    assert torch.equal(turned.dense(), dense.T)
    assert torch.equal(matrix.compact().dense(), dense)
    assert matrix.entries == turned.entries == matrix.edge_index().shape[1]
    # positions lead back to the entry in the original's arrays
    if turned.entries and matrix.values is not None:
        turned = matrix.transpose(positions=True)
        assert turned.positions is not None
        entry = turned.entry_positions()
        assert torch.equal(matrix.values[turned.positions[entry].long()], turned.values[entry])


@given(matrices(), st.data())
@settings(max_examples=100, deadline=None)
def test_native_transpose_and_search_equal_torch(matrix: Adjacency, data: st.DataObject) -> None:
    a, b = ranges(data.draw, matrix.columns)
    block = matrix.columns_between(a, b)
    bound = data.draw(st.integers(-1, 13))
    fast = csr.lower_bound(block.indices, block.starts, block.ends, bound)
    assert torch.equal(fast, csr.lower_bound_torch(block.indices, block.starts, block.ends, bound))
    for one, other in zip(csr.turn(*arrays_of(block)), csr.turn_torch(*arrays_of(block)), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_the_comparison_with_dense_can_fail() -> None:
    matrix = adjacency_from_edges([0, 1], [1, 2], vertices=3)
    wrong = adjacency_from_edges([0, 1], [2, 1], vertices=3)
    assert not torch.equal(matrix.dense(), wrong.dense())
    assert not torch.equal(matrix.transpose().dense(), matrix.dense())


def test_large_transpose_equals_torch_with_any_number_of_threads() -> None:
    generator = torch.Generator().manual_seed(1)
    src = (torch.rand(300_000, generator=generator) ** 3 * 20_000).long()
    dst = torch.randint(0, 30_000, (300_000,), generator=generator)
    matrix = adjacency_from_edges(src, dst, torch.rand(300_000, generator=generator), 30_000, columns=20_000)
    pointers, rows, positions = csr.turn_torch(*arrays_of(matrix))
    before = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            turned = matrix.with_values(matrix.values).transpose(positions=True)
            assert torch.equal(turned.pointers(), pointers)
            assert torch.equal(turned.indices, rows)
            assert torch.equal(turned.positions, positions)
            assert torch.equal(turned.values, matrix.values[positions])
    finally:
        torch.set_num_threads(before)


def test_transpose_is_built_once_and_leads_back() -> None:
    matrix = adjacency_from_edges([0, 1, 2], [1, 2, 0], vertices=3)
    turned = matrix.transpose()
    assert matrix.transpose() is turned
    assert turned.transpose() is matrix
    block = matrix.rows_between(1, 3)
    assert block.transpose().indices.data_ptr() == turned.indices.data_ptr()


def test_a_matrix_with_its_transpose_is_freed_at_once() -> None:
    matrix = adjacency_from_edges([0, 1, 2], [1, 2, 0], vertices=3)
    matrix.transpose().transpose()
    alive = weakref.ref(matrix)
    gc.disable()
    try:
        del matrix
        assert alive() is None
    finally:
        gc.enable()


def test_edge_index_numbers_within_the_block() -> None:
    # row: 0 reads 0 and 3, 1 reads 1, 2 reads 2 and 3
    matrix = adjacency_from_edges([0, 3, 1, 2, 3], [0, 0, 1, 2, 2], [1.0, 2.0, 3.0, 4.0, 5.0], 4)
    block = matrix.rows_between(1, 3).columns_between(1, 4)
    assert block.edge_index().tolist() == [[0, 1, 2], [0, 1, 1]]
    assert block.edge_weight().tolist() == [3.0, 4.0, 5.0]
    assert block.edge_index() is block.edge_index()
    assert block.self_start == 0
    assert not block.is_plain()
    assert block.compact().is_plain()


def test_a_symmetric_matrix_shares_its_arrays_with_its_transpose() -> None:
    for weights, shared in (((0.5, 2.0, 0.5), True), ((0.5, 2.0, 0.25), False), (None, True)):
        matrix = adjacency_from_edges([0, 2, 1], [1, 2, 0], weights, vertices=3)
        turned = matrix.transpose()
        assert (turned.indices.data_ptr() == matrix.indices.data_ptr()) == shared, weights
        assert torch.equal(turned.dense(), matrix.dense().T)
        assert torch.equal(turned.transpose().dense(), matrix.dense())
        with_positions = matrix.transpose(positions=True)
        assert with_positions.positions is not None
        assert with_positions.positions.tolist() == [1, 0, 2]
    one_way = adjacency_from_edges([0, 1], [1, 2], vertices=3)
    assert one_way.transpose().indices.data_ptr() != one_way.indices.data_ptr()


def test_types_and_memory() -> None:
    matrix = adjacency_from_edges([0, 1], [1, 0], [0.5, 0.25])
    turned = matrix.transpose()
    assert matrix.double().values.dtype == torch.float64
    assert matrix.double().transpose().values.tolist() == turned.values.tolist()
    assert matrix.float() is matrix
    assert matrix.to("cpu") is matrix
    # pointers 3 x 8, indices and values 2 x 4 each; the transpose the same and its positions
    assert matrix.memory_bytes == (24 + 8 + 8) + (24 + 8 + 8 + 8)
    unweighted = adjacency_from_edges([0, 1], [1, 0])
    assert unweighted.double() is unweighted
    moved = matrix.rows_between(1, 2).to("meta")
    assert moved.device.type == "meta"


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 4)])
def test_ranges_outside_are_refused(start: int, stop: int) -> None:
    matrix = adjacency_from_edges([0, 1], [1, 0], vertices=3)
    with pytest.raises(DataError, match=r"range of rows .* within 0\.\.3"):
        matrix.rows_between(start, stop)
    with pytest.raises(DataError, match=r"range of columns"):
        matrix.columns_between(start, stop)
