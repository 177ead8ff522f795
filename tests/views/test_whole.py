"""Verbs of one process, which are kernels with all that follows them, against `PlainView`: any width and ending."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1]))

from plain_view import PlainView
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import adjacency_from_edges, normalise
from trisect.native import library
from trisect.noise import Noise
from trisect.ops import _finish, aggregate
from trisect.ops.spmm import several, sums
from trisect.views.view import Neighbours, View

ROWS, STEPS = 70, 3
WIDTHS = [(17, 9), (100, 100), (1, 1), (33, 5), (8, 24), (130, 40)]
ENDINGS = list(itertools.product((False, True), (0.0, 0.4)))
Verb = Callable[..., Tensor]


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def matrix(seed: int, dtype: torch.dtype = torch.float64) -> Adjacency:
    generator = torch.Generator().manual_seed(seed)
    source, target = torch.randint(0, ROWS, (2, 5 * ROWS), generator=generator)
    weight = torch.rand(source.shape, generator=generator, dtype=torch.float64) + 0.1
    kept = target != 7  # a row that reads nothing
    made = adjacency_from_edges(source[kept], target[kept], weight[kept], ROWS, dtype=torch.float64)
    return normalise(made, "row", False).to(dtype)


def outcome(verb: Verb, view: Any, tensors: list[Tensor]) -> list[Tensor]:
    """Return the result and the gradients of all inputs, for a fixed gradient of the result."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    out = verb(view, *leaves)
    found = torch.autograd.grad(out, leaves, draw(*out.shape, dtype=out.dtype), allow_unused=True)
    return [out.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True))]


def difference(first: list[Tensor], second: list[Tensor]) -> float:
    """Return the largest over all tensors of the difference, relative to the largest element."""
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in zip(first, second, strict=True))


def compare(verb: Verb, tensors: list[Tensor], steps: int = 0, tolerance: float = 1e-12) -> None:
    """Frames of a graph (0) or a timeline; another epoch's noise is the negative control where any is drawn."""
    matrices, noise = [matrix(seed, tensors[0].dtype) for seed in range(max(1, steps))], Noise(3, vertices=IDS)
    view = View.whole(matrices if steps else matrices[0], noise)
    got, want = outcome(verb, view, tensors), outcome(verb, PlainView(matrices, noise), tensors)
    assert difference(got, want) < tolerance
    assert difference([got[0] * 1.001, *got[1:]], want) > 1e-4


IDS = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))[:ROWS]


def frames(steps: int, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return draw(*([steps] if steps else []), ROWS, width, dtype=dtype)


@pytest.fixture(params=["native", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to the same numbers: kernels, and torch where there are none."""
    if request.param == "native" and not library.available():
        pytest.skip("the native kernels are not built")
    if request.param == "torch":
        for module in (sums, several, _finish):
            monkeypatch.setattr(module, "available", lambda: False)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("steps", [0, STEPS])
@pytest.mark.parametrize(("relu", "p"), ENDINGS)
@pytest.mark.parametrize(("inputs", "outputs"), WIDTHS)
def test_aggregate(inputs: int, outputs: int, relu: bool, p: float, steps: int) -> None:
    """A sum alone, and a product before it or behind it, with everything around."""
    ending = {"relu": relu, "p": p}
    x, add = frames(steps, inputs), frames(steps, outputs)
    weight, root, bias = draw(outputs, inputs), draw(outputs, inputs) + 1.0, draw(outputs)
    compare(lambda g, x, b, a: g.aggregate(x, bias=b, add=a, **ending), [x, draw(inputs), frames(steps, inputs)], steps)
    compare(lambda g, x: g.aggregate(x, **ending), [x], steps)
    compare(lambda g, x, w: g.aggregate(x, w, **ending), [x, weight], steps)
    compare(
        lambda g, x, w, r, b, a: g.aggregate(x, w, root=r, bias=b, add=a, **ending),
        [x, weight, root, bias, add],
        steps,
    )


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(("relu", "p"), ENDINGS)
@pytest.mark.parametrize("width", [1, 9, 40])
def test_a_weight_mixed_with_the_identity(width: int, relu: bool, p: float, alpha: float) -> None:
    """GCNII: a share of other rows between the sum and the product."""

    def verb(g: Any, x: Tensor, w: Tensor, b: Tensor, a: Tensor) -> Tensor:
        add = {"add": a} if alpha else {}
        y: Tensor = g.aggregate(x, w, bias=b, alpha=alpha, theta=0.3, relu=relu, p=p, **add)
        return y

    tensors = [draw(ROWS, width), draw(width, width), draw(width), draw(ROWS, width) + 1.0]
    compare(verb, tensors)
    compare(lambda g, x, w, b, a: g.dense(x, w, b, add=a, theta=0.3, relu=relu, p=p), tensors)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("steps", [0, STEPS])
@pytest.mark.parametrize("slope", [0.0, 0.3])
@pytest.mark.parametrize(("inputs", "outputs"), [(17, 9), (8, 24)])
def test_a_slope_below_zero(inputs: int, outputs: int, slope: float, steps: int) -> None:
    x, weight, bias = frames(steps, inputs), draw(outputs, inputs), draw(outputs)
    compare(lambda g, x: g.aggregate(x, slope=slope), [x], steps)
    compare(lambda g, x, w, b: g.aggregate(x, w, bias=b, slope=slope), [x, weight, bias], steps)
    compare(lambda g, x, w, b: g.aggregate(x, w, bias=b, slope=slope, p=0.4), [x, weight, bias], steps)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("steps", [0, STEPS])
@pytest.mark.parametrize(("relu", "p"), ENDINGS)
@pytest.mark.parametrize(("inputs", "outputs"), WIDTHS)
def test_rows_for_themselves(inputs: int, outputs: int, relu: bool, p: float, steps: int) -> None:
    tensors = [frames(steps, inputs), draw(outputs, inputs), draw(outputs), frames(steps, outputs)]
    compare(lambda g, x, w, b, a: g.dense(x, w, b, add=a, relu=relu, p=p), tensors, steps)
    if inputs == 1:  # whose norm is its bias: gradients are rounding alone
        return
    norm = nn.LayerNorm(inputs).double()
    nn.init.normal_(norm.weight)
    compare(lambda g, x: g.normalise(x, norm, relu=relu, p=p), tensors[:1], steps)


def test_float32_and_rows_with_gaps() -> None:
    def verb(g: Any, wide: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y: Tensor = g.aggregate(wide[:, 10:40], w, bias=b, relu=True, p=0.5)
        return y

    single = torch.float32
    compare(verb, [draw(ROWS, 64, dtype=single), draw(48, 30, dtype=single), draw(48, dtype=single)], tolerance=1e-5)


def test_another_mask_is_seen() -> None:
    """The negative control: the comparison finds another epoch's dropout, and steps in another order."""
    x, matrices = frames(STEPS, 9), [matrix(seed) for seed in range(STEPS)]

    def verb(g: Any, x: Tensor) -> Tensor:
        y: Tensor = g.aggregate(x, relu=True, p=0.4)
        return y

    found = outcome(verb, View.whole(matrices, Noise(1)), [x])
    assert difference(outcome(verb, PlainView(matrices, Noise(1)), [x]), found) < 1e-12
    assert difference(outcome(verb, PlainView(matrices, Noise(2)), [x]), found) > 0.1
    assert difference(outcome(verb, PlainView(matrices[::-1], Noise(1)), [x]), found) > 0.1


def test_only_wanted_gradients() -> None:
    x, weight, bias = draw(ROWS, 10), draw(6, 10), draw(6)
    for wanted in itertools.product((False, True), repeat=3):
        inputs = [tensor.clone().requires_grad_(want) for tensor, want in zip((x, weight, bias), wanted, strict=True)]
        out = View.whole(matrix(0)).aggregate(inputs[0], inputs[1], bias=inputs[2], relu=True)
        assert out.requires_grad == any(wanted)
        if any(wanted):
            out.sum().backward()
        assert [tensor.grad is not None for tensor in inputs] == list(wanted)


def test_one_step_is_not_copied() -> None:
    made: list[Tensor] = []

    def then(near: Tensor, own: Tensor, at: Neighbours) -> Tensor:
        made.append(aggregate(near, at.block))
        return made[-1]

    out = View.whole([matrix(0)]).gather(frames(1, 4), then=then)
    assert out.shape == (1, ROWS, 4)
    assert out.data_ptr() == made[0].data_ptr()
