"""Fused linear maps against the same in plain torch operations: values and all gradients, at any width."""

from __future__ import annotations

import itertools

import pytest
import torch

from trisect import ops
from trisect.errors import ConfigError, DataError
from trisect.native import library
from trisect.noise import Noise
from trisect.ops import fused

pytestmark = pytest.mark.skipif(not library.available(), reason="the native kernels are not built")

WIDTHS = [(17, 9), (100, 100), (1, 1), (33, 5), (8, 24), (130, 40)]
ENDINGS = list(itertools.product((False, True), (0.0, 0.4)))
START, ROWS, COLUMNS = 50, 120, 300
IDS = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))[:ROWS]


def draw(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype)


def evaluate(function, tensors, monkeypatch, native):
    """The results and the gradients of all inputs, for a fixed gradient of the results."""
    with monkeypatch.context() as patch:
        if not native:
            patch.setattr(fused, "usable", lambda *tensors: False)
        inputs = [tensor.detach().clone().requires_grad_() for tensor in tensors]
        results = function(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        total = sum((result * draw(*result.shape, dtype=result.dtype)).sum() for result in results)
        return [*(result.detach() for result in results), *torch.autograd.grad(total, inputs)]


def difference(first, second):
    """The largest over all tensors of the difference, relative to the largest element."""
    return max(
        float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) if b.numel() else 0.0
        for a, b in zip(first, second, strict=True)
    )


def compare(function, tensors, monkeypatch, tolerance=1e-12):
    plain = evaluate(function, tensors, monkeypatch, native=False)
    assert difference(evaluate(function, tensors, monkeypatch, native=True), plain) < tolerance


@pytest.mark.parametrize(("inputs", "outputs"), WIDTHS)
@pytest.mark.parametrize(("relu", "p"), ENDINGS)
def test_dense(inputs, outputs, relu, p, monkeypatch):
    noise = Noise(3, vertices=IDS)
    tensors = [draw(ROWS, inputs), draw(outputs, inputs), draw(outputs), draw(ROWS, outputs)]
    compare(lambda x, w, b, a: ops.dense(x, w, b, add=a, relu=relu, p=p, noise=noise), tensors, monkeypatch)
    compare(
        lambda x, w: ops.dense(x, w.t(), relu=relu, p=p, noise=noise), [tensors[0], draw(inputs, outputs)], monkeypatch
    )


@pytest.mark.parametrize(("inputs", "outputs"), WIDTHS)
def test_branches(inputs, outputs, monkeypatch):
    tensors = [draw(COLUMNS, inputs), draw(outputs, inputs), draw(outputs, inputs) + 1.0]
    compare(lambda x, w, r: ops.branches(x, w, r, START, ROWS), tensors, monkeypatch)
    compare(lambda x, w, r: ops.branches(x, w, r, START, ROWS)[0] + 0 * r.sum(), tensors, monkeypatch)
    compare(lambda x, w, r: ops.branches(x, w, r, START, ROWS)[1] + 0 * w.sum(), tensors, monkeypatch)


def test_the_comparison_can_fail(monkeypatch):
    """Another dropout mask, and a gradient that lacks one factor, are found."""
    x, weight = draw(ROWS, 20), draw(12, 20)
    found = evaluate(
        lambda x, w: ops.dense(x, w, relu=True, p=0.4, noise=Noise(1)), [x, weight], monkeypatch, native=True
    )
    other = evaluate(
        lambda x, w: ops.dense(x, w, relu=True, p=0.4, noise=Noise(2)), [x, weight], monkeypatch, native=True
    )
    assert difference(found, other) > 0.1
    assert difference([found[0], found[1] * 1.001, found[2]], found) > 1e-4


def test_float32_and_strided_input(monkeypatch):
    wide = draw(ROWS, 64, dtype=torch.float32)
    weight, bias = draw(48, 30, dtype=torch.float32), draw(48, dtype=torch.float32)
    noise = Noise(9)
    for view in (lambda x: x[:, 10:40], lambda x: x.t()[10:40].t()):
        compare(
            lambda x, w, b, view=view: ops.dense(view(x), w, b, relu=True, p=0.5, noise=noise),
            [wide, weight, bias],
            monkeypatch,
            tolerance=1e-5,
        )


def test_only_wanted_gradients():
    x, weight, bias = draw(ROWS, 10), draw(6, 10), draw(6)
    for wanted in itertools.product((False, True), repeat=3):
        inputs = [tensor.clone().requires_grad_(want) for tensor, want in zip((x, weight, bias), wanted, strict=True)]
        out = ops.dense(*inputs, relu=True)
        assert out.requires_grad == any(wanted)
        if any(wanted):
            out.sum().backward()
        assert [tensor.grad is not None for tensor in inputs] == list(wanted)


def test_result_does_not_depend_on_the_threads(monkeypatch):
    x, weight = draw(5000, 20, dtype=torch.float32), draw(30, 20, dtype=torch.float32)

    def layer(x, w):
        return ops.dense(x, w, relu=True, p=0.3, noise=Noise(1))

    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(evaluate(layer, [x, weight], monkeypatch, native=True))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("rows", [0, 1, 31, 33])
def test_few_rows(rows, monkeypatch):
    compare(lambda x, w: ops.dense(x, w, relu=True), [draw(rows, 7), draw(3, 7)], monkeypatch)


def test_nan_is_not_hidden():
    x = torch.ones(4, 3)
    x[2, 1] = float("nan")
    assert bool(torch.isnan(ops.dense(x, torch.ones(5, 3), relu=True)[2]).all())


def test_wrong_shapes_are_refused():
    x, weight = draw(ROWS, 10), draw(6, 10)
    with pytest.raises(DataError, match="x has the shape"):
        ops.dense(x[:, :9], weight)
    with pytest.raises(DataError, match="bias"):
        ops.dense(x, weight, draw(7))
    with pytest.raises(DataError, match="add"):
        ops.dense(x, weight, add=draw(ROWS, 10))
    with pytest.raises(DataError, match="ids"):
        ops.dense(x, weight, p=0.5, noise=Noise(1, vertices=torch.arange(3)))
    with pytest.raises(DataError, match="rows 250"):
        ops.branches(draw(COLUMNS, 10), weight, weight, 250, 100)
    with pytest.raises(ConfigError, match=r"1\.0"):
        ops.dense(x, weight, p=1.0, noise=Noise(1))
