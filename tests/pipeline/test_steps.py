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
