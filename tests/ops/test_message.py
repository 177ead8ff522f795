"""A message's parts, as the sums over it and its own rows see them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trisect import ops
from trisect.errors import DataError
from trisect.graph.adjacency import Adjacency
from trisect.ops.message import Message

ROWS, COLUMNS, WIDTH = 12, 40, 9


def block() -> Adjacency:
    generator = torch.Generator().manual_seed(3)
    dense = torch.rand(ROWS + 5, COLUMNS, generator=generator, dtype=torch.float64)
    dense = dense * (torch.rand(dense.shape, generator=generator) < 0.3)
    row, column = torch.nonzero(dense, as_tuple=True)
    pointers = torch.zeros(dense.shape[0] + 1, dtype=torch.int64)
    pointers[1:] = torch.cumsum(torch.bincount(row, minlength=dense.shape[0]), 0)
    return Adjacency.from_csr(pointers, column, dense[row, column], COLUMNS).rows_between(5, 5 + ROWS)


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SUMS: dict[str, Callable[[Tensor | Message], Tensor]] = {
    "sum": lambda x: ops.aggregate(x, block()),
    "mean": lambda x: ops.aggregate(x, block(), "mean"),
    "convolve": lambda x: ops.convolve(x, block(), bias=draw(WIDTH), relu=True),
    "convolve_dense": lambda x: ops.convolve_dense(x, block(), draw(7, WIDTH), relu=True),
}


@pytest.mark.parametrize("name", SUMS)
def test_last_rows_are_read_beyond(name: str) -> None:
    x, function = draw(COLUMNS, WIDTH), SUMS[name]
    holes = x.clone()
    holes[25:] = float("nan")
    assert torch.equal(function(Message(holes, x[25:].clone())), function(x))
    assert torch.equal(function(Message(x)), function(x))
    assert not torch.allclose(function(Message(x, x[25:] + 1)), function(x))


def test_the_maximum_refuses_rows_that_it_would_not_read() -> None:
    x = draw(COLUMNS, WIDTH)
    assert ops.aggregate(Message(x), block(), "max").equal(ops.aggregate(x, block(), "max"))
    with pytest.raises(DataError, match=r"does not read Message\.last_rows"):
        ops.aggregate(Message(x, x[25:]), block(), "max")


def test_own_rows() -> None:
    x, apart = draw(COLUMNS, WIDTH), draw(ROWS, WIDTH, seed=2)
    assert Message(x).of_block(block()).equal(x[5 : 5 + ROWS])
    assert Message(x, own=lambda: apart).of_block(block()) is apart
