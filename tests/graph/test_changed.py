"""Arrays of an `Adjacency` that are changed in place after it was checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from trisect import ops
from trisect.errors import ConfigError, DataError
from trisect.graph import Adjacency, adjacency_from_edges
from trisect.ops.edges import relu_edges
from trisect.ops.spmm.aggregate import Reduce
from trisect.views.view import View

N = 5
X = torch.arange(1.0, N + 1)[:, None].repeat(1, 2)


def _matrix() -> Adjacency:
    matrix = adjacency_from_edges(torch.tensor([0, 1, 2, 3, 4, 0]), torch.tensor([1, 2, 3, 4, 0, 2]), vertices=N)
    return matrix.with_features(torch.ones(6, 1))


USES: dict[str, Callable[[Adjacency], Tensor]] = {
    "aggregate": lambda a: ops.aggregate(X, a),
    "max": lambda a: ops.aggregate(X, a, "max"),
    "view": lambda a: View.whole(a).aggregate(X),
    "attend": lambda a: ops.attend(X[:, :, None], X, X, a),
    "relu_edges": lambda a: relu_edges(X, torch.zeros(2), a, torch.ones(2, 1)),
    "steps": lambda a: View.whole([a]).aggregate(X[None]),
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("block", [False, True])
def test_values_may_change(dtype: torch.dtype, reduce: Reduce, block: bool) -> None:
    whole = _matrix().with_values(torch.ones(6))
    matrix = whole.rows_between(1, 4) if block else whole
    x = X.to(dtype).requires_grad_()

    def used(matrix: Adjacency) -> list[Tensor]:
        y = ops.aggregate(x, matrix, reduce)
        return [y.detach(), *torch.autograd.grad(y.sum(), x)]

    used(matrix), matrix.csr_tensor(dtype)
    assert whole.values is not None
    whole.values.mul_(torch.arange(1.0, 7))
    fresh = replace(whole, values=whole.values.clone())
    expected = used(fresh.rows_between(1, 4) if block else fresh)
    for now, wanted in zip(used(matrix), expected, strict=True):
        assert torch.equal(now, wanted)
    assert torch.equal(matrix.csr_tensor(dtype).to_dense().float(), matrix.dense())
    assert torch.equal(matrix.transpose().dense(), matrix.dense().t())


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


RESIZED: dict[str, Callable[[Adjacency], object]] = {
    "starts": lambda a: a.starts.resize_(3),
    "ends": lambda a: a.ends.resize_(3),
    "starts, same memory": lambda a: setattr(a.starts, "data", a.starts.data[:2]),
    "ends, same memory": lambda a: setattr(a.ends, "data", a.ends.data[:2]),
    "indices, same memory": lambda a: setattr(a.indices, "data", a.indices.data[:1]),
    "indices, another type": lambda a: setattr(a.indices, "data", a.indices.data.long()),
    "values": lambda a: a.values.resize_(0) if a.values is not None else None,
    "features": lambda a: a.features.resize_(0, 1) if a.features is not None else None,
    "features, same memory": lambda a: (
        setattr(a.features, "data", a.features.data[:1]) if a.features is not None else 0
    ),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("change", RESIZED)
def test_arrays_of_another_size_are_refused_at_every_use(use: str, change: str) -> None:
    matrix = replace(_matrix(), values=torch.ones(6))
    USES[use](matrix)
    RESIZED[change](matrix)
    for _ in range(3):
        with pytest.raises(DataError, match=r"changed in place after its check: .*(has the shape|have the|is torch)"):
            matrix.checked()
        with pytest.raises((DataError, ConfigError)):
            USES[use](matrix)


def test_arrays_that_were_resized_before_the_first_use() -> None:
    matrix = replace(_matrix())
    matrix.ends.resize_(3)
    for _ in range(2):
        with pytest.raises(DataError, match=r"ends has the shape \[3\]; it must be \[5\]"):
            ops.aggregate(X, matrix)


DERIVED: dict[str, Callable[[Adjacency], object]] = {
    "entries": lambda a: a.entries,
    "csr_tensor": lambda a: a.csr_tensor(torch.float32).to_dense().tolist(),
    "inverse_counts": lambda a: a.inverse_counts(torch.float32).tolist(),
    "read_columns": lambda a: a.read_columns()[1].dense().tolist(),
    "long_positions": lambda a: a.long_positions().tolist(),
    "mean": lambda a: ops.aggregate(X, a, "mean").tolist(),
    "symmetric": lambda a: a.is_symmetric(),
}


@pytest.mark.parametrize("what", DERIVED)
@pytest.mark.parametrize("first", [False, True])
def test_the_first_use_after_a_change_is_not_stale(what: str, first: bool) -> None:
    matrix = _matrix().transpose(positions=True)
    if first:  # of a matrix that nothing has checked
        matrix = replace(matrix)
    DERIVED[what](matrix)
    assert matrix.positions is not None
    matrix.ends[[0, -1]] -= 1
    matrix.positions[1] = 0
    fresh = replace(matrix, ends=matrix.ends.clone(), positions=matrix.positions.clone())
    assert DERIVED[what](matrix) == DERIVED[what](fresh)


def test_a_transpose_that_is_held_lets_go_of_a_matrix_that_changed() -> None:
    matrix = _matrix()
    turned = matrix.transpose()
    before = turned.dense()
    matrix.indices[0] = 2
    assert torch.equal(turned.transpose().dense(), before.t())
    assert torch.equal(matrix.transpose().dense(), matrix.dense().t())
