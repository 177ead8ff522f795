"""Messages with edge features against plain torch and PyG: values, gradients, blocks, dropout, negative controls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.native import library
from trisect.noise import Noise, drop_threshold, row_keys
from trisect.ops.edges import attend_edges, attend_edges_torch, relu_edges, relu_edges_torch

needs_native = pytest.mark.skipif(not library.available(), reason="the native kernels were not built")


def graph(rows: int, columns: int, entries: int, width: int, seed: int) -> Adjacency:
    """Uniform places, duplicates and loops kept, many rows empty; edges have `width` features."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(rows, (entries,), generator=generator)
    column = torch.randint(columns, (entries,), generator=generator)
    order = torch.argsort(row * columns + column, stable=True)
    indptr = torch.zeros(rows + 1, dtype=torch.int64)
    indptr[1:] = torch.cumsum(torch.bincount(row, minlength=rows), 0)
    features = torch.randn(entries, width, generator=generator, dtype=torch.float64)
    return Adjacency.from_csr(indptr, column[order], None, columns).with_features(features)


def drawn(shapes: list[tuple[int, ...]], dtype: torch.dtype, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def operands(matrix: Adjacency, heads: int, channels: int, dtype: torch.dtype, seed: int) -> list[Tensor]:
    """x, target, attention and the edges' weight."""
    f = heads * channels
    return drawn([(matrix.columns, f), (matrix.rows, f), (heads, channels), (f, matrix.edge_channels)], dtype, seed)


def results(call: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """The output and all gradients for a fixed direction."""
    out = call(*tensors)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, tensors, direction)]


def differ(got: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest difference relative to the largest number of each tensor, or to 1."""
    pairs = [(a, b) for a, b in zip(got, wanted, strict=True) if b.numel()]
    assert all(a.shape == b.shape for a, b in pairs)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1.0)) for a, b in pairs)


def attention(function: Callable[..., Tensor], matrix: Adjacency, *more: Any, **named: Any) -> Callable[..., Tensor]:
    return lambda x, target, att, weight: function(x, target, att, matrix, weight, *more, **named)


SIZES = {
    "rows": st.integers(1, 40),
    "columns": st.integers(1, 40),
    "entries": st.integers(0, 400),
    "width": st.sampled_from([1, 2, 3, 5, 8, 13]),
    "single": st.booleans(),
    "seed": st.integers(0, 1000),
}


@needs_native
@settings(max_examples=60, deadline=None)
@given(
    heads=st.sampled_from([1, 2, 3, 8]),
    channels=st.sampled_from([1, 2, 3, 4, 5, 8, 16, 33]),
    slope=st.sampled_from([0.0, 0.2, 1.0]),
    **SIZES,
)
def test_native_attention_equals_torch(
    rows: int, columns: int, entries: int, width: int, single: bool, seed: int, heads: int, channels: int, slope: float
) -> None:
    matrix = graph(rows, columns, entries, width, seed)
    tensors = operands(matrix, heads, channels, torch.float32 if single else torch.float64, seed)
    got = results(attention(attend_edges, matrix, slope), tensors)
    # a sign that rounding turns in float32 moves a gradient by far more than rounding itself; see float64
    wanted = results(attention(attend_edges_torch, matrix, slope), tensors)
    assert differ(got[:1] if single else got, wanted[:1] if single else wanted) < (1e-4 if single else 1e-11)


@needs_native
@settings(max_examples=60, deadline=None)
@given(channels=st.sampled_from([1, 3, 5, 8, 16, 33, 64]), **SIZES)
def test_native_sums_equal_torch(
    rows: int, columns: int, entries: int, width: int, single: bool, seed: int, channels: int
) -> None:
    matrix = graph(rows, columns, entries, width, seed)
    dtype = torch.float32 if single else torch.float64
    tensors = drawn([(columns, channels), (channels,), (channels, width)], dtype, seed)
    got = results(lambda x, bias, weight: relu_edges(x, bias, matrix, weight), tensors)
    wanted = results(lambda x, bias, weight: relu_edges_torch(x, bias, matrix, weight), tensors)
    assert differ(got[:1] if single else got, wanted[:1] if single else wanted) < (1e-4 if single else 1e-11)


@needs_native
@pytest.mark.parametrize(("heads", "channels"), [(1, 3), (2, 8), (3, 5)])
def test_edges_without_features_need_no_weight(heads: int, channels: int) -> None:
    matrix = graph(30, 20, 200, 1, 0).with_features(None)
    x, target, att, bias = drawn(
        [(20, heads * channels), (30, heads * channels), (heads, channels)], torch.float64, 1
    ) + drawn([(heads * channels,)], torch.float64, 2)
    got = results(lambda *t: attend_edges(*t, matrix, None, 0.2), [x, target, att])
    wanted = results(lambda *t: attend_edges_torch(*t, matrix, None, 0.2), [x, target, att])
    assert differ(got, wanted) < 1e-11
    got = results(lambda *t: relu_edges(*t, matrix, None), [x, bias])
    wanted = results(lambda *t: relu_edges_torch(*t, matrix, None), [x, bias])
    assert differ(got, wanted) < 1e-11


@needs_native
@settings(max_examples=15, deadline=None)
@given(
    vertices=st.integers(1, 20),
    entries=st.integers(0, 120),
    width=st.integers(1, 9),
    heads=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 1000),
)
def test_kernels_equal_pyg(vertices: int, entries: int, width: int, heads: int, seed: int) -> None:
    """GATv2Conv and GINEConv of PyG with edge_dim, in float64, with their own parameters."""
    pyg = pytest.importorskip("torch_geometric.nn")
    matrix = graph(vertices, vertices, entries, width, seed)
    x = drawn([(vertices, 6)], torch.float64, seed)[0]
    edges, index = matrix.edge_attributes(), matrix.edge_index()
    conv = pyg.GATv2Conv(6, 5, heads=heads, edge_dim=width, add_self_loops=False).double()
    torch.nn.init.normal_(conv.bias)
    parameters = [conv.lin_l.weight, conv.lin_r.weight, conv.att, conv.lin_edge.weight, x]

    def ours(left: Tensor, right: Tensor, att: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        source = torch.nn.functional.linear(x, left, conv.lin_l.bias)
        target = torch.nn.functional.linear(x, right, conv.lin_r.bias)
        return attend_edges(source, target, att[0], matrix, weight) + conv.bias

    assert differ(results(ours, parameters), results(lambda *_: conv(x, index, edges), parameters)) < 1e-10
    gine = pyg.GINEConv(torch.nn.Linear(6, 4), edge_dim=width).double()
    parameters = [gine.lin.weight, gine.lin.bias, x]
    got = results(lambda weight, bias, x: gine.nn(relu_edges(x, bias, matrix, weight) + x), parameters)
    assert differ(got, results(lambda *_: gine(x, index, edges), parameters)) < 1e-10


@needs_native
def test_the_comparison_notices_one_wrong_feature() -> None:
    matrix = graph(20, 20, 100, 3, 3)
    tensors = operands(matrix, 2, 8, torch.float64, 3)
    got = results(attention(attend_edges, matrix), tensors)
    assert differ(got, results(attention(attend_edges_torch, matrix), tensors)) < 1e-12
    assert matrix.features is not None
    wrong = matrix.features.clone()
    wrong[17, 1] += 0.1
    assert differ(got, results(attention(attend_edges_torch, matrix.with_features(wrong)), tensors)) > 1e-4


@needs_native
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_gradcheck(p: float) -> None:
    matrix = graph(6, 5, 14, 2, 4)
    tensors = operands(matrix, 2, 3, torch.float64, 4)
    ids = torch.arange(5)
    call = attention(attend_edges, matrix, 0.2, dropout=p, noise=Noise(5), source_vertices=ids)
    assert torch.autograd.gradcheck(call, tensors)


@needs_native
def test_long_rows_and_far_scores() -> None:
    """The running maximum is raised many times in a row of many chunks, by more than exp could hold."""
    matrix = graph(3, 500, 2000, 4, 1)
    x, target, att, weight = operands(matrix, 8, 8, torch.float64, 2)
    far = (torch.linspace(-40, 40, 500, dtype=torch.float64)[:, None] + x.detach()).requires_grad_()
    tensors = [far, target, att, weight]
    got = results(attention(attend_edges, matrix), tensors)
    assert differ(got, results(attention(attend_edges_torch, matrix), tensors)) < 1e-11


@needs_native
@pytest.mark.parametrize("cut", ["rows", "columns"])
def test_blocks_have_the_features_of_their_edges(cut: str) -> None:
    matrix = graph(30, 30, 300, 4, 5)
    block = matrix.rows_between(7, 19) if cut == "rows" else matrix.rows_between(3, 20).columns_between(5, 21)
    tensors = operands(block, 2, 8, torch.float64, 5)
    got = results(attention(attend_edges, block), tensors)
    assert differ(got, results(attention(attend_edges_torch, block), tensors)) < 1e-12
    assert differ(got, results(attention(attend_edges, block.compact()), tensors)) < 1e-12
    sums = drawn([(block.columns, 9), (9,), (9, 4)], torch.float64, 6)
    got = results(lambda x, bias, weight: relu_edges(x, bias, block, weight), sums)
    assert differ(got, results(lambda x, bias, weight: relu_edges_torch(x, bias, block, weight), sums)) < 1e-12


@needs_native
def test_dropout_is_that_of_the_torch_path() -> None:
    matrix = graph(20, 20, 150, 3, 8)
    tensors = operands(matrix, 3, 4, torch.float64, 8)
    noise = Noise(3)
    got = results(attention(attend_edges, matrix, 0.2, dropout=0.3, noise=noise), tensors)
    keys = row_keys(noise.key("attention"), torch.arange(20))
    draw = (drop_threshold(0.3), 1.0 / 0.7, keys)
    assert differ(got, results(attention(attend_edges_torch, matrix, 0.2, *draw), tensors)) < 1e-12
    assert differ(got, results(attention(attend_edges_torch, matrix, 0.2), tensors)) > 1e-3


@needs_native
def test_results_do_not_depend_on_the_number_of_threads() -> None:
    matrix = graph(700, 700, 9000, 8, 9)
    tensors = operands(matrix, 4, 8, torch.float32, 9)
    before = torch.get_num_threads()
    made = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        made.append(results(attention(attend_edges, matrix), tensors))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))


def test_edges_without_features_are_refused() -> None:
    matrix = graph(4, 4, 6, 2, 0)
    x, target, att, weight = operands(matrix, 1, 4, torch.float64, 0)
    with pytest.raises(ConfigError, match="the edges have none"):
        attend_edges(x, target, att, matrix.with_features(None), weight)
    with pytest.raises(ConfigError, match=r"\(4, 3\); \(4, 2\) is needed"):
        attend_edges(x, target, att, matrix, torch.zeros(4, 3, dtype=torch.float64))
    assert attend_edges(x, target, att, matrix.with_features(None), None).shape == (4, 4)
