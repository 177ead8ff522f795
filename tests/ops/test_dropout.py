"""Dropout: the native kernel draws what the torch oracle draws, to the bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.errors import ConfigError, DataError
from trisect.noise import Noise
from trisect.ops.dropout import dropout, dropout_torch


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(0, 40),
    features=st.integers(1, 70),
    p=st.floats(0.01, 0.99),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 2**63),
    named=st.booleans(),
    sliced=st.booleans(),
)
def test_equals_the_oracle(rows, features, p, dtype, seed, named, sliced):
    generator = torch.Generator().manual_seed(seed % 1000)
    vertices = torch.randint(0, 2**40, (rows,), generator=generator) if named else None
    noise = Noise(seed, epoch=3, layer=2, step=1, vertices=vertices)
    x = torch.randn(rows, features + 3, generator=generator).to(dtype)
    x = x[:, 2 : 2 + features] if sliced else x[:, :features].contiguous()
    assert torch.equal(dropout(x, p, noise), dropout_torch(x, p, noise))
    other = Noise(seed, epoch=4, layer=2, step=1, vertices=vertices)
    if rows * features > 400 and 0.2 < p < 0.8:
        assert not torch.equal(dropout(x, p, noise), dropout_torch(x, p, other))


def test_gradient_passes_where_the_value_did():
    noise = Noise(7)
    x = torch.randn(50, 33, dtype=torch.float64, requires_grad=True)
    out = dropout(x, 0.3, noise)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, dropout_torch(torch.ones_like(x), 0.3, noise))
    assert torch.equal(gradient != 0, out != 0)
    assert torch.autograd.gradcheck(lambda y: dropout(y, 0.3, noise), (x[:4, :5].detach().requires_grad_(),))


def test_rows_keep_their_draws_in_any_order():
    noise = Noise(1, vertices=torch.arange(100))
    order = torch.randperm(100)
    x = torch.randn(100, 16)
    moved = dropout(x[order], 0.5, Noise(1, vertices=order))
    assert torch.equal(moved, dropout(x, 0.5, noise)[order])


def test_share_of_zeros():
    out = dropout(torch.ones(2000, 100), 0.25, Noise(3))
    assert abs(float((out == 0).float().mean()) - 0.25) < 0.005
    assert abs(float(out.mean()) - 1.0) < 0.01


def test_evaluation_returns_x_itself():
    x = torch.ones(3, 3)
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, Noise(0)) is x


@pytest.mark.parametrize("p", [1.0, -0.1, 2.0])
def test_a_probability_out_of_range_is_refused(p):
    with pytest.raises(ConfigError, match="dropout is"):
        dropout(torch.ones(2, 2), p, Noise(0))


def test_ids_must_fit_the_rows():
    with pytest.raises(DataError, match="3 ids"):
        dropout(torch.ones(2, 2), 0.5, Noise(0, vertices=torch.arange(3)))
