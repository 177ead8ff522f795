"""Every model in one process on the pretend device equals the CPU, and copies nothing that it need not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from trisect.config import TrainOptions
from trisect.graph.graph import Graph
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import Layout
from trisect.nn.models.registry import DYNAMIC, STATIC
from trisect.train.fit import fit, model_maker
from trisect.train.setup import Setup

CASES = [(name, "community") for name in STATIC] + [(name, "timeline") for name in (*STATIC, *DYNAMIC)]
SMALL = {name: {"layers": 3, "hidden": 8} for name in STATIC}
TASKS = {"community": "node-classification", "timeline": "link-prediction"}


@pytest.fixture(params=CASES, ids=lambda case: "-".join(case))
def case(request: pytest.FixtureRequest, for_model: Callable[[str, Any], Any]) -> tuple[str, Graph | Timeline, str]:
    name, kind = request.param
    data = for_model(name, request.getfixturevalue(kind))
    return name, data, TASKS[kind]


@dataclass
class Trained:
    """Losses of some epochs, and all gradients of the last."""

    losses: list[float]
    gradients: dict[str, Tensor]

    def distance(self, other: Trained) -> float:
        """The largest relative difference."""
        pairs = list(zip(self.losses, other.losses, strict=True))
        worst = max(abs(a - b) / abs(a) for a, b in pairs)
        assert self.gradients.keys() == other.gradients.keys()
        for name, gradient in self.gradients.items():
            scale = float(gradient.abs().max().clamp_min(1e-12))
            worst = max(worst, float((gradient - other.gradients[name]).abs().max()) / scale)
        return worst


def trained(
    name: str, data: Graph | Timeline, task: str, device: str, epochs: int = 3, blocks: int = 1, **options: Any
) -> Trained:
    training = TrainOptions(device=device, precision="float64")
    setup = Setup.of(model_maker(name, options, 0), data, task, training, Layout(blocks=blocks))
    parameters = dict(setup.modules.named_parameters())
    assert {parameter.device.type for parameter in parameters.values()} == {device}
    result = Trained([], {})

    def step() -> None:
        result.losses.append(setup.program.finish())
        result.gradients = {n: p.grad.cpu().clone() for n, p in parameters.items() if p.grad is not None}
        with torch.no_grad():
            for parameter in parameters.values():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None

    for epoch in range(1, epochs + 1):
        setup.program.begin(epoch)
        setup.program.run()
        step()
    return result


def test_losses_and_gradients_equal_the_cpus(case: tuple[str, Graph | Timeline, str], pretend: ModuleType) -> None:
    name, data, task = case
    here, there = (trained(name, data, task, device, **SMALL.get(name, {})) for device in ("cpu", "sim"))
    assert here.distance(there) < 1e-10


def test_the_comparison_can_fail(community: Graph, pretend: ModuleType) -> None:
    here = trained("gcn", community, TASKS["community"], "cpu", dropout=0.5)
    there = trained("gcn", community, TASKS["community"], "sim", dropout=0.4)
    assert here.distance(there) > 1e-3


@pytest.mark.parametrize("name", ["cd-gcn", "evolvegcn-h", "tm-gcn"])
def test_blocks_equal_the_cpus(name: str, timeline: Timeline, pretend: ModuleType) -> None:
    here, there = (trained(name, timeline, TASKS["timeline"], device, blocks=3) for device in ("cpu", "sim"))
    assert here.distance(there) < 1e-10


def test_measures_and_predictions_equal_the_cpus(case: tuple[str, Graph | Timeline, str], pretend: ModuleType) -> None:
    name, data, task = case
    options = {"epochs": 3, "precision": "float64", **SMALL.get(name, {})}
    here, there = (fit(name, data, task, device=device, **options) for device in ("cpu", "sim"))
    assert there.loss == pytest.approx(here.loss, rel=1e-10)
    torch.testing.assert_close(there.metrics, here.metrics, rtol=1e-8, atol=1e-10, equal_nan=True)
    assert {parameter.device.type for parameter in there.model.parameters()} == {"sim"}
    wanted = here.predict()
    for column, values in there.predict().items():
        torch.testing.assert_close(values.cpu(), wanted[column], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(there.embeddings().cpu(), here.embeddings(), rtol=1e-8, atol=1e-10)
