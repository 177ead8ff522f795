"""The optimizer: torch's own by any choice of it, clipping, averages, and a state that goes on to the bit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from trisect.config import TrainOptions
from trisect.config.names import OPTIMIZERS, SCHEDULERS
from trisect.errors import CheckpointError, ConfigError, RunError
from trisect.settings.writing import to_json
from trisect.train.optimizer import Optimizer, clip_gradients, kept_of_each, numbers_kept
from trisect.train.torch_optim import decay_by_group

SHAPES = {"model.layers.0.weight": (3, 4), "model.layers.1.bias": (5,)}


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return {name: nn.Parameter(torch.randn(size, generator=generator).to(dtype)) for name, size in SHAPES.items()}


def made(named: dict[str, nn.Parameter], **options: Any) -> Optimizer:
    return Optimizer(TrainOptions(**{"lr": 0.1, **options}), named, ["model.layers.0.weight"])


def backward(named: dict[str, nn.Parameter]) -> None:
    for parameter in named.values():
        parameter.grad = None
    sum((p.float() - 1).square().sum() for p in named.values()).backward()  # type: ignore[union-attr]


def descend(optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        backward(optimizer.parameters)
        optimizer.step()
        optimizer.advance_schedule()


def reference(
    named: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, steps: int, scheduler: Any = None
) -> None:
    for _ in range(steps):
        backward(named)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def equal(one: dict[str, nn.Parameter], two: dict[str, nn.Parameter], atol: float = 1e-6) -> bool:
    return all(torch.allclose(one[key], two[key], rtol=0, atol=atol) for key in one)


class Lion(torch.optim.Optimizer):
    """One of somebody else's, which counts its steps in a plain number."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "seen": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["seen"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["count"] = state.get("count", 0) + 1
                    state["mean"] = state.get("mean", torch.zeros_like(p)).lerp(p.grad, 0.1)
                    p.sub_(state["mean"].sign(), alpha=group["lr"] / state["count"])


class Listed(Lion):
    """Keeps what no checkpoint can hold."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            self.state[p]["factors"] = [p.clone()]


class Closed(Lion):
    def step(self, closure: Any) -> None:  # type: ignore[override]
        closure()


@pytest.mark.parametrize("name", ["adam", "AdamW", "sgd"])
def test_equals_torch_with_decay_by_group(name: str) -> None:
    mine, theirs = parameters(), parameters()
    optimizer = made(mine, optimiser=name, weight_decay={"conv": 0.3, "dense": 0.02})
    groups = [
        {"params": [theirs["model.layers.0.weight"]], "weight_decay": 0.3},
        {"params": [theirs["model.layers.1.bias"]], "weight_decay": 0.02},
    ]
    kinds = {"adam": torch.optim.Adam, "AdamW": torch.optim.AdamW, "sgd": torch.optim.SGD}
    extra = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {}
    descend(optimizer, 5)
    reference(theirs, kinds[name](groups, lr=0.1, **extra), 5)
    assert equal(mine, theirs)
    descend(optimizer, 1)
    assert not equal(mine, theirs)


def test_names_are_those_of_torch() -> None:
    others = {"LBFGS", "Optimizer", "SparseAdam", "lr_scheduler", "swa_utils"}
    theirs = {name for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)} - others
    assert theirs <= set(OPTIMIZERS)
    schedulers = torch.optim.lr_scheduler
    functional = {"LRScheduler", "ChainedScheduler", "LambdaLR", "MultiplicativeLR", "SequentialLR"}
    theirs = {
        name
        for name in dir(schedulers)
        if isinstance(getattr(schedulers, name), type)
        and issubclass(getattr(schedulers, name), schedulers.LRScheduler)
        and not name.startswith("_")
    }
    assert theirs - functional == set(SCHEDULERS)


@pytest.mark.parametrize(
    "choice",
    [
        {"name": "RMSprop", "alpha": 0.9, "momentum": 0.5},
        (torch.optim.RMSprop, {"alpha": 0.9, "momentum": 0.5}),
        lambda own: torch.optim.RMSprop(own, lr=0.1, alpha=0.9, momentum=0.5),
    ],
)
def test_any_form_of_a_choice(choice: Any) -> None:
    mine, theirs = parameters(torch.float64), parameters(torch.float64)
    descend(made(mine, optimizer=choice), 4)
    reference(theirs, torch.optim.RMSprop(theirs.values(), lr=0.1, alpha=0.9, momentum=0.5), 4)
    assert equal(mine, theirs, 1e-12)
    plain = parameters(torch.float64)
    descend(made(plain, optimizer="RMSprop"), 4)
    assert not equal(plain, theirs)


def test_a_class_keeps_its_own_defaults() -> None:
    mine, theirs = parameters(torch.float64), parameters(torch.float64)
    descend(made(mine, optimizer=torch.optim.AdamW), 3)
    reference(theirs, torch.optim.AdamW(theirs.values(), lr=0.1), 3)
    assert equal(mine, theirs, 1e-12)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.5, False), (0.5, True), (0.0, True)])
def test_momentum_of_sgd(momentum: float, nesterov: bool) -> None:
    mine, usual, theirs = parameters(), parameters(), parameters()
    descend(made(mine, optimizer="sgd", momentum=momentum, nesterov=nesterov), 5)
    descend(made(usual, optimizer="sgd"), 5)
    reference(
        theirs, torch.optim.SGD(theirs.values(), lr=0.1, momentum=momentum, nesterov=nesterov and momentum > 0), 5
    )
    assert equal(mine, theirs)
    assert not equal(mine, usual)


STATES: list[dict[str, Any]] = [
    {"optimizer": "adam"},
    {"optimizer": "sgd", "ema": 0.9},
    {"optimizer": "Adagrad"},
    {"optimizer": "Adafactor"},
    {"optimizer": "NAdam"},
    {"optimizer": {"name": "AdamW", "amsgrad": True}, "scheduler": {"name": "OneCycleLR", "max_lr": 0.3}, "ema": 0.5},
    {"optimizer": "sgd", "scheduler": {"name": "MultiStepLR", "milestones": [2, 4, 5]}},
    {"optimizer": "sgd", "scheduler": {"name": "CyclicLR", "base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2}},
    {"optimizer": Lion, "scheduler": "CosineAnnealingLR"},
    {"lr_schedule": "cosine"},
]


@pytest.mark.parametrize("options", STATES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_goes_on_to_the_bit(options: dict[str, Any], dtype: torch.dtype) -> None:
    options = {"epochs": 10, **options}
    straight, first = made(parameters(dtype), **options), made(parameters(dtype), **options)
    descend(straight, 7)
    descend(first, 3)
    second = made({k: nn.Parameter(p.detach().clone()) for k, p in first.parameters.items()}, **options)
    text = to_json(first.plain())
    second.load(first.state())
    second.load_plain(json.loads(text))
    descend(second, 4)
    for key, parameter in straight.parameters.items():
        assert torch.equal(second.parameters[key], parameter)
    left, right = straight.state(), second.state()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)
    assert straight.plain() == second.plain()
    # without its state it goes elsewhere
    other = made({k: nn.Parameter(p.detach().clone()) for k, p in first.parameters.items()}, **options)
    descend(other, 4)
    assert to_json(other.plain()) != to_json(straight.plain()) or not all(
        torch.equal(value, left[key]) for key, value in other.state().items()
    )


def test_a_schedule_of_torch_is_followed() -> None:
    mine, theirs = parameters(torch.float64), parameters(torch.float64)
    descend(made(mine, optimizer="AdamW", epochs=6, scheduler={"name": "OneCycleLR", "max_lr": 0.3}), 6)
    optimizer = torch.optim.AdamW(theirs.values(), lr=0.1, weight_decay=0.0)
    reference(theirs, optimizer, 6, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=6))
    assert equal(mine, theirs, 1e-12)
    constant = parameters(torch.float64)
    descend(made(constant, optimizer="AdamW"), 6)
    assert not equal(mine, constant)


def test_a_schedule_that_ends_says_so() -> None:
    optimizer = made(parameters(), scheduler={"name": "OneCycleLR", "max_lr": 0.3, "total_steps": 2})
    with pytest.raises(RunError, match=r"train\.scheduler OneCycleLR cannot go on: Tried to step 3 times"):
        descend(optimizer, 3)


def test_the_schedules_of_old() -> None:
    assert made(parameters()).lr == 0.1
    cosine = made(parameters(), lr_schedule="cosine", epochs=10)
    seen = []
    for _ in range(10):
        seen.append(cosine.lr)
        descend(cosine, 1)
    assert seen[0] == 0.1
    assert seen[5] == pytest.approx(0.05)
    assert 0 < seen[9] < 0.003
    plateau = made(parameters(), lr_schedule="plateau")
    plateau.evaluated(0.5, first=True)
    for _ in range(10):
        plateau.evaluated(0.4, first=False)
    assert plateau.lr == 0.1
    plateau.evaluated(None, first=False)
    assert plateau.lr == 0.05
    never = made(parameters(), lr_schedule="plateau")
    for _ in range(20):
        never.evaluated(None, first=True)
    assert never.lr == 0.1


@pytest.mark.parametrize("norm", [0.5, 1e6])
def test_clipping_equals_torch(norm: float) -> None:
    mine, theirs = parameters(torch.float64), parameters(torch.float64)
    for named in (mine, theirs):
        backward(named)
    before = {key: parameter.grad.clone() for key, parameter in mine.items()}  # type: ignore[union-attr]
    found = clip_gradients(mine.values(), norm)
    total = float(torch.nn.utils.clip_grad_norm_(theirs.values(), norm))
    assert found == pytest.approx(total)
    for key in mine:
        assert torch.allclose(mine[key].grad, theirs[key].grad, rtol=1e-6, atol=0)  # type: ignore[arg-type]
        assert torch.equal(mine[key].grad, before[key]) == (norm > total)  # type: ignore[arg-type]
    clip_gradients(mine.values(), norm, lambda square: 4 * square)
    if norm < total:
        assert not torch.allclose(mine["model.layers.1.bias"].grad, theirs["model.layers.1.bias"].grad)  # type: ignore[arg-type]


def test_the_average_is_that_of_torch() -> None:
    mine, theirs = parameters(torch.float64), parameters(torch.float64)
    optimizer = made(mine, optimizer="sgd", ema=0.8)
    module = nn.ParameterList(theirs.values())
    average = torch.optim.swa_utils.AveragedModel(module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8))
    other = torch.optim.SGD(theirs.values(), lr=0.1, momentum=0.9, nesterov=True)
    for _ in range(4):
        descend(optimizer, 1)
        reference(theirs, other, 1)
        average.update_parameters(module)
    assert equal(mine, theirs, 1e-12)
    wanted = list(average.module)
    with optimizer.averaged():
        assert all(torch.allclose(p, w, rtol=0, atol=1e-12) for p, w in zip(mine.values(), wanted, strict=True))
    assert equal(mine, theirs, 1e-12)
    assert not all(torch.allclose(p, w) for p, w in zip(mine.values(), wanted, strict=True))


def test_half_precision_takes_small_steps() -> None:
    optimizer = made({"w": nn.Parameter(torch.full((2,), 256.0, dtype=torch.bfloat16))}, optimizer="sgd", lr=0.01)
    for _ in range(10):
        optimizer.zero_grad()
        optimizer.parameters["w"].sum().backward()
        optimizer.step()
    # one step is far below the resolution of bfloat16 at 256
    assert float(optimizer.state()["master.w"][0]) < 255.9


def test_foreign_state_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no parameter 'x'"):
        made(parameters()).load({"exp_avg.x": torch.zeros(1)})


def test_state_that_does_not_fit_is_refused() -> None:
    optimizer = made(parameters(), ema=0.9)
    descend(optimizer, 1)
    state, name = optimizer.state(), "model.layers.1.bias"
    optimizer.load(state)
    for entry, value, words in (
        (f"exp_avg.{name}", torch.zeros(5, dtype=torch.int64), r"of type torch\.int64 .*Adam keeps torch\.float32"),
        (f"exp_avg.{name}", torch.zeros(4), r"of type torch\.float32 and shape \[4\], and Adam"),
        (f"step.{name}", torch.tensor(True), r"of type torch\.bool"),
        (f"momentum_buffer.{name}", torch.zeros(5), "Adam keeps ema, step, exp_avg, exp_avg_sq"),
    ):
        with pytest.raises(CheckpointError, match=words):
            optimizer.load({**state, entry: value})
    for entry in ("exp_avg_sq", "ema"):
        left = {key: value for key, value in state.items() if key != f"{entry}.{name}"}
        with pytest.raises(CheckpointError, match=rf"no optimizer state '{entry}\.{name}', which Adam needs"):
            optimizer.load(left)
    plain = optimizer.plain()
    for other in (
        {**plain, "groups": []},
        {**plain, "scheduler": {"is": "mapping", "of": []}},
        {**plain, "groups": [3]},
    ):
        with pytest.raises(CheckpointError, match="does not fit"):
            optimizer.load_plain(other)


def test_what_cannot_be_made_is_refused() -> None:
    own = nn.Parameter(torch.zeros(3))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"optimizer": {"name": "AdamW", "beta": 3}}, r"train\.optimizer\.beta is not a setting; did you mean"),
        ({"optimizer": {"name": "AdamW", "betas": 3}}, r"train\.optimizer AdamW cannot be made: TypeError"),
        ({"optimizer": "Rprop", "weight_decay": 0.1}, r"train\.weight_decay is 0\.1, and Rprop has none"),
        (
            {"optimizer": lambda _: torch.optim.SGD([own], lr=0.1)},
            r"over a parameter of shape \[3\] that is not trained",
        ),
        ({"optimizer": lambda _: 3}, r"train\.optimizer gave a int"),
        ({"optimizer": Listed}, r"Listed keeps 'factors' of a parameter, a list; a checkpoint can hold"),
        ({"optimizer": Closed}, r"Closed cannot step: .*closure"),
        ({"scheduler": {"name": "StepLR"}}, r"train\.scheduler StepLR cannot be made: .*step_size"),
        ({"scheduler": {"name": "StepLR", "step": 2}}, r"train\.scheduler\.step is not a setting; did you mean"),
        ({"scheduler": lambda optimizer: optimizer}, r"train\.scheduler gave a Adam"),
    ]
    for options, words in cases:
        with pytest.raises(ConfigError, match=words):
            kept_of_each(TrainOptions(**options), {name: torch.empty(shape) for name, shape in SHAPES.items()})


def test_what_a_number_costs() -> None:
    wanted = {"Adam": 2, "AdamW": 2, "SGD": 1, "Adagrad": 1, "Adafactor": 0}
    assert {name: numbers_kept(TrainOptions(optimizer=name)) for name in wanted} == wanted
    assert numbers_kept(TrainOptions(ema=0.9)) == 3


def test_groups_are_checked() -> None:
    assert decay_by_group(0.1) == {"conv": 0.1, "dense": 0.1}
    assert decay_by_group({"conv": 1}) == {"conv": 1.0, "dense": 0.0}
    with pytest.raises(ConfigError, match=r"train\.weight_decay\.conf"):
        decay_by_group({"conf": 1.0})


def test_a_model_without_parameters_is_fine() -> None:
    optimizer = Optimizer(TrainOptions(scheduler={"name": "StepLR", "step_size": 1}, ema=0.9), {})
    optimizer.step()
    optimizer.advance_schedule()
    assert optimizer.state() == {}
    assert optimizer.lr == pytest.approx(0.001)


def test_milestones_stay_a_counter() -> None:
    optimizer = made(parameters(), scheduler={"name": "MultiStepLR", "milestones": [2, 4]})
    optimizer.load_plain(optimizer.plain())
    assert isinstance(optimizer.scheduler.milestones, Counter)  # type: ignore[union-attr]


def test_the_compiler_of_torch_is_not_loaded() -> None:
    """It would double the time that each rank takes to start."""
    code = """
import sys, torch
from trisect.config import TrainOptions
from trisect.train.optimizer import Optimizer
for options in ({}, {"optimizer": "adamw", "scheduler": {"name": "OneCycleLR", "max_lr": 1.0}}, {"optimizer": "sgd"}):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = Optimizer(TrainOptions(lr=0.1, **options), {"w": weight})
    weight.sum().backward()
    optimizer.step()
    optimizer.advance_schedule()
    print(bool((weight < 1).all()), "torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"] * 3
    assert "Warning" not in done.stderr
