from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.errors import DataError
from trisect.graph import build
from trisect.graph.adjacency import Adjacency
from trisect.graph.assemble import Edges, assemble
from trisect.graph.build import adjacency_from_edges, normalise, row_sums, self_loops, symmetrise, validate


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[int, np.ndarray, np.ndarray, np.ndarray | None]:
    vertices = draw(st.sampled_from([1, 2, 5, 30]))
    count = draw(st.integers(0, 120))
    random = np.random.default_rng(draw(st.integers(0, 2**20)))
    src, dst = random.integers(0, vertices, (2, count))
    return vertices, src, dst, random.normal(size=count).astype(np.float32) if draw(st.booleans()) else None


def scipy_matrix(vertices: int, src: np.ndarray, dst: np.ndarray, weight: np.ndarray | None) -> sp.csr_matrix:
    value = np.ones(len(src)) if weight is None else weight.astype(np.float64)
    result = sp.coo_matrix((value, (dst, src)), shape=(vertices, vertices)).tocsr()
    result.sort_indices()
    return result


def assert_same(matrix: Adjacency, expected: sp.csr_matrix, tolerance: float = 1e-5) -> None:
    assert matrix.pointers().tolist() == expected.indptr.tolist()
    assert matrix.indices.tolist() == expected.indices.tolist()
    values = np.ones(matrix.entries) if matrix.values is None else matrix.values.numpy()
    np.testing.assert_allclose(values, expected.data, atol=tolerance, rtol=tolerance)


@given(edge_lists(), st.booleans(), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=150, deadline=None)
def test_edges_equal_scipy(edges: tuple, undirected: bool, dtype: torch.dtype) -> None:
    vertices, src, dst, weight = edges
    matrix = adjacency_from_edges(src, dst, weight, vertices, undirected=undirected, dtype=dtype)
    expected = scipy_matrix(vertices, src, dst, weight)
    if undirected:
        back = src != dst
        reverse = scipy_matrix(vertices, dst[back], src[back], None if weight is None else weight[back])
        # adding drops entries that cancel; go through the lists instead
        both = (np.r_[src, dst[back]], np.r_[dst, src[back]], None if weight is None else np.r_[weight, weight[back]])
        assert abs((expected + reverse) - scipy_matrix(vertices, *both)).sum() < 1e-4
        expected = scipy_matrix(vertices, *both)
    validate(matrix)
    assert matrix.indices.dtype == torch.int32
    assert matrix.dtype == dtype or matrix.values is None
    assert_same(matrix, expected)


def test_the_comparison_with_scipy_can_fail() -> None:
    matrix = adjacency_from_edges([0, 0, 1], [1, 1, 0])
    right = np.array([0, 0, 1]), np.array([1, 1, 0])
    assert_same(matrix, scipy_matrix(2, *right, None))
    with pytest.raises(AssertionError):
        assert_same(matrix, scipy_matrix(2, *right[::-1], None))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("wide", [torch.int32, torch.int64])
def test_many_edges_equal_the_torch_path_with_any_number_of_threads(count: int, both: bool, wide: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    size, vertices = 200_000, 5_000
    src = (torch.rand(size, generator=generator) ** 4 * vertices).to(wide)
    dst = torch.randint(0, vertices, (size,), generator=generator).to(wide)
    weight = torch.rand(size, generator=generator)
    parts = torch.tensor([100, 100, 50_000, 199_000])
    coefficients = torch.tensor([7.0, 0.5, 0.25], dtype=torch.float64)
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        for edges in (
            Edges(src, dst, both=both),
            Edges(src, dst, weight, both=both),
            Edges(src, dst, weight, 100, 199_000, parts, coefficients, both),
            Edges(src, dst, None, 100, 199_000, parts, coefficients, both),
        ):
            fast, slow = assemble(edges, vertices, vertices), assemble(edges, vertices, vertices, native=False)
            assert torch.equal(fast[0], slow[0])
            assert torch.equal(fast[1], slow[1])
            torch.testing.assert_close(fast[2], slow[2])
    finally:
        torch.set_num_threads(before)


def test_duplicates_add_up_and_multiplicity_becomes_the_value() -> None:
    plain = adjacency_from_edges([0, 1], [1, 2])
    assert plain.values is None
    assert plain.shape == (3, 3)
    double = adjacency_from_edges([0, 1, 0], [1, 2, 1])
    assert double.values.tolist() == [2.0, 1.0]
    weighted = adjacency_from_edges([0, 1, 0], [1, 2, 1], [0.5, 3.0, 0.25])
    assert weighted.values.tolist() == [0.75, 3.0]
    assert weighted.dense().tolist() == [[0, 0, 0], [0.75, 0, 0], [0, 3.0, 0]]


def test_row_is_the_target() -> None:
    assert adjacency_from_edges([0], [1]).dense().tolist() == [[0, 0], [1, 0]]
    assert adjacency_from_edges([4], [1], vertices=2, columns=5).shape == (2, 5)
    assert adjacency_from_edges([0, 1], [1, 1], undirected=True).dense().tolist() == [[0, 1], [1, 1]]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_integer_types_and_unusual_memory(dtype: type) -> None:
    src, dst = np.array([0, 1, 2], dtype), np.array([1, 2, 0], dtype)
    expected = adjacency_from_edges([0, 1, 2], [1, 2, 0]).dense()
    assert torch.equal(adjacency_from_edges(src, dst).dense(), expected)
    assert torch.equal(adjacency_from_edges(src[::-1], dst[::-1]).dense(), expected)
    strided = np.stack([src, dst], 1)
    strided.flags.writeable = False
    assert torch.equal(adjacency_from_edges(strided[:, 0], strided[:, 1]).dense(), expected)
    assert torch.equal(adjacency_from_edges(src.astype(">i8"), dst).dense(), expected)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([0, 1, 7], [1, 0, 0], None, 3), r"src\[2\] is 7, but there are 3 vertices"),
        (([0, 1], [1, -4]), r"dst\[1\] is -4; vertex ids must not be negative"),
        (([0.0, 1.0], [1, 0]), r"src holds float64 values; vertex ids must be integers"),
        (([True], [0]), r"src holds bool values"),
        ((["a"], [0]), r"src holds text; number the vertices from 0, or use from_table"),
        (([[0]], [0]), r"src has the shape \[1, 1\]"),
        (([0, 1], [1]), r"src has 2 entries and dst 1"),
        (([], []), r"graph is empty"),
        (([], [], None, 0), r"vertices is 0"),
        (([], [], None, 2.5), r"vertices is 2.5; give an integer"),
        (([0], [0], None, 2**31), r"2147483648 vertices; indices are 32-bit"),
        (([2**31], [0]), r"2147483649 vertices; indices are 32-bit"),
        (([0, 1], [1, 0], [1.0, float("nan")]), r"weight\[1\] is nan; every number must be finite"),
        (([0, 1], [1, 0], [float("-inf"), 1.0]), r"weight\[0\] is -inf"),
        (([0, 1], [1, 0], [1.0]), r"weight has the shape \[1\] for 2 edges"),
    ],
)
def test_bad_edges_are_refused(arguments: tuple, words: str) -> None:
    with pytest.raises(DataError, match=words):
        adjacency_from_edges(*arguments)


def test_isolated_vertices_and_no_edges_are_fine() -> None:
    matrix = adjacency_from_edges([], [], vertices=3)
    assert matrix.shape == (3, 3)
    assert matrix.entries == 0
    assert torch.equal(normalise(matrix, "symmetric", True).dense(), torch.eye(3))
    assert normalise(matrix, "row", False).entries == 0
    assert symmetrise(matrix).entries == 0
    assert matrix.transpose().entries == 0


@given(edge_lists(), st.booleans(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_normalisation_equals_pyg(edges: tuple, loops: bool, double: bool) -> None:
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    vertices, src, dst, weight = edges
    weight = None if weight is None else np.abs(weight)
    matrix = adjacency_from_edges(src, dst, weight, vertices, dtype=torch.float64 if double else torch.float32)
    index, value = gcn_norm(matrix.edge_index(), matrix.values, vertices, add_self_loops=loops, dtype=matrix.dtype)
    expected = torch.zeros(vertices, vertices, dtype=matrix.dtype)
    expected.index_put_((index[1], index[0]), value, accumulate=True)
    found = normalise(matrix, "symmetric", loops)
    validate(found)
    torch.testing.assert_close(found.dense(), expected)
    if bool(expected.any()):
        with pytest.raises(AssertionError):
            torch.testing.assert_close(found.dense(), expected * 1.01)


@given(edge_lists())
@settings(max_examples=60, deadline=None)
def test_row_normalisation_and_native_equal_the_torch_path(edges: tuple) -> None:
    vertices, src, dst, weight = edges
    fast = adjacency_from_edges(src, dst, None if weight is None else np.abs(weight), vertices)
    slow = fast.double() if fast.values is not None else fast.with_values(torch.ones(fast.entries).double())
    for kind in ("row", "symmetric", "none"):
        for loops in (False, True):
            one, other = normalise(fast, kind, loops), normalise(slow, kind, loops)
            assert torch.equal(one.indices, other.indices)
            torch.testing.assert_close(one.dense().double(), other.dense(), rtol=1e-6, atol=1e-6)
    sums = normalise(fast, "row", True).dense().sum(1)
    torch.testing.assert_close(sums, torch.ones(vertices))


def test_normalisation_of_a_small_graph() -> None:
    # 0 → 1, 2 → 1; with loops the rows sum to 1, 3, 1
    matrix = normalise(adjacency_from_edges([0, 2], [1, 1]), "symmetric", True)
    third = 3**-0.5
    expected = torch.tensor([[1, 0, 0], [third, 1 / 3, third], [0, 0, 1]])
    torch.testing.assert_close(matrix.dense(), expected)
    matrix = normalise(adjacency_from_edges([0, 2], [1, 1]), "row", False)
    assert matrix.dense().tolist() == [[0, 0, 0], [0.5, 0, 0.5], [0, 0, 0]]


def test_loops_that_exist_keep_their_weight() -> None:
    matrix = self_loops(adjacency_from_edges([0, 0, 1], [0, 1, 2], [5.0, 1.0, 1.0], 3), 2.0)
    assert matrix.dense().tolist() == [[5, 0, 0], [1, 2, 0], [0, 1, 2]]
    assert self_loops(adjacency_from_edges([0, 1], [0, 0], vertices=2)).values is None


def test_loops_in_blocks() -> None:
    matrix = adjacency_from_edges([0, 1, 3, 2], [0, 0, 2, 3], [1.0, 2.0, 3.0, 4.0])
    block = self_loops(matrix.rows_between(1, 4))
    assert torch.equal(block.dense(), self_loops(matrix).dense()[1:4])
    block = self_loops(matrix.rows_between(1, 3).columns_between(1, 4))
    assert torch.equal(block.dense(), self_loops(matrix).dense()[1:3, 1:4])
    with pytest.raises(DataError, match="Self-loops need every row among the columns"):
        self_loops(matrix.columns_between(1, 4))
    with pytest.raises(DataError, match="needs a square matrix"):
        normalise(matrix.rows_between(1, 3), "symmetric", False)
    row = normalise(matrix.rows_between(2, 4), "row", False)
    assert row.dense().tolist() == [[0, 0, 0, 1], [0, 0, 1, 0]]


def test_negative_sums_are_refused() -> None:
    with pytest.raises(DataError, match=r"edges into vertex 1 add up to -3"):
        normalise(adjacency_from_edges([0], [1], [-3.0]), "symmetric", False)
    with pytest.raises(DataError, match="normalisation is 'both'"):
        normalise(adjacency_from_edges([0], [1]), "both", False)  # type: ignore[arg-type]


def test_symmetrise() -> None:
    matrix = adjacency_from_edges([0, 1, 2, 1], [1, 0, 0, 1], [1.0, 2.0, 3.0, 4.0])
    assert symmetrise(matrix).dense().tolist() == [[0, 3, 3], [3, 4, 0], [3, 0, 0]]
    assert symmetrise(matrix, "max").dense().tolist() == [[0, 2, 3], [2, 4, 0], [3, 0, 0]]
    unweighted = symmetrise(adjacency_from_edges([0, 1, 2, 1], [1, 0, 0, 1]))
    assert unweighted.values is None
    assert unweighted.dense().tolist() == [[0, 1, 1], [1, 1, 0], [1, 0, 0]]
    with pytest.raises(DataError, match="square"):
        symmetrise(matrix.rows_between(0, 1))


def test_validate_finds_what_is_wrong() -> None:
    good = adjacency_from_edges([0, 1, 2], [1, 1, 0], [1.0, 2.0, 3.0])
    validate(good)
    validate(good.rows_between(1, 2))

    def changed(**fields: object) -> Adjacency:
        return Adjacency(**{name: fields.get(name, getattr(good, name)) for name in
                            ("starts", "ends", "indices", "values", "columns")})  # fmt: skip

    cases = [
        ({"ends": good.ends + 9}, "has the entries"),
        ({"indices": torch.tensor([2, 1, 0], dtype=torch.int32)}, "columns of row 1 are not in ascending order"),
        ({"indices": torch.tensor([2, 0, 0], dtype=torch.int32)}, "row 1 has column 0 twice"),
        ({"columns": 2}, "row 0 reads column 2, and there are 2"),
        ({"values": torch.ones(2)}, r"values has the shape \[2\]; it must be \[3\]"),
        ({"values": torch.tensor([1.0, float("inf"), 1.0])}, r"values\[1\] is inf"),
        ({"indices": good.indices.long()}, "indices is torch.int64 .* give a dense tensor of int32"),
        ({"starts": good.starts[1:]}, r"ends has the shape \[3\]; it must be \[2\]"),
    ]
    for fields, words in cases:
        with pytest.raises(DataError, match=words):
            validate(changed(**fields))


def test_row_sums_count_in_double() -> None:
    count = 20_000
    weight = np.full(count, 0.1, np.float32)
    matrix = adjacency_from_edges(np.arange(count), np.zeros(count, np.int64), weight)
    assert abs(float(row_sums(matrix)[0]) - count * float(np.float32(0.1))) < 1e-6
    assert build.NORMALISATIONS == ("symmetric", "row", "none")
