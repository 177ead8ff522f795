"""Aggregation: the native kernels against torch's operations and dense matrices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trisect.errors import ConfigError, DataError
from trisect.graph.adjacency import Adjacency
from trisect.native import available
from trisect.noise import Noise
from trisect.ops.dropout import dropout_torch
from trisect.ops.spmm._aggregate_torch import max_torch, sum_torch
from trisect.ops.spmm.aggregate import aggregate
from trisect.ops.spmm.sums import aggregate_into

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}


def matrix(rows: int, columns: int, entries: int, seed: int, weighted: bool = True) -> Adjacency:
    """A random matrix with duplicates and, mostly, empty rows; columns ascend within a row."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(0, max(rows * 3 // 4, 1), (entries,), generator=generator)
    column = torch.randint(0, columns, (entries,), generator=generator)
    order = torch.argsort(row * columns + column)
    pointers = torch.zeros(rows + 1, dtype=torch.int64)
    pointers[1:] = torch.bincount(row, minlength=rows).cumsum(0)
    values = torch.randn(entries, generator=generator) if weighted else None
    return Adjacency.from_csr(pointers, column[order], values, columns)


def features(rows: int, width: int, dtype: torch.dtype, form: str, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2 * width + 3, generator=generator).to(dtype)
    if form == "sliced":
        return x[:, 1 : 1 + width]
    if form == "transposed":
        return x[:, :width].t().contiguous().t()
    if form == "every second":
        return x[:, : 2 * width : 2]
    if form == "expanded":
        return x[:1, :width].expand(rows, width)
    return x[:, :width].contiguous()


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    scale = float(expected.abs().max()) if expected.numel() else 1.0
    return actual.shape == expected.shape and bool(
        ((actual.double() - expected.double()).abs() <= TOLERANCE[dtype] * max(scale, 1.0)).all()
    )


blocks = st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(0, 300), st.integers(0, 10**6), st.booleans())
widths = st.one_of(st.integers(1, 140), st.sampled_from([6, 16, 64, 100, 128, 256, 513]))
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
forms = st.sampled_from(["plain", "sliced", "transposed", "every second", "expanded"])


@settings(max_examples=150, deadline=None)
@given(
    block=blocks,
    width=widths,
    dtype=dtypes,
    form=forms,
    view=st.sampled_from(["", "rows", "columns", "both"]),
    data=st.data(),
)
def test_native_equals_torch(block, width, dtype, form, view, data):
    whole = matrix(*block)
    if view in ("rows", "both"):
        start = data.draw(st.integers(0, whole.rows))
        whole = whole.rows_between(start, data.draw(st.integers(start, whole.rows)))
    if view in ("columns", "both"):
        start = data.draw(st.integers(0, whole.columns))
        whole = whole.columns_between(start, data.draw(st.integers(start, whole.columns)))
    x = features(whole.columns, width, dtype, form if whole.columns else "plain")
    wide = x.double()
    exact = whole.double().dense().double() @ wide
    assert close(sum_torch(x, whole), exact, dtype)
    assert close(aggregate(x, whole), exact, dtype)
    counts = (whole.ends - whole.starts).clamp(min=1).double()
    assert close(aggregate(x, whole, "mean"), exact / counts[:, None], dtype)
    assert close(aggregate(x, whole, "max"), max_torch(wide, whole)[0], dtype)
    if float(exact.abs().max() if exact.numel() else 0) > 0.1:
        assert not close(aggregate(x, whole), exact * 1.1 + 0.1, dtype)


@settings(max_examples=60, deadline=None)
@given(
    block=blocks,
    width=st.integers(1, 40),
    view=st.sampled_from(["", "rows", "columns"]),
    reduce=st.sampled_from(["sum", "mean", "max"]),
)
def test_gradient_equals_that_of_dense_operations(block, width, view, reduce):
    whole = matrix(*block)
    if view == "rows":
        whole = whole.rows_between(whole.rows // 3, whole.rows)
    if view == "columns":
        whole = whole.columns_between(whole.columns // 3, whole.columns)
    whole = whole.double()
    x = features(whole.columns, width, torch.float64, "plain").requires_grad_()
    weights = features(whole.rows, width, torch.float64, "plain", seed=1)
    (actual,) = torch.autograd.grad((aggregate(x, whole, reduce) * weights).sum(), x)
    if reduce == "max":
        _, winner = max_torch(x.detach(), whole)
        expected = torch.zeros_like(x)
        for i in range(whole.rows):
            for f in range(width):
                if winner[i, f] >= 0:
                    k = int(whole.starts[i] + winner[i, f])
                    value = 1.0 if whole.values is None else float(whole.values[k])
                    expected[int(whole.indices[k]) - whole.column_base, f] += value * float(weights[i, f])
    else:
        counts = (whole.ends - whole.starts).clamp(min=1).double()[:, None]
        expected = whole.double().dense().double().t() @ (weights / counts if reduce == "mean" else weights)
    assert close(actual, expected, torch.float64)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_gradcheck(reduce):
    whole = matrix(9, 7, 30, 3).double()
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: aggregate(y, whole, reduce), (x,))
    if reduce != "max":
        assert torch.autograd.gradgradcheck(lambda y: aggregate(y, whole, reduce), (x,))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_result_does_not_depend_on_threads(reduce):
    whole = matrix(3000, 2500, 40000, 5)
    x = torch.randn(2500, 37, requires_grad=True)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            out = aggregate(x, whole, reduce)
            results.append((out.detach(), *torch.autograd.grad(out.square().sum(), x)))
    finally:
        torch.set_num_threads(before)
    for out, gradient in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_max_takes_the_first_of_equals():
    whole = Adjacency.from_csr(torch.tensor([0, 3, 3]), torch.tensor([0, 1, 2]), None, 3)
    x = torch.tensor([[1.0], [2.0], [2.0]], requires_grad=True)
    out = aggregate(x, whole, "max")
    assert out.tolist() == [[2.0], [0.0]]
    out.sum().backward()
    assert x.grad.tolist() == [[0.0], [1.0], [0.0]]


def test_max_of_a_transposed_matrix_has_a_gradient():
    whole = matrix(20, 15, 80, 2).double()
    turned = whole.transpose()
    x = torch.randn(20, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: aggregate(y, turned, "max"), (x,))


@settings(max_examples=80, deadline=None)
@given(
    block=blocks,
    width=widths,
    dtype=dtypes,
    relu=st.booleans(),
    p=st.sampled_from([0.0, 0.4]),
    parts=st.tuples(*[st.booleans()] * 5),
    alpha=st.sampled_from([1.0, -0.7]),
)
def test_epilogue(block, width, dtype, relu, p, parts, alpha):
    whole = matrix(*block)
    has_add, has_bias, has_rows, has_columns, named = parts
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x = features(whole.columns, width, dtype, "sliced")
    add = features(whole.rows, width, dtype, "sliced", seed=1) if has_add else None
    bias = torch.randn(width, dtype=wide) if has_bias else None
    row_scale = torch.rand(whole.rows, dtype=wide) if has_rows else None
    column_scale = torch.rand(whole.columns, dtype=wide) if has_columns else None
    noise = Noise(5, 1, 2, 3, vertices=torch.randperm(10**6)[: whole.rows] if named else None)
    out = torch.full((whole.rows, width + 5), -9.0, dtype=dtype)
    aggregate_into(
        out[:, 3 : 3 + width],
        x,
        whole,
        alpha=alpha,
        row_scale=row_scale,
        column_scale=column_scale,
        add=add,
        beta=0.3,
        bias=bias,
        relu=relu,
        p=p,
        noise=noise,
    )
    expected = whole.double().dense().double()
    expected = expected if has_columns is False else expected * column_scale.double()
    expected = alpha * (expected @ x.double())
    expected = expected if row_scale is None else expected * row_scale.double()[:, None]
    expected = expected if add is None else expected + 0.3 * add.double()
    expected = expected if bias is None else expected + bias.double()
    expected = expected.relu() if relu else expected
    expected = dropout_torch(expected, p, noise) if p else expected
    assert close(out[:, 3 : 3 + width], expected, dtype)
    assert bool((out[:, :3] == -9).all()), "wrote left of its columns"
    assert bool((out[:, 3 + width :] == -9).all()), "wrote right of its columns"


def test_epilogue_mask_is_the_oracles_to_the_bit():
    whole = Adjacency.from_csr(torch.arange(51), torch.arange(50), None, 50)
    x = torch.rand(50, 77) + 0.5
    noise = Noise(11, 4, vertices=torch.randint(0, 2**40, (50,)))
    out = torch.empty(50, 77)
    aggregate_into(out, x, whole, relu=True, p=0.37, noise=noise)
    assert torch.equal(out, dropout_torch(x, 0.37, noise))


def test_add_may_be_the_output():
    whole = matrix(40, 30, 200, 9)
    x, out = torch.randn(30, 100), torch.randn(40, 100)
    expected = whole.dense() @ x + 2 * out
    aggregate_into(out, x, whole, add=out, beta=2.0)
    torch.testing.assert_close(out, expected)


def test_reads_nothing_beyond_x():
    """NaN after the last feature and the last row must not reach the result."""
    whole = matrix(40, 30, 300, 4)
    for width in (1, 3, 6, 33, 70):
        hull = torch.full((31, width + 8), float("nan"))
        hull[:30, :width] = torch.randn(30, width)
        assert not aggregate(hull[:30, :width], whole).isnan().any()


def test_in_place_operations_on_the_result_work():
    whole = matrix(3000, 3000, 9000, 1)
    x = torch.randn(3000, 128, requires_grad=True)
    aggregate(x, whole).relu_().sum().backward()
    assert x.grad.shape == x.shape


def test_without_the_library(monkeypatch):
    whole = matrix(30, 20, 100, 6)
    x = torch.randn(20, 9, requires_grad=True)
    results = []
    for native in (True, False):
        monkeypatch.setattr("trisect.ops.spmm.sums.available", lambda native=native: native and available())
        for reduce in ("sum", "mean", "max"):
            out = aggregate(x, whole, reduce)
            results.append((out.detach(), *torch.autograd.grad(out.square().sum(), x)))
        out = torch.empty(30, 9)
        aggregate_into(out, x.detach(), whole, alpha=0.5, bias=torch.ones(9), relu=True, p=0.5, noise=Noise(1))
        results.append((out, out))
        split = torch.cat([x.detach()[:13], torch.full((7, 9), torch.nan)])
        aggregate_into(out := torch.empty(30, 9), split, whole, last_rows=x.detach()[13:].clone())
        results.append((out, out))
    half = len(results) // 2
    for with_library, without in zip(results[:half], results[half:], strict=True):
        torch.testing.assert_close(with_library[0], without[0])
        torch.testing.assert_close(with_library[1], without[1])


def test_float16_goes_through_torch():
    whole = matrix(30, 20, 100, 6)
    x = torch.randn(20, 9)
    torch.testing.assert_close(aggregate(x.half(), whole).float(), aggregate(x, whole), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("shape", [(0, 5, 0), (5, 1, 0), (5, 4, 0)])
def test_empty_matrices(shape):
    rows, columns, width = shape
    whole = Adjacency.from_csr(
        torch.zeros(rows + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), None, columns
    )
    for reduce in ("sum", "mean", "max"):
        assert aggregate(torch.ones(columns, width), whole, reduce).shape == (rows, width)
        assert not aggregate(torch.ones(columns, 3), whole, reduce).any()


def test_errors_name_what_is_wrong():
    whole = matrix(5, 4, 10, 0)
    with pytest.raises(DataError, match=r"shape \(5, 2\)"):
        aggregate(torch.ones(5, 2), whole)
    with pytest.raises(DataError, match=r"int64"):
        aggregate(torch.ones(4, 2, dtype=torch.int64), whole)
    with pytest.raises(ConfigError, match="median"):
        aggregate(torch.ones(4, 2), whole, "median")
    learnt = whole.with_values(torch.ones(10, requires_grad=True))
    with pytest.raises(DataError, match="require a gradient"):
        aggregate(torch.ones(4, 2), learnt)


@pytest.mark.skipif(not available(), reason="the native kernels are not built")
@settings(max_examples=60, deadline=None)
@given(block=blocks, width=widths, dtype=dtypes, share=st.floats(0, 1), part=st.booleans())
def test_the_last_rows_may_lie_elsewhere(
    block: tuple[int, int, int, int, bool], width: int, dtype: torch.dtype, share: float, part: bool
) -> None:
    """To the bit what one tensor gives; of a block of rows likewise."""
    whole = matrix(*block)
    whole = whole.rows_between(whole.rows // 3, whole.rows) if part else whole
    x = features(whole.columns, width, dtype, "plain", block[3])
    split = round(share * whole.columns)
    beyond, holes = x[split:].clone(), x.clone()
    holes[split:] = torch.nan
    results = [torch.empty(whole.rows, width, dtype=dtype) for _ in range(3)]
    aggregate_into(results[0], x, whole, alpha=0.5)
    aggregate_into(results[1], holes, whole, alpha=0.5, last_rows=beyond)
    aggregate_into(results[2], x, whole, alpha=0.5, last_rows=beyond + 1)
    assert torch.equal(results[1], results[0])
    if bool((whole.indices[int(whole.starts[0]) : int(whole.ends[-1])] >= split).any()) and whole.values is None:
        assert not close(results[2], results[0], dtype)
