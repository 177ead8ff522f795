"""Sums over rows the last of which lie elsewhere, as those of a halo do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from trisect.graph.adjacency import Adjacency
from trisect.native.library import available
from trisect.ops.spmm.sums import aggregate_into, reads_last_rows

ROWS, COLUMNS, WIDTH, OWN = 12, 40, 9, 25


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


def summed(x: Tensor, last_rows: Tensor | None = None, **options: Any) -> Tensor:
    out = torch.full((ROWS, x.shape[1]), float("nan"), dtype=x.dtype)
    aggregate_into(out, x, block(), last_rows=last_rows, **options)
    return out


SUMS: dict[str, dict[str, Any]] = {
    "sum": {},
    "mean": {"row_scale": block().inverse_counts(torch.float64)},
    "relu": {"bias": draw(WIDTH), "relu": True},
    "mixed": {"add": draw(ROWS, WIDTH, seed=4), "alpha": 0.9, "beta": 0.1},
}


@pytest.mark.parametrize("last", ["beside", "too few", "of other strides"])
@pytest.mark.parametrize("name", SUMS)
def test_last_rows_are_read_beyond(name: str, last: str) -> None:
    """Read by the kernel itself, or from a copy where it cannot."""
    x, split = draw(COLUMNS, WIDTH), COLUMNS - 2 if last == "too few" else OWN
    holes = x.clone()
    holes[split:] = float("nan")
    more = x[split:].clone() if last != "of other strides" else x[split:].t().contiguous().t()
    assert reads_last_rows(holes, more) == (last == "beside" and available())
    wanted = summed(x, **SUMS[name])
    assert torch.equal(summed(holes, more, **SUMS[name]), wanted)
    assert torch.equal(holes[:split], x[:split])
    assert bool(holes[split:].isnan().all())
    assert not torch.allclose(summed(x, more + 1, **SUMS[name]), wanted)


def test_no_last_rows() -> None:
    x = draw(COLUMNS, WIDTH)
    assert torch.equal(summed(x, x[:0]), summed(x))
