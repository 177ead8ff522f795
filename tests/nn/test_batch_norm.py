"""`BatchNorm` against torch.nn.BatchNorm1d: outputs, gradients and running statistics, in training and evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trisect.errors import ConfigError
from trisect.nn import BatchNorm
from trisect.noise import Noise
from trisect.views.trace import ring
from trisect.views.view import View

ROWS, CHANNELS = 37, 6
Options = dict[str, Any]
OPTIONS: list[Options] = [
    {},
    {"momentum": None},
    {"momentum": 0.37, "eps": 0.1},
    {"affine": False},
    {"track_running_stats": False},
    {"track_running_stats": False, "affine": False},
]


def both(dtype: torch.dtype, **options: Any) -> tuple[BatchNorm, nn.BatchNorm1d]:
    own, theirs = BatchNorm(CHANNELS, **options).to(dtype), nn.BatchNorm1d(CHANNELS, **options).to(dtype)
    if own.weight is not None and own.bias is not None:
        nn.init.normal_(own.weight)
        nn.init.normal_(own.bias)
        theirs.load_state_dict(own.state_dict())
    return own, theirs


def view_of(dtype: torch.dtype, *, trains: bool, steps: int = 0) -> View:
    matrix = ring(ROWS, 3, dtype)
    return View.whole([matrix] * steps if steps else matrix, Noise(0, 1) if trains else None)


def gradients(out: Tensor, weights: Tensor, x: Tensor, norm: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad((out * weights).sum(), [x, *norm.parameters()]))


def largest(ours: list[Tensor], theirs: list[Tensor]) -> float:
    return max(float((a.double() - b.double()).abs().max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("relu", [False, True])
def test_a_graph(options: Options, relu: bool) -> None:
    """Three passes in training, and one in evaluation."""
    torch.manual_seed(3)
    own, theirs = both(torch.float64, **options)
    for trains in (True, True, True, False):
        theirs.train(trains)
        x, weights = torch.randn(2, ROWS, CHANNELS, dtype=torch.float64) * 3 + 5
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, z = own(a, view_of(torch.float64, trains=trains), relu=relu), theirs(b)
        z = torch.relu(z) if relu else z
        assert largest([y], [z]) < 1e-12
        assert largest(gradients(y, weights, a, own), gradients(z, weights, b, theirs)) < 1e-11
        assert own.state_dict().keys() == theirs.state_dict().keys()
        for name, value in theirs.state_dict().items():
            assert float((own.state_dict()[name] - value).abs().max()) < 1e-12, name
            assert own.state_dict()[name].dtype == value.dtype


@pytest.mark.parametrize("options", OPTIONS)
def test_a_timeline_is_step_by_step(options: Options) -> None:
    """Statistics are those of a step; each step updates the running ones, in order."""
    torch.manual_seed(4)
    own, theirs = both(torch.float64, **options)
    for trains in (True, True, False):
        theirs.train(trains)
        scale = torch.arange(1, 6, dtype=torch.float64)[:, None, None]
        x, weights = (torch.randn(5, ROWS, CHANNELS, dtype=torch.float64) * scale + scale for _ in range(2))
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        y = own(a, view_of(torch.float64, trains=trains, steps=5))
        z = torch.stack([theirs(frame) for frame in b])
        assert largest([y], [z]) < 1e-12
        assert largest(gradients(y, weights, a, own), gradients(z, weights, b, theirs)) < 1e-10
        for name, value in theirs.state_dict().items():
            assert float((own.state_dict()[name] - value).abs().max()) < 1e-12, name
    if options == {}:  # the negative control: steps in another order
        again, _ = both(torch.float64)
        again(a.flip(0), view_of(torch.float64, trains=True, steps=5))
        other, _ = both(torch.float64)
        other(a, view_of(torch.float64, trains=True, steps=5))
        assert largest([again.running_mean], [other.running_mean]) > 0.01  # type: ignore[list-item]


def test_a_large_mean_costs_no_digits() -> None:
    """In float32 the variance of rows far from 0 is as exact as that of torch; E[x²] - E[x]² would be noise."""
    torch.manual_seed(5)
    own, _ = both(torch.float32)
    x = torch.randn(4000, CHANNELS) + 3000.0
    exact = x.double().var(0)
    view = View.whole(ring(4000, 3, torch.float32), Noise(0, 1))
    weight, bias = own.weight.detach().double(), own.bias.detach().double()  # type: ignore[union-attr]
    wanted = (x.double() - x.double().mean(0)) / (x.double().var(0, unbiased=False) + 1e-5).sqrt() * weight + bias
    assert float((own(x, view).double() - wanted).abs().max()) < 1e-5
    assert own.running_var is not None
    assert float(((own.running_var.double() - 0.9) / 0.1 / exact - 1.0).abs().max()) < 1e-5
    naive = (x * x).mean(0) - x.mean(0) ** 2
    assert float((naive.double() / exact - 1.0).abs().max()) > 0.01


@pytest.mark.parametrize("steps", [0, 3])
def test_dropout_is_by_place(steps: int) -> None:
    """What is dropped behind a norm is what a view drops of its result."""
    torch.manual_seed(6)
    own, _ = both(torch.float64)
    shape = (steps, ROWS, CHANNELS) if steps else (ROWS, CHANNELS)
    x, weights = torch.randn(2, *shape, dtype=torch.float64)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    view = view_of(torch.float64, trains=True, steps=steps)
    y = own(a, view_of(torch.float64, trains=True, steps=steps), relu=True, p=0.4)
    z = view.dropout(torch.relu(own(b, view)), 0.4)
    assert 0.6 < float((y == 0).double().mean()) < 0.8
    assert largest([y], [z]) < 1e-12
    assert largest(gradients(y, weights, a, own), gradients(z, weights, b, own)) < 1e-11


def test_a_frozen_norm_uses_running_statistics() -> None:
    own, _ = both(torch.float64)
    own.eval()
    x = torch.randn(ROWS, CHANNELS, dtype=torch.float64)
    y = own(x, view_of(torch.float64, trains=True))
    assert torch.equal(own.running_mean, torch.zeros(CHANNELS, dtype=torch.float64))  # type: ignore[arg-type]
    assert torch.equal(y, own(x, view_of(torch.float64, trains=False)))


def test_one_row_is_refused() -> None:
    matrix = ring(1, 1, torch.float32)
    with pytest.raises(ConfigError, match=r"BatchNorm\(6\) has one row in training"):
        BatchNorm(CHANNELS)(torch.randn(1, CHANNELS), View.whole(matrix, Noise(0, 1)))
    assert BatchNorm(CHANNELS)(torch.randn(1, CHANNELS), View.whole(matrix)).shape == (1, CHANNELS)
