"""Gradients of rows that several blocks read, added up in one tensor: equal to that of the whole matrix."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.native import library
from trisect.ops.spmm.collect import Collector, add_rows
from trisect.ops.spmm.sums import aggregate_into

N, WIDTH = 60, 19
BOUNDS = [0, 25, 25, 31, 60]


def matrix(dtype: torch.dtype = torch.float64) -> Adjacency:
    generator = torch.Generator().manual_seed(2)
    dense = torch.rand(N, N, generator=generator, dtype=dtype)
    dense = dense * (torch.rand(N, N, generator=generator) < 0.04)
    row, column = torch.nonzero(dense, as_tuple=True)
    pointers = torch.zeros(N + 1, dtype=torch.int64)
    pointers[1:] = torch.cumsum(torch.bincount(row, minlength=N), 0)
    return Adjacency.from_csr(pointers, column, dense[row, column], N)


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("alpha", [1.0, 0.9])
@pytest.mark.parametrize("reads", ["all that is read", "some"])
def test_blocks_together_give_the_gradient_of_the_whole(
    reads: str, alpha: float, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native and not library.available():
        pytest.skip("the native kernels are not built")
    graph, above = matrix(), draw(N, WIDTH, seed=3)
    if not native:
        monkeypatch.setattr(sys.modules["trisect.ops.spmm.sums"], "available", lambda: False)
    wanted = alpha * graph.dense().t() @ above
    memory = torch.full((N, WIDTH), float("nan"), dtype=torch.float64)
    some = Adjacency.read_columns if reads == "some" else lambda block: (None, block.transpose())
    collector = Collector((N, WIDTH), torch.float64, reads=some, memory=lambda: memory)
    assert collector.blank
    for low, high in itertools.pairwise(BOUNDS):
        collector.add(above[low:high], graph.rows_between(low, high), alpha=alpha)
    found = collector.rows()
    assert found is memory
    assert not collector.blank
    assert float((found - wanted).abs().max()) < 1e-12
    assert float((found - 1.001 * wanted).abs().max()) > 1e-5


def test_a_sum_of_nothing_is_zero() -> None:
    assert torch.equal(Collector((3, 2), torch.float64).rows(), torch.zeros(3, 2, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_are_added_where_they_belong(dtype: torch.dtype) -> None:
    total, rows = draw(N, WIDTH).to(dtype), torch.tensor([3, 59, 0, 17])
    x = draw(4, WIDTH, seed=4).to(dtype)
    wanted = total.clone()
    wanted[rows] += x
    add_rows(total, rows, x)
    assert torch.allclose(total, wanted, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6)
    add_rows(total, rows[:0], x[:0])
    assert not torch.allclose(total, wanted + x.abs().max())


def test_targets_leave_other_rows_alone() -> None:
    graph, x = matrix(), draw(N, WIDTH)
    out = torch.full((N, WIDTH), 5.0, dtype=torch.float64)
    targets = torch.tensor([40, 2, 11])
    aggregate_into(out, x, graph.rows_between(10, 13), targets=targets)
    wanted = torch.full_like(out, 5.0)
    wanted[targets] = graph.dense()[10:13] @ x
    assert torch.allclose(out, wanted)
