"""Rows as int8: the native kernels against torch's operations, bit for bit."""

from __future__ import annotations

import pytest
import torch

from trisect.native.library import available
from trisect.ops.quantise import dequantise, dequantise_torch, quantise, quantise_torch

pytestmark = pytest.mark.skipif(not available(), reason="the native kernels are not built")


def rows(count: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count * 1000 + width)
    x = torch.randn(count, width, generator=generator) * torch.logspace(-44, 38, count)[:, None]
    x[count // 2] = 0.0
    return x


@pytest.mark.parametrize("width", [1, 3, 8, 33, 100])
@pytest.mark.parametrize("threads", [1, 2])
def test_bytes_are_those_of_torch(width: int, threads: int) -> None:
    x, key = rows(200, width), (1 << 63) + 12345
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        message = quantise(x, key)
        assert message.equal(quantise_torch(x, key))
        assert not message.equal(quantise_torch(x, key + 1))
        assert dequantise(message, torch.float32).equal(dequantise_torch(message, torch.float32))
    finally:
        torch.set_num_threads(before)


def test_some_rows_of_a_wider_matrix_into_a_place() -> None:
    wide = rows(60, 20)
    x, which = wide[:, 3:15], torch.tensor([5, 59, 0, 5, 31])
    place = torch.empty(len(which), 12 + 4, dtype=torch.int8)
    assert quantise(x, 7, which=which, out=place) is place
    assert place.equal(quantise_torch(x[which], 7))
    assert not place.equal(quantise_torch(x[which.flip(0)], 7))
    turned = rows(12, 60).t()
    assert quantise(turned, 7).equal(quantise_torch(turned, 7))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_take_the_way_of_torch(dtype: torch.dtype) -> None:
    x = rows(30, 9)[5:25].to(dtype)
    place = torch.empty(20, 13, dtype=torch.int8)
    assert quantise(x, 3, out=place).equal(quantise_torch(x, 3))
    assert dequantise(place, dtype).dtype == dtype


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_not_hidden(value: float) -> None:
    x = torch.ones(3, 9)
    x[1, 4] = value
    for message in (quantise(x, 1), quantise_torch(x, 1)):
        back = dequantise(message, torch.float32)
        assert bool(back[1].isnan().all())
        assert bool(back[[0, 2]].isfinite().all())
