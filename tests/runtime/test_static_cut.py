"""Graphs cut by vertex, by layer, and both: every gradient against one process, in real worlds of ranks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

_LAUNCH = Path(__file__).parents[1] / "ranks" / "launch.py"
_spec = importlib.util.spec_from_file_location("launch", _LAUNCH)
assert _spec is not None
assert _spec.loader is not None
launch = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(launch)

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("gcn", {"layers": 4, "hidden": 6, "dropout": 0.3}),
    ("gcnii", {"layers": 6, "hidden": 6, "dropout": 0.3}),
    ("sage", {"layers": 4, "hidden": 6, "dropout": 0.3}),
    ("resgcn+", {"layers": 4, "hidden": 6, "dropout": 0.3}),
    ("gat", {"layers": 3, "hidden": 6, "heads": 2}),
    ("gin", {"layers": 3, "hidden": 6}),
]
GRAPHS = ["community", "star", "path", "isolated"]
EXACT: dict[int, list[dict[str, int]]] = {
    1: [{}],
    2: [{"vertex": 2}, {"layer": 2}],
    3: [{"vertex": 3}, {"layer": 3}],
    4: [{"vertex": 4}, {"vertex": 2, "layer": 2}],
}
STALE: dict[int, list[dict[str, int]]] = {
    1: [{"chunks": 4}],
    2: [{"layer": 2, "chunks": 4}, {"vertex": 2, "chunks": 3}],
    3: [{"layer": 3, "chunks": 5}],
    4: [{"vertex": 2, "layer": 2, "chunks": 3}],
}


def worst(results: list[dict[str, Any]], what: str) -> float:
    return max(result[what] for result in results)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_exact_cuts_equal_one_process(world: int, tmp_path: Path) -> None:
    graphs = GRAPHS if world in (2, 4) else GRAPHS[:1]
    cases = [
        {"run": "gradients", "layout": layout, "model": model, "options": options, "graph": graph}
        for layout in EXACT[world]
        for graph in graphs
        for model, options in MODELS
    ]
    for case, results in zip(cases, launch.run_ranks(world, cases, tmp_path), strict=True):
        assert worst(results, "gradient") < 1e-10, case
        assert worst(results, "loss") < 1e-12, case


def test_a_wrong_halo_is_seen(tmp_path: Path) -> None:
    case = {"run": "gradients", "layout": {"vertex": 2}, "model": "gcn", "options": MODELS[0][1], "break": "halo"}
    [results] = launch.run_ranks(2, [case], tmp_path)
    assert worst(results, "gradient") > 1e-3


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_stale_pipeline_is_its_definition(world: int, tmp_path: Path) -> None:
    cases = [
        {"run": "stale", "layout": layout, "model": model, "options": options, "scale": scale, "period": period}
        for layout in STALE[world]
        for model, options in MODELS
        for scale, period in ((1.0, 1), (2.0, 3))
    ]
    wrong = {"run": "stale", "layout": STALE[world][0], "model": "gcn", "options": MODELS[0][1], "break": "order"}
    *right, broken = launch.run_ranks(world, [*cases, wrong], tmp_path)
    for case, results in zip(cases, right, strict=True):
        assert worst(results, "gradient") < 1e-10, case
        assert worst(results, "loss") < 1e-12, case
    assert worst(broken, "gradient") > 1e-3
