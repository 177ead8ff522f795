"""Weighted sums over a window of frames: the native kernel against plain torch, each gradient."""

from __future__ import annotations

import pytest
import torch

from trisect.native.library import available
from trisect.ops.band import band, band_torch

if not available():
    pytest.skip("the native kernels are not used", allow_module_level=True)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("steps", "rows"), [(1, 3), (2, 1100), (5, 700), (9, 40)])
def test_sums_and_gradients_are_those_of_a_dense_product(steps: int, rows: int, window: int) -> None:
    values, gradients = {}, {}
    for name, function in (("native", band), ("torch", band_torch)):
        frames, before, weights = inputs(steps, rows, window)
        out, last = function(frames, before, weights)
        # both results are read, as where a timeline goes on in another run
        (out.square().sum() + (3.0 * last).square().sum()).backward()
        values[name], gradients[name] = (out, last), (frames.grad, before.grad if window > 1 else None)
    torch.testing.assert_close(values["native"], values["torch"], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients["native"], gradients["torch"], rtol=1e-12, atol=1e-12)


def test_a_wrong_weight_is_noticed() -> None:
    frames, before, weights = inputs(5, 40, 3)
    other = weights.clone()
    other[2, 1] += 1e-6
    assert not torch.allclose(band(frames, before, weights)[0], band_torch(frames, before, other)[0], rtol=1e-10)


def test_a_state_that_nobody_reads_and_one_that_is_read_alone() -> None:
    for read in (0, 1):
        found = []
        for function in (band, band_torch):
            frames, before, weights = inputs(4, 30, 3)
            function(frames, before.detach(), weights)[read].square().sum().backward()
            found.append(frames.grad)
        torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


def test_frames_that_do_not_lie_in_order_and_single_precision() -> None:
    frames, before, weights = inputs(6, 64, 4)
    turned = frames.detach().float().transpose(1, 2).contiguous().transpose(1, 2)
    out, _ = band(turned, before.float(), weights)
    torch.testing.assert_close(out.double(), band_torch(frames, before, weights)[0], rtol=1e-5, atol=1e-5)


def inputs(steps: int, rows: int, window: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Frames, those before them and weights, drawn anew and alike each time."""
    generator = torch.Generator().manual_seed(steps + window)
    frames = torch.randn(steps, rows, 3, dtype=torch.float64, generator=generator).requires_grad_()
    before = torch.randn(window - 1, rows, 3, dtype=torch.float64, generator=generator).requires_grad_()
    return frames, before, torch.randn(steps, window, dtype=torch.float64, generator=generator)
