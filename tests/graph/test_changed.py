"""Arrays of an `Adjacency` that are changed in place after it was checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from trisect import ops
from trisect.errors import DataError
from trisect.graph import Adjacency, adjacency_from_edges
from trisect.ops.edges import relu_edges

N = 5
X = torch.arange(1.0, N + 1)[:, None].repeat(1, 2)


def _matrix() -> Adjacency:
    matrix = adjacency_from_edges(torch.tensor([0, 1, 2, 3, 4, 0]), torch.tensor([1, 2, 3, 4, 0, 2]), vertices=N)
    return matrix.with_features(torch.ones(6, 1))


USES: dict[str, Callable[[Adjacency], Tensor]] = {
    "aggregate": lambda a: ops.aggregate(X, a),
    "max": lambda a: ops.aggregate(X, a, "max"),
    "convolve": lambda a: ops.convolve(X, a),
    "attend": lambda a: ops.attend(X[:, :, None], X, X, a),
    "relu_edges": lambda a: relu_edges(X, torch.zeros(2), a, torch.ones(2, 1)),
    "steps": lambda a: ops.aggregate_steps(X[None], [a]),
    "edge_index": lambda a: a.edge_index(),
    "transpose": lambda a: a.transpose().dense(),
    "columns": lambda a: a.columns_between(0, 3).dense(),
    "block": lambda a: ops.aggregate(X, a.rows_between(1, 3)),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("array", ["indices", "starts", "ends"])
def test_what_leads_out_of_the_arrays_is_refused(use: str, array: str) -> None:
    matrix = _matrix()
    USES[use](matrix)
    if array == "indices":
        matrix.indices[2] = N + 3
    else:
        getattr(matrix, array)[2] = -1 if array == "starts" else 9
    with pytest.raises(DataError, match=r"row \d"):
        USES[use](matrix)
    with pytest.raises(DataError, match=r"row \d"):
        USES[use](matrix)


def test_the_sentence_says_that_something_was_changed() -> None:
    matrix = _matrix()
    ops.aggregate(X, matrix)
    matrix.indices[0] = N
    with pytest.raises(DataError, match=r"changed in place after its check: row 0 reads column 5, and there are 5"):
        ops.aggregate(X, matrix)


@pytest.mark.parametrize("use", USES)
def test_what_is_still_a_matrix_is_read_anew(use: str) -> None:
    matrix = _matrix()
    USES[use](matrix)
    matrix.transpose(), matrix.csr_tensor(torch.float32)
    matrix.indices[0] = 2
    fresh = replace(matrix, indices=matrix.indices.clone())
    assert torch.equal(USES[use](matrix), USES[use](fresh))
    assert torch.equal(matrix.transpose().dense(), matrix.dense().t())


def test_gradients_follow_a_change() -> None:
    matrix = _matrix()
    x = X.clone().requires_grad_()
    ops.aggregate(x, matrix).sum().backward()
    matrix.indices[0] = 2
    x.grad = None
    ops.aggregate(x, matrix).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, matrix.dense().t() @ torch.ones(N, 2))


def test_views_of_a_changed_matrix() -> None:
    matrix = _matrix()
    block = matrix.rows_between(1, 4)
    narrow = matrix.columns_between(0, 3)
    ops.aggregate(X, block), ops.aggregate(X[:3], narrow)
    matrix.indices[1] = N + 1
    for use in (
        lambda: ops.aggregate(X, block),
        lambda: block.transpose(),
        lambda: ops.aggregate(X[:3], narrow),
        lambda: ops.aggregate(X, matrix.rows_between(0, 2)),
    ):
        with pytest.raises(DataError, match=r"row \d"):
            use()


def test_values_may_change() -> None:
    matrix = _matrix().with_values(torch.ones(6))
    ops.aggregate(X, matrix)
    assert matrix.values is not None
    matrix.values.mul_(2.0)
    assert torch.equal(ops.aggregate(X, matrix), matrix.dense() @ X)


def test_in_inference_mode() -> None:
    with torch.inference_mode():
        matrix = _matrix()
        first = ops.aggregate(X, matrix)
        assert torch.equal(ops.aggregate(X, matrix), first)


def test_arrays_that_are_replaced_are_checked_again() -> None:
    matrix = _matrix()
    ops.aggregate(X, matrix)
    matrix.indices.data = torch.full_like(matrix.indices, N)
    with pytest.raises(DataError, match="changed in place after its check: row 0 reads column 5"):
        ops.aggregate(X, matrix)
    weighted = replace(_matrix(), values=torch.ones(6))
    ops.aggregate(X, weighted)
    assert weighted.values is not None
    weighted.values.set_(torch.ones(1))
    with pytest.raises(DataError, match=r"changed in place after its check: values has the shape \[1\]"):
        ops.aggregate(X, weighted)
