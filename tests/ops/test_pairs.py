"""Scores of pairs against the plain form of them: values, every gradient, any threads, any width."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional

from trisect import ops
from trisect.errors import DataError
from trisect.native.library import available
from trisect.ops.backward import run_backward
from trisect.plan.storages import StorageLog

ROWS, PAIRS = 37, 500


@pytest.fixture(autouse=True)
def several_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def tensors(channels: int, hidden: int, outputs: int, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(channels + hidden)
    shapes = {
        "z": (ROWS, channels),
        "weight_in": (hidden, 2 * channels),
        "bias_in": (hidden,),
        "weight": (outputs, hidden),
        "bias": (outputs,),
    }
    return {
        name: torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for name, shape in shapes.items()
    }


def ends() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    # some rows are in many pairs, and some in none
    src = torch.randint(0, ROWS, (PAIRS,), generator=generator) // 2
    return src, torch.randint(0, ROWS, (PAIRS,), generator=generator)


def plain(z: Tensor, src: Tensor, dst: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return functional.linear(torch.relu(functional.linear(torch.cat([z[src], z[dst]], 1), w1, b1)), w2, b2)


def gradients(scores: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    weights = torch.arange(1.0, scores.numel() + 1.0, dtype=scores.dtype).view_as(scores).sin()
    return dict(zip(inputs, torch.autograd.grad((scores * weights).sum(), list(inputs.values())), strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("channels", "hidden", "outputs"), [(8, 64, 1), (5, 7, 3), (3, 1, 2), (16, 19, 1)])
def test_a_small_network_on_pairs(channels: int, hidden: int, outputs: int, dtype: torch.dtype) -> None:
    inputs = tensors(channels, hidden, outputs, dtype)
    src, dst = ends()
    z, *rest = inputs.values()
    found, wanted = ops.score_pairs(z, src, dst, *rest), plain(z, src, dst, *rest)
    tolerance = 1e-11 if dtype is torch.float64 else 2e-3
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)
    mine, theirs = gradients(found, inputs), gradients(wanted, inputs)
    for name in inputs:
        torch.testing.assert_close(mine[name], theirs[name], atol=tolerance, rtol=tolerance)
    # the negative control: a few pairs with another end have other gradients
    dst[:40] = (dst[:40] + 1) % ROWS
    other = gradients(plain(z, src, dst, *rest), inputs)
    assert (mine["z"] - other["z"]).abs().max() > 1e-2


@pytest.mark.parametrize("channels", [1, 8, 21])
def test_products_of_pairs(channels: int) -> None:
    generator = torch.Generator().manual_seed(2)
    inputs = {
        name: torch.randn(ROWS, channels, generator=generator, dtype=torch.float64).requires_grad_()
        for name in ("left", "right")
    }
    left, right = inputs.values()
    src, dst = ends()
    found, wanted = ops.multiply_pairs(left, right, src, dst), (left[src] * right[dst]).sum(1)
    torch.testing.assert_close(found, wanted, atol=1e-11, rtol=0)
    theirs = gradients(wanted, inputs)
    for name, mine in gradients(found, inputs).items():
        torch.testing.assert_close(mine, theirs[name], atol=1e-11, rtol=0)
    # one tensor on both sides
    both = {"z": left}
    mine, again = gradients(ops.multiply_pairs(left, left, src, dst), both), (left[src] * left[dst]).sum(1)
    torch.testing.assert_close(mine["z"], gradients(again, both)["z"], atol=1e-11, rtol=0)


def test_threads_change_no_bit() -> None:
    if not available():
        pytest.skip("the kernels are not built")
    inputs = tensors(8, 64, 1, torch.float32)
    src, dst = ends()
    z, *rest = inputs.values()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        scores = ops.score_pairs(z, src, dst, *rest)
        results.append([scores.detach(), *gradients(scores, inputs).values()])
    for one in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], one, strict=True))


def test_no_pairs_and_wrong_pairs() -> None:
    inputs = tensors(8, 16, 1, torch.float32)
    z, *rest = inputs.values()
    none = torch.zeros(0, dtype=torch.int64)
    scores = ops.score_pairs(z, none, none, *rest)
    assert scores.shape == (0, 1)
    assert all(not gradient.any() for gradient in gradients(scores, inputs).values())
    src, dst = ends()
    with pytest.raises(DataError, match="vector of rows"):
        ops.score_pairs(z, src, dst[:-1], *rest)
    for name, wrong in (("weight", rest[2][:, :-1]), ("bias", rest[3][:0]), ("weight_in", rest[0][:, 1:])):
        values = {**dict(zip(("weight_in", "bias_in", "weight", "bias"), rest, strict=True)), name: wrong}
        with pytest.raises(DataError, match=f"{name} has the shape"):
            ops.score_pairs(z, src, dst, **values)
    with pytest.raises(DataError, match="right has the shape"):
        ops.multiply_pairs(z, z[:, 1:], src, dst)
    if available():
        dst[3] = ROWS
        with pytest.raises(DataError, match=f"pairs name rows from 0 to {ROWS}; there are rows 0 to {ROWS - 1}"):
            ops.score_pairs(z, src, dst, *rest)


def test_nothing_as_large_as_the_rows_of_pairs_is_made() -> None:
    if not available():
        pytest.skip("the kernels are not built")
    inputs = tensors(4, 64, 1, torch.float32)
    z, *rest = inputs.values()
    src, dst = (torch.arange(20_000) % ROWS for _ in range(2))
    most = []
    for score in (ops.score_pairs, plain):
        with StorageLog((*inputs.values(), src, dst)) as log:
            run_backward([(get_gradient_edge(score(z, src, dst, *rest)), torch.ones(20_000, 1))])
        most.append(log.highest())
    assert most[0] < 20_000 * 64 * 4 / 4 < most[1]


def test_the_plain_form_serves_other_types() -> None:
    inputs = tensors(4, 6, 1, torch.float64)
    z, *rest = (tensor.detach().bfloat16() for tensor in inputs.values())
    src, dst = ends()
    wanted = plain(*(z.float(), src, dst), *(one.float() for one in rest))
    torch.testing.assert_close(ops.score_pairs(z, src, dst, *rest).float(), wanted, atol=0.5, rtol=0.1)
