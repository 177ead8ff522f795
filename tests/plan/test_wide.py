"""Layers that are too wide to be run for a plan, and the memory in which gradients of wide weights are summed."""

from __future__ import annotations

import pytest
import torch

from trisect import ops
from trisect.config import TrainOptions
from trisect.graph.graph import Graph
from trisect.layout import Layout
from trisect.ops._products import sums_bytes
from trisect.plan import memory, probe
from trisect.tasks import make_task
from trisect.train.fit import model_maker
from trisect.train.workloads import workload_of


def test_groups_of_wide_weights_are_few() -> None:
    assert sums_bytes(1 << 20, 100, 64, 4) == 64 * 101 * 64 * 4
    assert sums_bytes(1 << 20, 5000, 500, 4) == 8 * 5001 * 500 * 4
    assert sums_bytes(100, 5000, 500, 4) == 5001 * 500 * 4


@pytest.mark.parametrize(("inputs", "outputs"), [(7, 5), (3000, 700)])
def test_gradients_do_not_depend_on_the_groups(inputs: int, outputs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5000, inputs, generator=generator, dtype=torch.float64)
    weight = torch.randn(outputs, inputs, generator=generator, dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(5000, outputs, generator=generator, dtype=torch.float64)
    ops.dense(x, weight).backward(gradient)
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, gradient.T @ x, rtol=1e-12, atol=1e-9)
    assert not torch.allclose(weight.grad, gradient[1:].T @ x[1:], rtol=1e-12, atol=1e-9)


def test_a_layer_that_is_too_wide_is_not_run(community: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    maker, task, options = model_maker("gcn", {"hidden": 8, "layers": 2}, 0), "node-classification", TrainOptions()
    workload = workload_of(maker, community, make_task(task), options)
    plan, probed, unprobed = workload.plan(Layout()), memory.MemoryModel(workload), memory.MemoryModel(workload)
    saved = probed.saved(0, plan)
    monkeypatch.setattr(probe, "LARGEST", 0)
    assert unprobed.saved(0, plan) != saved
    assert not probed.unprobed
    assert "which a plan does not build" in next(iter(unprobed.unprobed.values()))
