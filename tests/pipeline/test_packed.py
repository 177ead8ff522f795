"""Activations without their zeros: gradients as without packing under every cut, and less memory held."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

import trisect
from trisect.graph.timeline.timeline import Timeline
from trisect.ops import memory
from trisect.pipeline.cell import Cell
from trisect.pipeline.stage import Values

DROPPED: dict[str, Any] = {"hidden": 4, "dropout": 0.6}
# the recurrent part of CD-GCN gives few zeros, the others have a relu
TIMELINE_MODELS: list[tuple[str, dict[str, Any]]] = [
    ("cd-gcn", DROPPED),
    ("tm-gcn", {**DROPPED, "window": 3}),
    ("evolvegcn-o", DROPPED),
    ("evolvegcn-h", DROPPED),
    ("gcn", {**DROPPED, "layers": 3}),
]
STATIC_MODELS: list[tuple[str, dict[str, Any]]] = [
    ("gcn", {**DROPPED, "layers": 3}),
    ("gcnii", {**DROPPED, "layers": 4}),
    ("sage", {**DROPPED, "layers": 3}),
]
CUTS: list[dict[str, Any]] = [{"time": 2}, {"vertex": 2}, {"layer": 2}, {"time": 2, "blocks": 2, "recompute": True}]


def of_timeline(model: str, options: dict[str, Any], layout: dict[str, Any], **more: Any) -> dict[str, Any]:
    common = {"module": "timeline_cases", "run": "timeline", "model": model, "options": options}
    return {**common, "layout": {**layout, "pack": True}, **more}


def of_graph(model: str, options: dict[str, Any], layout: dict[str, Any], **more: Any) -> dict[str, Any]:
    common = {"run": "gradients", "model": model, "options": options, "graph": "community"}
    return {**common, "layout": {**layout, "pack": True}, **more}


def test_gradients_are_those_of_one_process(tmp_path: Any, ranks: ModuleType) -> None:
    cases = [of_timeline(*model, layout, twice=True) for model in TIMELINE_MODELS for layout in CUTS]
    cases += [of_graph(*model, layout) for model in STATIC_MODELS for layout in ({"vertex": 2}, {"layer": 2})]
    wrong = [of_timeline(*TIMELINE_MODELS[1], layout, **{"break": "pack"}) for layout in CUTS[:3]]
    wrong.append(of_graph(*STATIC_MODELS[0], {"vertex": 2}, **{"break": "pack"}))
    results = ranks.run_forks(2, [*cases, *wrong], tmp_path)
    for case, result in zip(cases, results[: len(cases)], strict=True):
        assert max(outcome["gradient"] for outcome in result) < 1e-10, case
        assert max(outcome["loss"] for outcome in result) < 1e-12, case
        full, held = (sum(outcome["packed"][which] for outcome in result) for which in (0, 1))
        assert held < full, case
    for case, result in zip(wrong, results[len(cases) :], strict=True):
        assert max(outcome["gradient"] for outcome in result) > 1e-5, case


# packed rows lie in buffers of 16 MiB, the last of which may be nearly empty
@pytest.mark.parametrize(("model", "less"), [("gcn", 6 * 12_000 * 64 * 4), ("tm-gcn", 0)])
def test_less_is_held_between_forward_and_backward(model: str, less: int, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline.generate("uniform", vertices=12_000, degree=2.0, steps=9)
    task = {"name": "link-prediction", "eval_negatives": 1, "split": [6, 1, 1]}
    options = {"layers": 4, "hidden": 64, "dropout": 0.6, "epochs": 1}
    held: list[int] = []
    backward = Cell.backward

    def counted(cell: Cell, gradients: Values) -> Values:
        held.append(memory.stats().used_bytes - before)
        return backward(cell, gradients)

    monkeypatch.setattr(Cell, "backward", counted)
    most = {}
    for pack in ("false", "true"):
        held.clear()
        memory.trim()
        before = memory.stats().used_bytes
        loss = trisect.fit(model, timeline, task, f"pack={pack}", **options).loss
        most[pack] = (held[0], loss)
    assert most["true"][1] == most["false"][1], "packing is exact to the bit"
    assert most["false"][0] - most["true"][0] > less, most


@pytest.mark.parametrize("model", ["gin", "resgcn+"])
def test_rows_that_backward_reads_are_left_where_they_are(model: str) -> None:
    """Gradients take the memory of rows that readers saw, but for those that autograd saved as they are."""
    graph = trisect.Graph.generate("community", vertices=300, degree=4.0)
    options: dict[str, Any] = {"hidden": 8, "layers": 3, "epochs": 4}
    losses = [trisect.fit(model, graph, layout=f"chunks=3,pack={pack}", **options).loss for pack in ("true", "false")]
    assert losses[0] == losses[1]
