"""Layer norm with relu and dropout against torch's own, sums and multiples in the pool against plain ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from trisect import ops
from trisect.native.library import available
from trisect.noise import Noise
from trisect.ops import memory

NOISE = Noise(3, epoch=1, layer=2)


def layer_norm(width: int, dtype: torch.dtype) -> nn.LayerNorm:
    norm = nn.LayerNorm(width, dtype=dtype)
    generator = torch.Generator().manual_seed(width)
    with torch.no_grad():
        norm.weight.normal_(generator=generator)
        norm.bias.normal_(generator=generator)
    return norm


def plain(x: Tensor, norm: nn.LayerNorm, relu: bool, p: float) -> Tensor:
    y = norm(x)
    return ops.dropout(torch.relu(y) if relu else y, p, NOISE)


def gradients(y: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.arange(1.0, y.numel() + 1.0, dtype=y.dtype).view_as(y).sin()
    return list(torch.autograd.grad((y * weights).sum(), inputs))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("relu", "p"), [(True, 0.5), (True, 0.0), (False, 0.3), (False, 0.0)])
@pytest.mark.parametrize(("rows", "width"), [(1500, 48), (7, 19), (3, 1), (0, 8)])
def test_norm_relu_and_dropout(rows: int, width: int, relu: bool, p: float, dtype: torch.dtype) -> None:
    norm = layer_norm(width, dtype)
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(1), dtype=dtype).requires_grad_()
    found, wanted = ops.normalise(x, norm, relu=relu, p=p, noise=NOISE), plain(x, norm, relu, p)
    tolerance = 1e-11 if dtype is torch.float64 else 1e-4
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)
    inputs = [x, norm.weight, norm.bias]
    for mine, theirs in zip(gradients(found, inputs), gradients(wanted, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, atol=tolerance * 100, rtol=tolerance)
    if rows > 7 and relu:
        # the negative control: without relu the gradients are others
        mine = gradients(ops.normalise(x, norm, relu=relu, p=p, noise=NOISE), [x])[0]
        assert (mine - gradients(plain(x, norm, False, p), [x])[0]).abs().max() > 1e-2


def test_columns_of_a_wider_tensor_and_threads() -> None:
    if not available():
        pytest.skip("the kernels are not built")
    norm, wide = layer_norm(16, torch.float32), torch.randn(2000, 40, generator=torch.Generator().manual_seed(1))
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        x = wide.clone().requires_grad_()
        y = ops.normalise(x[:, 4:20], norm, relu=True, p=0.5, noise=NOISE)
        results.append([y.detach(), *gradients(y, [x, norm.weight, norm.bias])])
    torch.set_num_threads(before)
    torch.testing.assert_close(results[0][0], plain(wide[:, 4:20], norm, True, 0.5).detach())
    for one in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], one, strict=True))


def test_other_types_and_norms_take_the_plain_form() -> None:
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    bare = nn.LayerNorm(8, elementwise_affine=False)
    torch.testing.assert_close(ops.normalise(x, bare, relu=True), torch.relu(bare(x)))
    half = nn.LayerNorm(8, dtype=torch.bfloat16)
    torch.testing.assert_close(ops.normalise(x.bfloat16(), half), half(x.bfloat16()))


@pytest.mark.parametrize("trained", [False, True])
def test_sums_and_multiples_come_from_the_pool(trained: bool) -> None:
    shape = (2048, memory.SMALLEST // 2048 // 4)
    generator = torch.Generator().manual_seed(4)
    a, b = (torch.randn(shape, generator=generator).requires_grad_() for _ in range(2))
    factor = torch.tensor([1.5]).requires_grad_(trained)
    found, wanted = ops.add(a, ops.scale(b, factor)), a + b * factor
    assert torch.equal(found, wanted)
    assert memory.is_pooled(found)
    inputs = [a, b, *([factor] if trained else [])]
    for mine, theirs in zip(gradients(found, inputs), gradients(wanted, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    bias = torch.randn(shape[1], generator=generator).requires_grad_()
    mine, theirs = gradients(ops.add(a, bias), [a, bias]), gradients(a + bias, [a, bias])
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)
    found, wanted = ops.elu(a), functional.elu(a)
    assert torch.equal(found, wanted)
    assert memory.is_pooled(found)
    torch.testing.assert_close(gradients(found, [a]), gradients(wanted, [a]))
    small = torch.ones(3, 2)
    assert torch.equal(ops.add(small, ops.scale(small, torch.tensor([2.0]))), small * 3)
