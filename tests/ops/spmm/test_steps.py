"""The product of all steps against the same step by step."""

from __future__ import annotations

import pytest
import torch

from trisect.errors import ConfigError
from trisect.ops.spmm.steps import product_steps


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


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ConfigError, match="slope"):
        product_steps(torch.zeros(2, 5, 3), torch.zeros(2, 3, 4), slope=-0.1)
    with pytest.raises(ConfigError, match="weights"):
        product_steps(torch.zeros(2, 5, 3), torch.zeros(2, 4, 3))
