"""A model, a loss and a loop of the user's own, under layouts: the numbers of one process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

import own_models

import trisect
from trisect.errors import ConfigError, LayoutError, RunError


def differences(layout: str, own: bool, **more: Any) -> dict[str, float]:
    """The largest difference of everything that a loop sees to one process."""
    alone = own_models.train("", own)
    found = trisect.launch(own_models.train, layout, layout, own, *more.values())
    result = {name: largest(alone[name], found[name]) for name in ("loss", "norms")}
    result["state"] = max(float((value - found["state"][name]).abs().max()) for name, value in alone["state"].items())
    result["measured"] = abs(alone["measured"]["right"] - found["measured"]["right"])
    assert alone["state"].keys() == found["state"].keys()
    for one, other in zip(alone["called"], found["called"], strict=False):
        result["called"] = max(result.get("called", 0.0), float((one - other).abs().max()))
    if len(found["own"]) == 2:
        ids, outputs = found["own"]
        whole = dict(zip(alone["own"][0].tolist(), alone["own"][1], strict=True))
        result["outputs"] = max(
            float((whole[i] - row).abs().max()) for i, row in zip(ids.tolist(), outputs, strict=True)
        )
    return result


def largest(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("layout", ["vertex=2", "vertex=3"])
def test_a_module_of_ones_own(layout: str) -> None:
    """Steps, accumulation, clipping, calls, measures and outputs are those of one process."""
    found = differences(layout, True)
    assert set(found) == {"loss", "norms", "state", "measured", "called", "outputs"}
    assert max(found.values()) < 1e-10, found


@pytest.mark.parametrize("layout", ["vertex=2", "layer=2", "vertex=2,layer=2"])
def test_a_list_of_layers(layout: str) -> None:
    """It is cut by layer too."""
    found = differences(layout, False)
    assert max(found.values()) < 1e-10, found


def test_a_spoilt_rank_is_seen() -> None:
    """The comparison fails where one rank has other parameters."""
    assert max(differences("vertex=2", True, spoilt=True).values()) > 1e-6


def test_chunks_train() -> None:
    """Chunks that read history come near one process."""
    found = trisect.launch(own_models.train, "layer=2,chunks=4", "layer=2,chunks=4", False)
    alone = own_models.train("", False)
    assert 0.0 < largest(alone["loss"], found["loss"]) < 0.5


def test_the_users_names_are_kept() -> None:
    part = trisect.parallelize(own_models.Net(), own_models.data())
    assert set(part.state_dict()) == set(own_models.Net().state_dict())
    assert [name for name, _ in part.named_parameters()] == [name for name, _ in own_models.Net().named_parameters()]
    part.load_state_dict(own_models.Net().state_dict())


def test_only_what_a_backward_added_is_reduced() -> None:
    """Two calls add up, in one process as on ranks (`test_a_module_of_ones_own` compares them)."""
    part = trisect.parallelize(own_models.Net(), own_models.data(), precision="float64")
    part.model.eval()
    own_models.loss(part(part.x), part.rows).backward()  # type: ignore[no-untyped-call]
    once = [p.grad.clone() for p in part.parameters() if p.grad is not None]
    own_models.loss(part(part.x), part.rows).backward()  # type: ignore[no-untyped-call]
    twice = [p.grad for p in part.parameters() if p.grad is not None]
    assert all(torch.allclose(2 * a, b, rtol=1e-12, atol=1e-14) for a, b in zip(once, twice, strict=True))


class Narrow(nn.Module):
    def forward(self, x: torch.Tensor, g: Any) -> torch.Tensor:
        return x[:3]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: trisect.parallelize(own_models.Net(), own_models.data(), "layer=2"), LayoutError, "list of layers"),
        (lambda: trisect.parallelize(own_models.Net(), own_models.data(), "vertex=2"), LayoutError, "trisect.launch"),
        (lambda: trisect.parallelize(Narrow(), own_models.data()), ConfigError, "a row for each row"),
        (lambda: trisect.parallelize(nn.Linear(8, 3), own_models.data()), ConfigError, "g a trisect.View"),
        (lambda: trisect.parallelize(own_models.layers(), own_models.data(), "auto"), LayoutError, "trisect.plan"),
        (lambda: trisect.launch(own_models.fails, "vertex=2", "vertex=2"), (ConfigError, RunError), "one number"),
        (
            lambda: trisect.launch(own_models.returns_a_module, "vertex=2", "vertex=2"),
            (ConfigError, RunError),
            "plain values",
        ),
        (
            lambda: trisect.parallelize(own_models.layers(), own_models.data()).step(lambda out, rows: 1.0),  # type: ignore[arg-type,return-value]
            ConfigError,
            "one number",
        ),
        (
            lambda: trisect.parallelize(own_models.layers(), own_models.data()).load_state_dict({}),
            ConfigError,
            "has no",
        ),
    ],
)
def test_refusals(call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call()
