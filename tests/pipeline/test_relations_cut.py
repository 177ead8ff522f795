"""Edges of several relations under every cut: gradients against one process, in real worlds of ranks.

What PyG makes of relations is compared in one process (`tests/nn/conv/test_relations.py`).
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import trisect
from trisect.nn import GCNLayer, HeteroLayer, Model, SAGELayer

Case = dict[str, Any]

RELATIONAL: list[tuple[str, Case]] = [
    ("rgcn", {"layers": 3, "hidden": 6, "dropout": 0.3}),
    # its first layer crosses as x, the others as the bases' products, which are narrower
    ("rgcn", {"layers": 2, "hidden": 20, "bases": 2}),
    ("hetero", {"hidden": 6}),
    ("hetero", {"hidden": 4, "together": "attention"}),
]
GRAPHS = ("community", "mutual", "isolated")
EXACT: dict[int, list[Case]] = {
    2: [{"vertex": 2}, {"layer": 2}, {"vertex": 2, "recompute": True}],
    3: [{"vertex": 3}],
    4: [{"vertex": 2, "layer": 2}],
}
STALE: dict[int, list[Case]] = {1: [{"chunks": 4}], 2: [{"layer": 2, "chunks": 4}, {"vertex": 2, "chunks": 3}]}
DYNAMIC: list[tuple[str, Case]] = [
    ("recurrent", {"hidden": 4, "spatial": "rgcn", "temporal": "lstm", "concat": True, "dropout": 0.3}),
    ("recurrent", {"hidden": 4, "spatial": "rgcn", "temporal": "mean", "window": 3, "bases": 2}),
    ("rgcn", {"hidden": 4, "dropout": 0.3}),
    ("hetero", {"hidden": 4}),
]
ALONG: dict[int, list[Case]] = {
    1: [{"blocks": 3}],
    2: [{"vertex": 2}, {"time": 2}, {"time": 2, "blocks": 2, "recompute": True}, {"layer": 2, "blocks": 3}],
    4: [{"time": 2, "vertex": 2, "blocks": 2}, {"time": 2, "layer": 2}],
}


def worst(results: list[Case], what: str) -> float:
    return max(result[what] for result in results)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_cuts_of_relations_equal_one_process(world: int, tmp_path: Path, ranks: ModuleType) -> None:
    cases = [
        {"run": "gradients", "layout": layout, "model": model, "options": options, "graph": graph, "related": True}
        for layout in EXACT[world]
        for graph in GRAPHS
        for model, options in RELATIONAL
        if "layer" not in layout or options.get("layers") != 2 or layout["layer"] == 2
    ]
    for case, results in zip(cases, ranks.run_forks(world, cases, tmp_path), strict=True):
        compared = {name for result in results for name in result["compared"]}
        assert sorted(compared) == results[0]["parameters"], case
        for what in ("gradient", "loss", "outputs", "hidden"):
            assert worst(results, what) < 1e-10, (case, what)
        assert results[0]["bytes"] == results[0]["formula"], case


@pytest.mark.parametrize("broken", ["halo", "edge"])
@pytest.mark.parametrize(("model", "options"), [RELATIONAL[0], RELATIONAL[2]])
def test_a_wrong_row_or_edge_is_found(
    model: str, options: Case, broken: str, tmp_path: Path, ranks: ModuleType
) -> None:
    case = {"run": "gradients", "layout": {"vertex": 2}, "model": model, "options": options, "related": True}
    (results,) = ranks.run_forks(2, [{**case, "break": broken}], tmp_path)
    assert worst(results, "gradient") > 1e-6


@pytest.mark.parametrize("world", [1, 2])
def test_chunks_read_relations_of_history(world: int, tmp_path: Path, ranks: ModuleType) -> None:
    recipe = {"scale": 1.0, "period": 1, "blend": 0.0, "guard": 0}
    cases = [
        {"run": "stale", "layout": layout, "model": model, "options": options, "related": True, "recipe": recipe}
        for layout in STALE[world]
        for model, options in RELATIONAL[:2]
    ]
    wrong = [{**cases[0], "break": "order"}]
    *found, last = ranks.run_forks(world, [*cases, *wrong], tmp_path)
    for case, results in zip(cases, found, strict=True):
        assert worst(results, "gradient") < 1e-10, case
        assert worst(results, "loss") < 1e-10, case
        assert results[0]["stale epochs"] > 0, case
    assert worst(last, "gradient") > 1e-6


@pytest.mark.parametrize("world", [1, 2, 4])
def test_timelines_of_relations_equal_one_process(world: int, tmp_path: Path, ranks: ModuleType) -> None:
    cases = [
        {
            "module": "timeline_cases",
            "run": "timeline",
            "layout": layout,
            "model": model,
            "options": options,
            "related": True,
            "evaluate": True,
            **more,
        }
        for layout in ALONG[world]
        for model, options in DYNAMIC
        for more in ({}, {"slides": True, "symmetric": True, "normalisation": "symmetric"})
    ]
    for case, results in zip(cases, ranks.run_forks(world, cases, tmp_path), strict=True):
        assert worst(results, "gradient") < 1e-10, case
        assert results[0]["bytes"] == results[0]["formula"], case


def test_layers_by_relation_read_history() -> None:
    """Stages over chunks do what one process does with the same chunks; without history it is something else."""
    graph = trisect.Graph.generate("community", vertices=120, features=5, classes=3, seed=3)
    row, column = graph.adjacency.coordinates()
    named: dict[str, Any] = {"relation": (row * 7 + column) % 3, "relations": ["cites", "writes", "likes"]}
    related = trisect.Graph.from_edges(column, row, x=graph.x, y=graph.y, splits=graph.splits, **named)
    losses = []
    for layout in ("chunks=3", "layer=2,chunks=3", ""):
        torch.manual_seed(0)
        forms: Any = {"cites": "symmetric", "writes": "row"}
        layers = [
            HeteroLayer(
                {"cites": GCNLayer(a, b), "writes": SAGELayer(a, b)}, normalisation=forms, self_loops={"cites": True}
            )
            for a, b in ((5, 6), (6, 3))
        ]
        run = trisect.fit(Model(layers), related, layout=layout, epochs=4, precision="float64", progress=False)
        losses.append(run.summary["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-10)
    assert losses[2] != pytest.approx(losses[0], rel=1e-4)
