"""Steps of the optimizer for batches of chunks: every gradient of every step against dense matrices in one process."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("gcn", {"layers": 3, "hidden": 6, "dropout": 0.3}),
    ("gcnii", {"layers": 4, "hidden": 6, "dropout": 0.3}),
    ("sage", {"layers": 3, "hidden": 6, "dropout": 0.3, "norm": "layer"}),
    ("resgcn+", {"layers": 4, "hidden": 6, "dropout": 0.3}),
    ("gat", {"layers": 3, "hidden": 6, "heads": 2, "attention_dropout": 0.4}),
    ("gin", {"layers": 3, "hidden": 6, "train_eps": True}),
    ("pyg", {}),
    ("gatv2", {"layers": 3, "hidden": 6, "heads": 2, "attention_dropout": 0.4}),
    ("gine", {"layers": 3, "hidden": 6, "train_eps": True}),
]
LAYOUTS: dict[int, list[dict[str, int]]] = {
    1: [{}],
    2: [{"vertex": 2}, {"layer": 2}],
    3: [{"vertex": 3}],
    4: [{"vertex": 2, "layer": 2}],
}
# 4 batches of a chunk each, and 3 of about two chunks
STEPS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"batches": 4}),
    ({"chunks": 7}, {"batches": 3}),
    ({"chunks": 5, "history": {"blend": 0.5, "refresh": 2, "guard": 0}}, {"batches": 3}),
    ({}, {"batches": 4, "outside": "drop"}),
    ({"chunks": 7}, {"batches": 3, "outside": "drop"}),
]


def worst(results: list[dict[str, Any]], what: str) -> float:
    return max(result[what] for result in results)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_steps_equal_those_of_one_process(world: int, tmp_path: Path, ranks: ModuleType) -> None:
    """Where nothing is pushed to history, which is the negative control, gradients differ."""
    cases = [
        {
            "run": "steps",
            "layout": {**layout, **chunks},
            "model": model,
            "options": options,
            "graph": graph,
            "train": {"step": "chunk", **train},
        }
        for layout in LAYOUTS[world]
        for graph in ("mutual", "community", "isolated")
        for model, options in (MODELS if graph == "community" and world < 3 else MODELS[2:5:2])
        for chunks, train in STEPS
    ]
    wrong = [{**case, "break": "push"} for case in cases[:2]]
    results = ranks.run_forks(world, [*cases, *wrong], tmp_path)
    for case, result in zip(cases, results, strict=False):
        assert worst(result, "gradient") < 1e-10, case
        assert worst(result, "loss") < 1e-12, case
        assert worst(result, "parameters") < 1e-10, case
        if "refresh" not in case["layout"].get("history", {}):  # whose passes the formula of an epoch leaves out
            assert sum(result[0]["bytes"].values()) == result[0]["formula"], case
        assert result[0]["steps"] == 2 * case["train"]["batches"], case
    for case, result in zip(wrong, results[len(cases) :], strict=True):
        assert worst(result, "gradient") > 1e-4, case


BLOCKS: dict[int, list[dict[str, Any]]] = {
    1: [{"blocks": 3}, {"blocks": 7}],
    2: [{"time": 2, "blocks": 3}, {"vertex": 2, "blocks": 3}, {"layer": 2, "blocks": 3}],
    3: [{"time": 3, "blocks": 2}],
    4: [{"time": 2, "vertex": 2, "blocks": 3}, {"time": 2, "layer": 2, "blocks": 2}],
}
ALONG: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("cd-gcn", {"hidden": 4, "dropout": 0.3}, ("carry", "redistribute")),
    ("evolvegcn-o", {"hidden": 4, "dropout": 0.3}, ("auto",)),
    ("evolvegcn-h", {"hidden": 4, "dropout": 0.3}, ("auto",)),
    ("tm-gcn", {"hidden": 4, "window": 3, "dropout": 0.3}, ("halo", "carry", "redistribute")),
]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_blocks_equal_those_of_one_process(world: int, tmp_path: Path, ranks: ModuleType) -> None:
    """States go on from block to block, gradients do not; blocks without states are the negative control."""
    cases: list[dict[str, Any]] = [
        {
            "module": "timeline_cases",
            "run": "blocks",
            "layout": {**layout, "temporal": temporal} if "time" in layout else layout,
            "model": model,
            "options": options,
            "train": {"step": "block"},
            **more,
        }
        for layout in BLOCKS[world]
        for model, options, able in ALONG
        for temporal in (able if "time" in layout else able[:1])
        for more in ({}, {"uneven": True, "fixed": True})
    ]
    wrong = [{**case, "break": "states"} for case in cases[:1]]
    results = ranks.run_forks(world, [*cases, *wrong], tmp_path)
    for case, result in zip(cases, results, strict=False):
        assert worst(result, "gradient") < 1e-10, case
        assert worst(result, "loss") < 1e-12, case
        assert sum(result[0]["bytes"].values()) == result[0]["formula"], (case, result[0]["bytes"])
    assert worst(results[-1], "gradient") > 1e-4
