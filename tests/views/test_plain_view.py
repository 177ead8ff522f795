"""The references themselves: `PlainView` against `View`, every gradient, and `StaleView` against single entries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1]))

import trisect.nn as layers
from plain_view import PlainView, dense_of
from stale_view import StaleView, block_of
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import adjacency_from_edges, normalise
from trisect.noise import Noise
from trisect.ops import aggregate
from trisect.views.local import Local
from trisect.views.view import View

ROWS, WIDTH, EDGES, STEPS = 29, 6, 3, 3
NOISES = pytest.mark.parametrize("noise", [None, Noise(5, 1)], ids=["evaluation", "training"])
STATIC: list[tuple[str, dict[str, Any]]] = [
    ("gcn", {"hidden": 8, "layers": 3, "residual": True, "input_dropout": 0.2}),
    ("sage", {"hidden": 8, "norm": "layer"}),
    ("gcnii", {"hidden": 8, "layers": 4}),
    ("resgcn+", {"hidden": 8, "layers": 3}),
    ("gat", {"hidden": 8, "heads": 2, "attention_dropout": 0.3}),
    ("gatv2", {"hidden": 8, "heads": 2, "attention_dropout": 0.3}),
    ("gin", {"hidden": 8, "train_eps": True, "activation": "rrelu"}),
    ("gine", {"hidden": 8}),
    ("rgcn", {"hidden": 8, "bases": 2}),
]
DYNAMIC: list[tuple[str, dict[str, Any]]] = [
    ("cd-gcn", {"dropout": 0.3}),
    ("wd-gcn", {"dropout": 0.3, "head": False}),
    ("tm-gcn", {"window": 2}),
    ("evolvegcn-o", {"hidden": 8, "dropout": 0.3, "activation": "rrelu"}),
    ("evolvegcn-h", {"hidden": 4, "dropout": 0.3}),
    ("recurrent", {"spatial": "gatv2", "hidden": 4, "dropout": 0.3}),
]


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix(seed: int = 0) -> Adjacency:
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(0, ROWS, (4 * ROWS,), generator=generator)
    target = (source + torch.randint(1, 9, source.shape, generator=generator)) % ROWS
    weight = torch.rand(source.shape, generator=generator, dtype=torch.float64) + 0.1
    made = normalise(adjacency_from_edges(source, target, weight, ROWS, dtype=torch.float64), "row", True)
    return made.with_features(draw(made.entries, EDGES, seed=seed))


def model_of(name: str, options: dict[str, Any]) -> Any:
    model: nn.Module = layers.build(name, WIDTH, 4, edge_channels=EDGES, seed=3, **options).double()
    for number, parameter in enumerate(model.parameters()):
        parameter.data += 0.1 * draw(*parameter.shape, seed=number)
    return model


def results(model: Any, x: Tensor, view: Any) -> list[Tensor]:
    """Return the output with every gradient of a fixed sum of it."""
    leaves = [*([x] if x.requires_grad else []), *model.parameters()]
    out = view.tie(model(x, view))
    found = torch.autograd.grad(out, leaves, draw(*out.shape, seed=9), allow_unused=True)
    zeros = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]
    return [out.detach(), *zeros]


def distance(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-3)) for a, b in zip(got, want, strict=True))


def test_every_model_is_here() -> None:
    """No model of the registry is left out."""
    assert {name for name, _ in (*STATIC, *DYNAMIC)} == set(layers.NAMES)


@NOISES
@pytest.mark.parametrize("steps", [0, STEPS], ids=["graph", "timeline"])
@pytest.mark.parametrize(("name", "options"), STATIC)
def test_static_models(name: str, options: dict[str, Any], steps: int, noise: Noise | None) -> None:
    """A graph and a timeline in dense matrices are those of `View`; another epoch is not."""
    matrices = [matrix(seed) for seed in range(max(1, steps))]
    model, x = model_of(name, options), draw(*([steps] if steps else []), ROWS, WIDTH).requires_grad_()
    want = results(model, x, View(Local(matrices, ROWS), steps=range(len(matrices)), noise=noise))
    assert distance(results(model, x, PlainView(matrices, noise)), want) < 1e-10
    assert distance(results(model, x, PlainView(matrices, Noise(5, 2))), want) > 1e-3


@NOISES
@pytest.mark.parametrize(("name", "options"), DYNAMIC)
def test_dynamic_models(name: str, options: dict[str, Any], noise: Noise | None) -> None:
    """The same along steps; matrices in another order are the negative control."""
    matrices = [matrix(seed) for seed in range(STEPS)]
    model, x = model_of(name, options), draw(STEPS, ROWS, WIDTH).requires_grad_()
    want = results(model, x, View.whole(matrices, noise))
    assert distance(results(model, x, PlainView(matrices, noise)), want) < 1e-10
    assert distance(results(model, x, PlainView(matrices[::-1], noise)), want) > 1e-3


@pytest.mark.parametrize("name", ["gcn", "sage", "gin"])
def test_a_kept_sum(name: str) -> None:
    """Where the first sum is kept, only the messages of later layers become history."""
    block, model, x = matrix(), model_of(name, {"hidden": 8}), draw(ROWS, WIDTH)
    chunks = [torch.arange(ROWS)]
    kept = StaleView(block, chunks, [0], {}, Noise(5, 1), features=x)
    read = StaleView(block, chunks, [0], {}, Noise(5, 1))
    view = View(Local([block], ROWS), noise=Noise(5, 1), features=(x, aggregate(x, block)))
    assert distance(results(model, x, kept), results(model, x, view)) < 1e-10
    assert distance(results(model, x, read), results(model, x, view)) < 1e-10
    assert set(read.fresh) - set(kept.fresh) == {(0, 1)}


def test_a_product_is_the_message_where_it_goes_first() -> None:
    """What becomes history is x·Wᵀ where W does not widen x, and nothing stands between product and sum."""
    block, x = matrix(), draw(ROWS, WIDTH)
    for outputs, theta, message in ((4, 1.0, 4), (WIDTH, 1.0, WIDTH), (9, 1.0, WIDTH), (WIDTH, 0.5, WIDTH)):
        weight = draw(outputs, WIDTH, seed=2)
        view = StaleView(block, [torch.arange(ROWS)], [0], {})
        view.aggregate(x, weight, theta=theta)
        first = outputs <= WIDTH and theta == 1.0
        assert view.fresh[0, 1].shape == (ROWS, message)
        assert torch.equal(view.fresh[0, 1], x @ weight.t() if first else x)


def by_entries(block: Tensor, x: Tensor, old: Tensor, chunks: Sequence[Tensor], order: Sequence[int]) -> Tensor:
    """Return Â·x, entry by entry: row i reads j as history where the chunk of j comes after that of i."""
    place = torch.empty(ROWS, dtype=torch.int64)
    for position, chunk in enumerate(order):
        place[chunks[chunk]] = position
    sums = []
    for i in range(ROWS):
        sums.append(sum(block[i, j] * (x[j] if place[j] <= place[i] else old[j]) for j in range(ROWS)))
    return torch.stack(sums)  # type: ignore[arg-type]


VERBS: dict[str, Callable[[StaleView, Tensor], Tensor]] = {
    "aggregate": lambda view, x: view.aggregate(x),
    "gather": lambda view, x: view.gather(x, then=lambda near, own, at: dense_of(at.block) @ near),
}


@pytest.mark.parametrize("verb", VERBS)
def test_chunks_read_history(verb: str) -> None:
    """Outputs and gradients are those of the sum entry by entry; another order is the negative control."""
    block, x, old = matrix(), draw(ROWS, WIDTH).requires_grad_(), draw(ROWS, WIDTH, seed=2)
    chunks = [torch.arange(3, ROWS, 2), torch.tensor([], dtype=torch.int64), torch.tensor([0, 2, 1])]
    chunks.append(torch.arange(4, ROWS, 2))
    found = []
    for order in ([3, 1, 0, 2], [0, 1, 2, 3]):
        view = StaleView(block, chunks, order, {(0, 1): old})
        out = VERBS[verb](view, x)
        found.append([out.detach(), *torch.autograd.grad(out, [x], draw(*out.shape, seed=9))])
        assert torch.equal(view.fresh[0, 1], x.detach())
    out = by_entries(dense_of(block), x, old, chunks, [3, 1, 0, 2])
    want = [out.detach(), *torch.autograd.grad(out, [x], draw(*out.shape, seed=9))]
    assert distance(found[0], want) < 1e-10
    assert distance(found[1], want) > 1e-3


@pytest.mark.parametrize("verb", VERBS)
def test_gradients_of_others_are_scaled(verb: str) -> None:
    """A row's gradient from its own chunk is whole, and that from others has the factor."""
    block, x = matrix(), draw(ROWS, WIDTH).requires_grad_()
    chunks = [torch.arange(ROWS // 2), torch.arange(ROWS // 2, ROWS)]
    ones = torch.ones(ROWS, WIDTH, dtype=torch.float64)
    view = StaleView(block, chunks, [0, 1], {}, scale=3.0)
    (found,) = torch.autograd.grad(VERBS[verb](view, x), [x], ones)
    dense, half = dense_of(block), ROWS // 2
    dense[:half, half:] = 0.0
    dense[half:, :half] *= 3.0
    assert distance([found], [dense.t() @ ones]) < 1e-10


def test_a_block_in_another_order() -> None:
    """Rows, columns and features of edges stand where they are asked for."""
    block, order = matrix(), torch.randperm(ROWS, generator=torch.Generator().manual_seed(4))
    made = block_of(block, order[:7], order).checked()
    assert torch.equal(dense_of(made), dense_of(block)[order[:7]][:, order])
    assert made.features is not None
    assert block.features is not None
    for feature in range(EDGES):
        one, whole = (dense_of(a.with_values(a.features[:, feature].contiguous())) for a in (made, block))  # type: ignore[index]
        assert torch.equal(one, whole[order[:7]][:, order])
