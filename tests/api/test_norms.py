"""Batch norm under every exact cut: losses, parameters, running statistics and evaluation of one process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import own_norms

import trisect

GRAPH = ["vertex=3"]
GRAPH_LAYERS = ["vertex=2,layer=2", "vertex=2,recompute=true,spatial=redistribute"]
TIMELINE = ["time=3,blocks=2", "vertex=2,time=2,blocks=2"]
TIMELINE_LAYERS = ["layer=2,blocks=3", "vertex=2,time=2,recompute=true", "time=2,temporal=redistribute"]


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """The largest difference of everything that was found."""
    state = {name: float((value - other["state"][name]).abs().max()) for name, value in one["state"].items()}
    result = {"parameters": 0.0, "running": 0.0}
    for name, value in state.items():
        key = "running" if "running" in name or "tracked" in name else "parameters"
        result[key] = max(result[key], value)
    if "gradients" in one:
        result["gradients"] = max(
            float((g - other["gradients"][name]).abs().max()) for name, g in one["gradients"].items()
        )
        return result
    result["loss"] = max(abs(a - b) for a, b in zip(one["loss"], other["loss"], strict=True))
    result["norm"] = abs(one["norm"] - other["norm"])
    result["measured"] = max(abs(value - other["measured"][name]) for name, value in one["measured"].items())
    return result


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return {kind: own_norms.train("", kind) for kind in ("graph", "graph layers", "timeline", "timeline layers")}


@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        *((layout, "graph") for layout in GRAPH),
        *((layout, "graph layers") for layout in GRAPH_LAYERS),
        *((layout, "timeline") for layout in TIMELINE),
        *((layout, "timeline layers") for layout in TIMELINE_LAYERS),
    ],
)
def test_cuts_equal_one_process(layout: str, kind: str, alone: dict[str, Any]) -> None:
    found = differences(alone[kind], trisect.launch(own_norms.train, layout, layout, kind))
    assert max(found.values()) < 1e-10, found


def test_blocks_and_recomputation_of_one_process(alone: dict[str, Any]) -> None:
    """A step that is run again updates no running statistics."""
    for kind, layout in (("graph layers", "recompute=true"), ("timeline", "blocks=3"), ("timeline layers", "blocks=4")):
        found = differences(alone[kind], own_norms.train(layout, kind))
        assert max(found.values()) < 1e-10, (kind, found)


@pytest.mark.parametrize(("layout", "kind"), [("vertex=2", "graph"), ("time=2", "timeline")])
def test_plain_calls(layout: str, kind: str) -> None:
    """Each call in training updates running statistics, as in torch."""
    one, found = own_norms.called("", kind), trisect.launch(own_norms.called, layout, layout, kind)
    assert max(differences(one, found).values()) < 1e-10
    if kind == "graph":
        tracked = {name: int(value) for name, value in found["state"].items() if "tracked" in name}
        assert tracked == {"one.num_batches_tracked": 2, "two.num_batches_tracked": 4}


@pytest.mark.parametrize(("layout", "kind"), [("vertex=2", "graph"), ("time=2", "timeline")])
def test_statistics_of_own_rows_are_seen(layout: str, kind: str) -> None:
    """The negative control: a norm over the rows of a rank differs."""
    wrong = f"{kind} wrong"
    found = differences(own_norms.train("", wrong), trisect.launch(own_norms.train, layout, layout, wrong))
    assert found["parameters"] > 1e-4
