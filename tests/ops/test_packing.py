"""Matrices without their zeros: every bit comes back."""

from __future__ import annotations

import pytest
import torch

from trisect.native.library import available
from trisect.ops.packing import Slabs, pack

pytestmark = pytest.mark.skipif(not available(), reason="the native kernels are not built")


def sparse(rows: int, width: int, dtype: torch.dtype, share: float = 0.25) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * 1000 + width)
    x = torch.randn(rows, width, generator=generator, dtype=dtype)
    return torch.where(torch.rand(rows, width, generator=generator) < share, x, torch.zeros((), dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 7, 8, 9, 16, 100])
@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_packed_comes_back(dtype: torch.dtype, width: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        slabs = Slabs()
        given = [sparse(rows, width, dtype) for rows in (64, 65, 200, 1000)]
        packed = [pack(x, slabs) for x in given]
        for x, found in zip(given, packed, strict=True):
            assert found is not None
            assert torch.equal(found.unpack(), x)
            changed = x.clone()
            changed[-1, -1] += 1
            assert not torch.equal(found.unpack(), changed)
    finally:
        torch.set_num_threads(before)


def test_three_quarters_of_zeros_take_a_third_of_the_memory() -> None:
    x = sparse(4000, 100, torch.float32)
    packed = pack(x, Slabs())
    assert packed is not None
    assert packed.nbytes < x.nbytes / 3


def test_unusual_values_and_strides_are_kept() -> None:
    x = torch.zeros(100, 20)
    x[3, 4], x[50, 0], x[99, 19], x[7, 7] = float("nan"), -0.0, float("inf"), 1e-45
    packed = pack(x, Slabs())
    assert packed is not None
    assert torch.equal(packed.unpack().view(torch.int32), x.view(torch.int32))
    wide = sparse(100, 40, torch.float32)
    part = pack(wide[:, 3:20], Slabs())
    assert part is not None
    assert torch.equal(part.unpack(), wide[:, 3:20])


def test_what_has_few_zeros_is_left_alone() -> None:
    assert pack(torch.ones(100, 20), Slabs()) is None
    # the rows that are looked at first are zero, the others are not
    x = torch.ones(64 * 50, 20)
    x[::50] = 0
    assert pack(x, Slabs()) is None
    assert pack(torch.zeros(0, 20), Slabs()) is None
    assert pack(torch.zeros(20, 20, dtype=torch.int64), Slabs()) is None
