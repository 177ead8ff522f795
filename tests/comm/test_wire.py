from __future__ import annotations

import pytest
import torch

from trisect.comm.wire import decode, encode, encoded_bytes, form

ROWS, WIDTH = 50, 33


def rows(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
    x *= torch.logspace(-6, 6, ROWS, dtype=torch.float64)[:, None]
    x[7] = 0.0
    return x.to(dtype)


@pytest.mark.parametrize("wire", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_messages_have_the_size_of_the_formula(wire: str, dtype: torch.dtype) -> None:
    message = encode(rows(dtype), wire, 3)  # type: ignore[arg-type]
    shape, kind = form(ROWS, WIDTH, wire, dtype)  # type: ignore[arg-type]
    assert message.nbytes == encoded_bytes(ROWS, WIDTH, wire, dtype)  # type: ignore[arg-type]
    assert message.shape == shape
    assert message.dtype == kind


def test_float32_is_as_it_is() -> None:
    x = rows(torch.float64)
    assert decode(encode(x, "float32", 0), "float32", torch.float64).equal(x)


@pytest.mark.parametrize(("wire", "bound"), [("bfloat16", 2.0**-8), ("int8", 1.001 / 127)])
def test_the_error_is_bounded_by_the_row(wire: str, bound: float) -> None:
    x = rows()
    error = (decode(encode(x, wire, 5), wire, x.dtype) - x).abs()  # type: ignore[arg-type]
    largest = x.abs().amax(1, keepdim=True)
    assert bool((error <= bound * largest).all())
    assert not bool((error <= bound / 20 * largest).all())
    assert float(error[7].sum()) == 0.0


def test_int8_rounds_without_bias_and_by_its_key() -> None:
    x = rows()
    scale = x.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
    draws = torch.stack([decode(encode(x, "int8", key), "int8", x.dtype) for key in range(400)])
    assert not draws[0].equal(draws[1])
    assert draws[0].equal(decode(encode(x, "int8", 0), "int8", x.dtype))
    # the mean of 400 draws lies within 5 of its standard deviations, at most half a step of 1 each
    bias = ((draws.mean(0) - x) / scale).abs().max()
    assert float(bias) < 5 * 0.5 / 400**0.5
    nearest = torch.round(x / scale) * scale
    assert float(((nearest - x) / scale).abs().max()) > 5 * 0.5 / 400**0.5
