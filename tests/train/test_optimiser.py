from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from trisect.errors import CheckpointError, ConfigError
from trisect.train.optimiser import LearningRate, Optimiser, decay_by_group


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: nn.Parameter(torch.randn(size, generator=generator).to(dtype))
        for name, size in (("model.layers.0.weight", (3, 4)), ("model.layers.1.bias", (5,)))
    }


def descend(optimiser: Optimiser, steps: int, lr: float = 0.1) -> None:
    for _ in range(steps):
        optimiser.zero_grad()
        sum((p.float() - 1).square().sum() for p in optimiser.parameters.values()).backward()  # type: ignore[union-attr]
        optimiser.step(lr)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_equals_torch_with_decay_by_group(name: str) -> None:
    mine, theirs = parameters(), parameters()
    optimiser = Optimiser(name, mine, ["model.layers.0.weight"], lr=0.1, weight_decay={"conv": 0.3, "dense": 0.02})  # type: ignore[arg-type]
    groups = [
        {"params": [theirs["model.layers.0.weight"]], "weight_decay": 0.3},
        {"params": [theirs["model.layers.1.bias"]], "weight_decay": 0.02},
    ]
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    extra = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {}
    reference = kinds[name](groups, lr=0.1, **extra)
    descend(optimiser, 5)
    for _ in range(5):
        reference.zero_grad()
        sum((p - 1).square().sum() for p in theirs.values()).backward()  # type: ignore[union-attr]
        reference.step()
    for key in mine:
        assert torch.allclose(mine[key], theirs[key], atol=1e-6)
    descend(optimiser, 1)
    assert not torch.allclose(mine["model.layers.1.bias"], theirs["model.layers.1.bias"], atol=1e-6)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.5, False), (0.5, True), (0.0, True)])
def test_momentum_of_sgd(momentum: float, nesterov: bool) -> None:
    mine, usual, theirs = parameters(), parameters(), parameters()
    descend(Optimiser("sgd", mine, [], lr=0.1, momentum=momentum, nesterov=nesterov), 5)
    descend(Optimiser("sgd", usual, [], lr=0.1), 5)
    reference = torch.optim.SGD(theirs.values(), lr=0.1, momentum=momentum, nesterov=nesterov and momentum > 0)
    for _ in range(5):
        reference.zero_grad()
        sum((p - 1).square().sum() for p in theirs.values()).backward()  # type: ignore[union-attr]
        reference.step()
    assert all(torch.allclose(mine[name], theirs[name]) for name in mine)
    assert not any(torch.allclose(mine[name], usual[name]) for name in mine)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_goes_on_to_the_bit(name: str, dtype: torch.dtype) -> None:
    straight = Optimiser(name, parameters(dtype), [], lr=0.1)  # type: ignore[arg-type]
    descend(straight, 7)
    first = Optimiser(name, parameters(dtype), [], lr=0.1)  # type: ignore[arg-type]
    descend(first, 3)
    second = Optimiser(name, {k: nn.Parameter(p.detach().clone()) for k, p in first.parameters.items()}, [], lr=0.1)  # type: ignore[arg-type]
    second.load(first.state())
    descend(second, 4)
    for key, parameter in straight.parameters.items():
        assert torch.equal(second.parameters[key], parameter)
    left, right = straight.state(), second.state()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize("norm", [0.5, 1e6])
def test_clipping_equals_torch(norm: float) -> None:
    mine, theirs = parameters(torch.float64), parameters(torch.float64)
    for named in (mine, theirs):
        sum((p - 1).square().sum() for p in named.values()).backward()  # type: ignore[union-attr]
    before = {key: parameter.grad.clone() for key, parameter in mine.items()}  # type: ignore[union-attr]
    Optimiser("sgd", mine, [], lr=0.1).clip(norm)
    total = float(torch.nn.utils.clip_grad_norm_(theirs.values(), norm))
    for key in mine:
        assert torch.allclose(mine[key].grad, theirs[key].grad, rtol=1e-12, atol=0)  # type: ignore[arg-type]
        assert torch.equal(mine[key].grad, before[key]) == (norm > total)  # type: ignore[arg-type]
    Optimiser("sgd", mine, [], lr=0.1).clip(norm, lambda square: 4 * square)
    if norm < total:
        assert not torch.allclose(mine["model.layers.1.bias"].grad, theirs["model.layers.1.bias"].grad)  # type: ignore[arg-type]


def test_half_precision_takes_small_steps() -> None:
    optimiser = Optimiser("sgd", {"w": nn.Parameter(torch.full((2,), 256.0, dtype=torch.bfloat16))}, [], lr=1.0)
    for _ in range(10):
        optimiser.zero_grad()
        optimiser.parameters["w"].sum().backward()
        optimiser.step(0.01)
    # one step is far below the resolution of bfloat16 at 256
    assert float(optimiser.state()["master.w"][0]) < 255.9


def test_foreign_state_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no parameter 'x'"):
        Optimiser("adam", parameters(), [], lr=0.1).load({"exp_avg.x": torch.zeros(1)})


def test_state_of_other_types_is_refused() -> None:
    optimiser = Optimiser("adam", parameters(), [], lr=0.1)
    descend(optimiser, 1)
    state, name = optimiser.state(), "model.layers.1.bias"
    optimiser.load(state)
    for entry, value, words in (
        (f"exp_avg.{name}", torch.zeros(5, dtype=torch.int64), r"of type torch\.int64, and adam keeps step, exp_avg"),
        (f"step.{name}", torch.tensor(True), r"of type torch\.bool"),
        (f"momentum_buffer.{name}", torch.zeros(5), "adam keeps step, exp_avg, exp_avg_sq"),
    ):
        with pytest.raises(CheckpointError, match=words):
            optimiser.load({**state, entry: value})
    del state[f"exp_avg_sq.{name}"]
    with pytest.raises(CheckpointError, match=rf"no optimiser state 'exp_avg_sq\.{name}', which adam needs"):
        optimiser.load(state)


def test_groups_are_checked() -> None:
    assert decay_by_group(0.1) == {"conv": 0.1, "dense": 0.1}
    assert decay_by_group({"conv": 1}) == {"conv": 1.0, "dense": 0.0}
    with pytest.raises(ConfigError, match=r"train\.weight_decay\.conf"):
        decay_by_group({"conf": 1.0})


def test_a_model_without_parameters_is_fine() -> None:
    optimiser = Optimiser("adam", {}, [], lr=0.1)
    optimiser.step(0.1)
    assert optimiser.state() == {}


def test_learning_rates() -> None:
    assert LearningRate(0.1, "none", 10).at(7) == 0.1
    cosine = LearningRate(0.1, "cosine", 10)
    assert cosine.at(1) == 0.1
    assert cosine.at(6) == pytest.approx(0.05)
    assert 0 < cosine.at(10) < 0.003
    plateau = LearningRate(0.1, "plateau", 100, patience=2)
    for improved in (True, False, False, False):
        plateau.evaluated(improved)
    assert plateau.at(5) == 0.05
    again = LearningRate(0.1, "plateau", 100, patience=2)
    again.load(plateau.state())
    assert math.isclose(again.at(6), 0.05)


def test_the_compiler_of_torch_is_not_loaded() -> None:
    """It would double the time that each rank takes to start."""
    code = """
import sys, torch
from trisect.train.optimiser import Optimiser
for name in ("adam", "adamw", "sgd"):
    weight = torch.nn.Parameter(torch.ones(3))
    optimiser = Optimiser(name, {"w": weight}, [], lr=0.1)
    weight.sum().backward()
    optimiser.step(0.1)
    print(bool((weight < 1).all()), "torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"] * 3
