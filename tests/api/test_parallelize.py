"""A model, a loss and a loop of the user's own, under layouts: the numbers of one process."""

from __future__ import annotations

import sys
import time
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


@pytest.mark.parametrize(("layout", "own"), [("vertex=2", True), ("vertex=2", False), ("vertex=2,layer=2", False)])
def test_a_forward_that_differs_ends_all_ranks(layout: str, own: bool) -> None:
    """Where a rank's forward asks something else, one sentence names the module and both verbs, and soon."""
    name = r"Moody\(\)" if own else r"MoodyLayer\(12, 12\)"
    number = "0" if own else "1"
    words = rf"rank 0 asked aggregate 1 of layer {number} \({name}\), rank 1 asked sum 1 of layer {number} \({name}\); "
    start = time.monotonic()
    with pytest.raises(RunError, match=words):
        trisect.launch(own_models.moody, layout, layout, own)
    assert time.monotonic() - start < 40.0  # most of it to import torch; a rank waits up to ten minutes for another


def test_a_trace_that_differs_ends_all_ranks() -> None:
    """It is seen before the first step."""
    words = (
        r"layer 0 \(Moody\(\)\) asks (sum|aggregate) 8 on rank [01] and (sum|aggregate) 8 on rank [01]; forward must"
    )
    with pytest.raises(RunError, match=words):
        trisect.launch(own_models.moody, "vertex=2", "vertex=2", True, True)


@pytest.mark.parametrize(("layout", "apart"), [("vertex=2", True), ("vertex=3", False), ("layer=2", False)])
def test_tied_parameters_of_one_stage(layout: str, apart: bool) -> None:
    """They are reduced, clipped and stepped once."""
    alone, found = own_models.train_tied("", apart), trisect.launch(own_models.train_tied, layout, layout, apart)
    assert max(largest(alone[name], found[name]) for name in ("loss", "norms")) < 1e-10
    first, second = ("layers.0.weight" if apart else "layers.2.weight"), "layers.3.weight"
    for run in (alone, found):
        assert torch.equal(run["state"][first], run["state"][second])
        assert second not in run["names"]
    assert max(float((value - found["state"][name]).abs().max()) for name, value in alone["state"].items()) < 1e-10
    for one, other in zip(alone["called"], found["called"], strict=False):
        assert float((one - other).abs().max()) < 1e-10


def test_tied_parameters_in_checkpoints(tmp_path: Path) -> None:
    """A run keeps them under both names, on ranks as in one process, and counts their bytes once."""
    losses = []
    for layout in ("", "vertex=2"):
        folder = tmp_path / (layout or "alone")
        run = trisect.fit(own_models.tied(True), own_models.data(), layout=layout, epochs=3, out=folder)
        losses.append(run.summary["loss"])
        said = run.summary["communication"]
        assert said["bytes_per_epoch"] == said["formula_bytes_per_epoch"]
        assert (said["bytes_per_epoch"] > 0) == bool(layout)
        state = run.model.state_dict()
        assert torch.equal(state["layers.0.weight"], state["layers.3.weight"])
    assert largest(*losses) < 1e-5


def test_a_tied_parameter_is_not_two() -> None:
    """The comparison fails where the weights begin alike and train apart."""
    tied, untied = own_models.train_tied("", True), own_models.train_tied("", False)
    assert largest(tied["norms"], untied["norms"]) > 1e-6


def test_parameters_tied_across_stages_are_refused() -> None:
    words = (
        r"puts layer 0 \(GCNLayer\(8, 8.*\)\) into stage 0 and layer 3 \(GCNLayer\(8, 8.*\)\) into stage 1, and"
        r" both have the same parameter 'weight'; use fewer stages, so that both are in one, or cut by vertex"
    )
    with pytest.raises(LayoutError, match=words):
        trisect.fit(own_models.tied(True), own_models.data(), layout="layer=2", epochs=1)
    with pytest.raises((LayoutError, RunError), match=words):
        trisect.launch(own_models.train_tied, "layer=2", "layer=2", True)


@pytest.mark.parametrize(
    ("layout", "timeline", "calls"),
    [
        ("vertex=2", False, [2]),
        ("layer=2,chunks=3,history=exact", False, None),
        ("vertex=2,layer=2", False, None),
        ("time=2", True, [2]),
        ("time=2,vertex=2,blocks=2", True, [8, 8]),
    ],
)
def test_a_term_that_every_call_computes(layout: str, timeline: bool, calls: list[int] | None) -> None:
    """Divided by `rows.calls`, a penalty on parameters has the gradient of one process."""
    alone = own_models.train_penalised("", timeline, True)
    found = trisect.launch(own_models.train_penalised, layout, layout, timeline, True)
    assert alone["calls"] == [1]
    assert calls is None or found["calls"] == calls
    assert abs(alone["loss"] - found["loss"]) < 1e-10
    assert apart(alone["gradients"], found["gradients"]) < 1e-10
    if calls is not None:  # undivided, it counts as often as it is computed
        undivided = trisect.launch(own_models.train_penalised, layout, layout, timeline, False)
        assert apart(alone["gradients"], undivided["gradients"]) > 1e-3


@pytest.mark.parametrize(("divided", "times"), [(True, 1), (False, 4)])
def test_a_term_that_every_chunk_computes(divided: bool, times: int) -> None:
    """The second step goes over chunks: the penalty's own gradient is 2 · 0.7 · the parameter, once."""
    layout = "layer=2,chunks=4"
    with_it, without = (
        trisect.launch(own_models.train_penalised, layout, layout, False, divided, weight, 2) for weight in (0.7, 0.0)
    )
    for name in ("layers.3.weight", "layers.3.bias"):
        own = with_it["gradients"][name] - without["gradients"][name]
        assert float((own - times * 1.4 * with_it["parameters"][name]).abs().max()) < 1e-10


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((value - other[name]).abs().max()) for name, value in one.items())


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
