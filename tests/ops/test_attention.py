"""Attention against plain torch, PyG-free: values, gradients, blocks, dropout, and controls that must fail."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.native import library
from trisect.noise import Noise, drop_threshold, row_keys
from trisect.ops.attention import attend, attend_torch

needs_native = pytest.mark.skipif(not library.available(), reason="the native kernels were not built")


def random_adjacency(rows: int, columns: int, entries: int, seed: int) -> Adjacency:
    """Uniform places, duplicates kept, many rows empty."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(rows, (entries,), generator=generator)
    column = torch.randint(columns, (entries,), generator=generator)
    order = torch.argsort(row * columns + column, stable=True)
    indptr = torch.zeros(rows + 1, dtype=torch.int64)
    indptr[1:] = torch.cumsum(torch.bincount(row, minlength=rows), 0)
    return Adjacency.from_csr(indptr, column[order], None, columns)


def operands(adjacency: Adjacency, heads: int, channels: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((adjacency.columns, heads, channels), (adjacency.columns, heads), (adjacency.rows, heads))
    return tuple(
        (3 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
        for shape in shapes
    )


def results(function, tensors: tuple[Tensor, ...], adjacency: Adjacency, *rest, **options) -> list[Tensor]:
    """The output and the three gradients for a fixed direction."""
    out = function(*tensors, adjacency, *rest, **options)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, tensors, direction)]


def differ(got: list[Tensor], wanted: list[Tensor], floor: float = 1.0) -> float:
    """The largest difference, each tensor by its own scale, but by `floor` at least: scores' gradients may cancel to 0
    from terms of that size.
    """
    worst = 0.0
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        if b.numel():
            worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp(min=floor)))
    return worst


@needs_native
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    entries=st.integers(0, 300),
    heads=st.sampled_from([1, 2, 3, 4, 8]),
    channels=st.sampled_from([1, 2, 4, 5, 8, 16, 24, 33]),
    slope=st.sampled_from([0.0, 0.2, 1.0]),
    single=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_native_equals_torch(
    rows: int, columns: int, entries: int, heads: int, channels: int, slope: float, single: bool, seed: int
) -> None:
    adjacency = random_adjacency(rows, columns, entries, seed)
    tensors = operands(adjacency, heads, channels, torch.float32 if single else torch.float64, seed)
    got = results(attend, tensors, adjacency, slope)
    wanted = results(attend_torch, tensors, adjacency, slope)
    assert differ(got, wanted, floor=10.0 * channels**0.5) < (1e-5 if single else 1e-13)


@needs_native
def test_long_rows_and_far_scores() -> None:
    """The running maximum is raised many times in a row of many chunks, by more than exp could hold."""
    adjacency = random_adjacency(3, 500, 2000, 1)
    x, source, target = operands(adjacency, 8, 8, torch.float64, 2)
    source = (torch.linspace(-400, 400, 500, dtype=torch.float64)[:, None].expand(500, 8) + source.detach()).clone()
    tensors = (x, source.requires_grad_(), target)
    assert differ(results(attend, tensors, adjacency), results(attend_torch, tensors, adjacency)) < 1e-12


@needs_native
def test_the_comparison_notices_a_wrong_slope_and_a_lost_entry() -> None:
    adjacency = random_adjacency(20, 20, 100, 3)
    tensors = operands(adjacency, 2, 8, torch.float64, 3)
    got = results(attend, tensors, adjacency, 0.2)
    assert differ(got, results(attend_torch, tensors, adjacency, 0.2)) < 1e-12
    assert differ(got, results(attend_torch, tensors, adjacency, 0.21)) > 1e-3
    assert differ(got, results(attend_torch, tensors, random_adjacency(20, 20, 99, 3), 0.2)) > 1e-3


@needs_native
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_gradcheck(p: float) -> None:
    adjacency = random_adjacency(6, 5, 14, 4)
    tensors = operands(adjacency, 2, 3, torch.float64, 4)
    noise = Noise(5)

    def function(*inputs: Tensor) -> Tensor:
        return attend(*inputs, adjacency, 0.2, dropout=p, noise=noise)

    assert torch.autograd.gradcheck(function, tensors)


def test_empty_rows_give_zero() -> None:
    adjacency = Adjacency.from_csr(torch.tensor([0, 0, 1]), torch.tensor([0]), None, 1)
    x = torch.ones(1, 2, 3)
    out = attend(x, torch.zeros(1, 2), torch.zeros(2, 2), adjacency)
    assert torch.equal(out, torch.stack((torch.zeros(2, 3), torch.ones(2, 3))))


@needs_native
def test_blocks_equal_the_whole() -> None:
    """Row blocks give the rows; column gradients of row blocks add up to the whole's."""
    adjacency = random_adjacency(50, 50, 600, 5)
    x, source, target = operands(adjacency, 8, 8, torch.float64, 5)
    whole = results(attend, (x, source, target), adjacency)
    direction = torch.randn(whole[0].shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    sums = [torch.zeros_like(part) for part in whole[1:3]]
    for start, stop in ((0, 17), (17, 18), (18, 50)):
        part = target.detach()[start:stop].requires_grad_()
        out = attend(x, source, part, adjacency.rows_between(start, stop))
        d_x, d_source, d_target = torch.autograd.grad(out, (x, source, part), direction[start:stop])
        assert differ([out.detach(), d_target], [whole[0][start:stop], whole[3][start:stop]]) < 1e-12
        sums[0] += d_x
        sums[1] += d_source
    assert differ(sums, whole[1:3]) < 1e-12


@needs_native
def test_column_block_equals_torch() -> None:
    block = random_adjacency(30, 40, 500, 6).columns_between(9, 31)
    tensors = operands(block, 2, 8, torch.float64, 6)
    assert differ(results(attend, tensors, block), results(attend_torch, tensors, block)) < 1e-12


@needs_native
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_dropout_equals_torch_and_is_drawn_by_vertex_pair(heads: int) -> None:
    adjacency = random_adjacency(40, 40, 700, 8)
    tensors = operands(adjacency, heads, 8, torch.float64, 8)
    noise, p = Noise(3, epoch=2, layer=1), 0.6
    got = results(attend, tensors, adjacency, dropout=p, noise=noise)
    keys = row_keys(noise.key("attention"), torch.arange(40))
    oracle = (0.2, drop_threshold(p), 1 / (1 - p), keys, None)
    assert differ(got, results(attend_torch, tensors, adjacency, *oracle)) < 1e-12
    plain = results(attend, tensors, adjacency)
    assert differ(got, plain) > 1e-3

    # the same draw for a block of rows and columns, given the vertices' ids
    block, ids = adjacency.rows_between(10, 25), torch.arange(40)
    out = attend(
        tensors[0],
        tensors[1],
        tensors[2][10:25],
        block,
        dropout=p,
        noise=Noise(3, epoch=2, layer=1, vertices=ids[10:25]),
        source_vertices=ids,
    )
    assert torch.equal(out, got[0][10:25])


def test_dropout_keeps_the_expected_sum() -> None:
    """Over many draws, the mean over epochs approaches the result without dropout."""
    adjacency = random_adjacency(10, 10, 60, 9)
    x, source, target = (tensor.detach() for tensor in operands(adjacency, 1, 4, torch.float64, 9))
    wanted = attend(x, source, target, adjacency)
    draws = [attend(x, source, target, adjacency, dropout=0.5, noise=Noise(1, epoch=e)) for e in range(2000)]
    spread = torch.stack(draws).std(0) / 2000**0.5
    assert bool(((torch.stack(draws).mean(0) - wanted).abs() <= 5 * spread + 1e-12).all())


@needs_native
def test_same_bits_for_any_number_of_threads() -> None:
    adjacency = random_adjacency(300, 300, 5000, 10)
    tensors = operands(adjacency, 8, 8, torch.float32, 10)
    before = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(results(attend, tensors, adjacency))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_wrong_shapes_are_named() -> None:
    adjacency = random_adjacency(4, 5, 6, 11)
    with pytest.raises(ConfigError, match="x has shape"):
        attend(torch.zeros(4, 1, 2), torch.zeros(5, 1), torch.zeros(4, 1), adjacency)
    with pytest.raises(ConfigError, match="target_score"):
        attend(torch.zeros(5, 1, 2), torch.zeros(5, 1), torch.zeros(5, 1), adjacency)
    with pytest.raises(ConfigError, match="source_vertices"):
        attend(
            torch.zeros(5, 1, 2),
            torch.zeros(5, 1),
            torch.zeros(4, 1),
            adjacency,
            dropout=0.5,
            noise=Noise(0, vertices=torch.arange(4)),
        )
