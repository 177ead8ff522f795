"""Aggregation and product of all steps against the same step by step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trisect.errors import ConfigError
from trisect.graph.adjacency import Adjacency
from trisect.graph.build import adjacency_from_edges
from trisect.ops import aggregate
from trisect.ops.spmm.steps import aggregate_steps, product_steps


def timeline(steps: int, vertices: int, edges: int) -> list[Adjacency]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(steps):
        src, dst = torch.randint(vertices, (2, edges), generator=generator)
        found.append(adjacency_from_edges(src, dst, torch.rand(edges, generator=generator), vertices).to(torch.float64))
    return found


def one_by_one(x: Tensor, snapshots: list[Adjacency], bias: Tensor | None, slope: float | None) -> Tensor:
    parts = [aggregate(frame, snapshot) for frame, snapshot in zip(x, snapshots, strict=True)]
    out = torch.stack(parts) if bias is None else torch.stack(parts) + bias
    return out if slope is None else torch.nn.functional.leaky_relu(out, slope)


@pytest.mark.parametrize("slope", [None, 0.0, 0.3])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("steps", "features"), [(1, 1), (4, 6), (3, 33)])
def test_equals_step_by_step(slope: float | None, biased: bool, steps: int, features: int) -> None:
    snapshots = timeline(steps, 40, 120)
    x = torch.randn(steps, 40, features, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(features, dtype=torch.float64, requires_grad=True) if biased else None
    leaves = [x] if bias is None else [x, bias]
    got, wanted = aggregate_steps(x, snapshots, bias, slope=slope), one_by_one(x, snapshots, bias, slope)
    direction = torch.randn_like(wanted)
    for a, b in zip(
        (got, *torch.autograd.grad(got, leaves, direction)),
        (wanted, *torch.autograd.grad(wanted, leaves, direction)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("slope", [None, 0.0, 0.3])
@pytest.mark.parametrize(("steps", "rows", "inputs", "outputs"), [(1, 1, 1, 1), (4, 50, 2, 6), (3, 17, 33, 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_product_equals_bmm(
    slope: float | None, steps: int, rows: int, inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    x = torch.randn(steps, rows, inputs, dtype=dtype, requires_grad=True)
    weights = torch.randn(steps, inputs, outputs, dtype=dtype, requires_grad=True)
    got, wanted = product_steps(x, weights, slope=slope), torch.bmm(x, weights)
    wanted = wanted if slope is None else torch.nn.functional.leaky_relu(wanted, slope)
    direction = torch.randn_like(wanted)
    limit = 1e-4 if dtype == torch.float32 else 1e-12
    for a, b in zip(
        (got, *torch.autograd.grad(got, (x, weights), direction)),
        (wanted, *torch.autograd.grad(wanted, (x, weights), direction)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=limit, atol=limit)
    if steps > 1:
        assert not torch.allclose(got, product_steps(x, weights.flip(0), slope=slope))


def test_the_comparison_notices_steps_in_the_wrong_order() -> None:
    snapshots = timeline(3, 40, 120)
    x = torch.randn(3, 40, 4, dtype=torch.float64)
    got = aggregate_steps(x, snapshots)
    torch.testing.assert_close(got, one_by_one(x, snapshots, None, None))
    assert not torch.allclose(got, one_by_one(x, snapshots[::-1], None, None))


def test_wrong_shapes_are_named() -> None:
    snapshots = timeline(2, 5, 9)
    with pytest.raises(ConfigError, match="for 2 snapshots"):
        aggregate_steps(torch.zeros(3, 5, 1), snapshots)
    with pytest.raises(ConfigError, match="snapshot 0 is 5 x 5"):
        aggregate_steps(torch.zeros(2, 6, 1), snapshots)
    with pytest.raises(ConfigError, match="bias"):
        aggregate_steps(torch.zeros(2, 5, 3), snapshots, torch.zeros(2))
    with pytest.raises(ConfigError, match="slope"):
        aggregate_steps(torch.zeros(2, 5, 3), snapshots, slope=-0.1)
    with pytest.raises(ConfigError, match="weights"):
        product_steps(torch.zeros(2, 5, 3), torch.zeros(2, 4, 3))
