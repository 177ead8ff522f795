"""Gradients of rows that several blocks read, added up in one tensor: equal to autograd's on the whole matrix."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from torch import Tensor

from trisect import ops
from trisect.graph.adjacency import Adjacency
from trisect.native import library
from trisect.ops.message import Message
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


FUNCTIONS = {
    "sum": lambda x, block: ops.aggregate(x, block),
    "mean": lambda x, block: ops.aggregate(x, block, "mean"),
    "convolve": lambda x, block: ops.convolve(x, block, relu=True),
    "convolve_dense": lambda x, block: ops.convolve_dense(x, block, draw(7, WIDTH), relu=True),
}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dirty", [True, False])
def test_blocks_together_give_the_gradient_of_the_whole(
    name: str, native: bool, dirty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native and not library.available():
        pytest.skip("the native kernels are not built")
    function, graph = FUNCTIONS[name], matrix()
    if not native:
        for module in ("spmm.sums", "_finish"):
            monkeypatch.setattr(sys.modules[f"trisect.ops.{module}"], "available", lambda: False)
    whole = draw(N, WIDTH).requires_grad_()
    out = function(whole, graph)
    above = draw(*out.shape, seed=3)
    out.backward(above)
    before = torch.full((N, WIDTH), float("nan") if dirty else 0.0, dtype=torch.float64)
    collector = Collector.of(before)
    collector.blank = dirty
    for low, high in itertools.pairwise(BOUNDS):
        rows = draw(N, WIDTH).requires_grad_()
        function(Message(rows, sink=collector), graph.rows_between(low, high)).backward(above[low:high])
        assert rows.grad is None
    assert whole.grad is not None
    difference = (collector.rows() - whole.grad).abs().max()
    assert float(difference) < 1e-12
    assert float((collector.rows() - 1.001 * whole.grad).abs().max()) > 1e-5


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
