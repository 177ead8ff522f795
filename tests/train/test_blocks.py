"""Blocks on one rank: the same engine as on several, and the result of one piece."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import trisect
from trisect.errors import LayoutError
from trisect.graph.timeline.timeline import Timeline
from trisect.layout import parse_layout
from trisect.nn import build
from trisect.plan.memory import Memory, MemoryModel
from trisect.train import assemble, blocks
from trisect.train.blocks import with_blocks
from trisect.train.fit import Run

LINKS = {"name": "link-prediction", "eval_negatives": 5, "hidden": 8}
CLASSES = {"name": "node-classification", "split": [8, 2, 2]}


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    return Timeline.generate(
        "evolving", vertices=50, steps=12, communities=3, features=5, smoothing={"kind": "edge-life", "length": 3}
    )


def fit(timeline: Timeline, model: str, task: Any, layout: str, **more: Any) -> Run:
    options = {"layers": 2, "hidden": 4, "epochs": 3, "lr": 0.02, "precision": "float64", **more}
    return trisect.fit(model, timeline, task, layout, **options)


@pytest.mark.parametrize("blocks", [2, 5, 7])
@pytest.mark.parametrize(
    ("model", "task", "more"),
    [
        ("cd-gcn", LINKS, {"dropout": 0.2}),
        ("tm-gcn", CLASSES, {"window": 4}),
        ("evolvegcn-o", CLASSES, {}),
        ("evolvegcn-h", LINKS, {}),
        ("gcn", CLASSES, {"dropout": 0.2}),
        ("gcnii", CLASSES, {"dropout": 0.2}),
        ("resgcn+", LINKS, {"dropout": 0.2}),
    ],
)
def test_blocks_have_the_result_of_one_piece(
    timeline: Timeline, model: str, task: Any, more: dict[str, Any], blocks: int
) -> None:
    alone, found = (fit(timeline, model, task, layout, **more) for layout in ("", f"blocks={blocks}"))
    assert (alone.setup.program.plan.blocks, found.setup.program.plan.blocks) == (1, blocks)
    assert found.loss == pytest.approx(alone.loss, rel=1e-10)
    expected, own = alone.model.state_dict(), found.model.state_dict()
    assert expected.keys() == own.keys()
    for name, value in expected.items():
        assert torch.allclose(own[name], value, rtol=1e-8, atol=1e-12), name
    for split, measures in alone.metrics.items():
        for name, value in measures.items():
            if isinstance(value, float):
                assert found.metrics[split][name] == pytest.approx(value, rel=1e-8), (split, name)
    assert torch.allclose(found.embeddings(), alone.embeddings(), rtol=1e-8, atol=1e-12)
    assert found.result.communication["bytes_per_epoch"] == found.result.communication["formula_bytes_per_epoch"] == 0


def test_another_seed_shows(timeline: Timeline) -> None:
    one, other = (fit(timeline, "cd-gcn", LINKS, "blocks=3", seed=seed) for seed in (0, 1))
    assert one.loss != pytest.approx(other.loss, rel=1e-6)


def test_blocks_follow_the_free_memory(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fit(timeline, "cd-gcn", CLASSES, "blocks=auto").setup.program.plan.blocks == 1
    monkeypatch.setattr(assemble, "free_bytes", lambda device: 200_000)
    run = fit(timeline, "cd-gcn", CLASSES, "blocks=auto")
    assert 1 < run.setup.program.plan.blocks <= 8
    assert run.setup.program.mesh.layout.blocks == run.setup.layout.blocks == run.setup.program.plan.blocks
    assert run.loss == pytest.approx(fit(timeline, "cd-gcn", CLASSES, "").loss, rel=1e-10)


def test_no_more_blocks_than_memory_asks_for(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of memory is asked with each number of blocks; of those that fit half of a rank's share, the fewest."""
    model, needs = build("cd-gcn", 5, 3, layers=2, hidden=4), dict[int, float]()

    class Watched(MemoryModel):
        def of(self, plan: Any, device: Any) -> Memory:
            found = super().of(plan, device)
            needs[plan.blocks] = found.total - found.of_data
            return found

    def chosen(free: float, layout: str) -> int:
        return with_blocks(parse_layout(layout), model, timeline, 8, torch.float32, round(free)).block_count

    monkeypatch.setattr(blocks, "MemoryModel", Watched)
    assert chosen(1 << 40, "blocks=auto") == 1
    least = chosen(0, "blocks=auto")
    assert set(needs) == {1, 2, 4, 8}
    assert needs[least] == min(needs.values()) < needs[1]
    assert chosen(2 * needs[2], "blocks=auto") == 2
    assert chosen(2 * needs[2] - 2, "blocks=auto") > 2
    assert chosen(4 * needs[2], "vertex=2,blocks=auto") < chosen(needs[2], "vertex=2,blocks=auto") <= 8
    assert chosen(0, "time=4,blocks=auto") <= 2
    assert chosen(0, "blocks=3") == 3


def test_a_timeline_without_features_has_degrees_in_blocks_too(timeline: Timeline) -> None:
    plain = Timeline.generate("uniform", vertices=40, steps=9, degree=3.0, smoothing={"kind": "edge-life", "length": 2})
    alone, found = (fit(plain, "cd-gcn", LINKS, layout) for layout in ("", "blocks=3"))
    assert found.loss == pytest.approx(alone.loss, rel=1e-10)


def test_more_blocks_than_steps_are_refused(timeline: Timeline) -> None:
    with pytest.raises(LayoutError, match=r"layout\.blocks is 9, but the timeline has 8 training steps"):
        fit(timeline, "cd-gcn", CLASSES, "blocks=9")


@pytest.mark.parametrize("layout", ["blocks=2", "time=2", "vertex=2", "layer=2,blocks=2", "vertex=2,recompute=true"])
def test_a_static_model_with_layers_that_read_no_neighbours_is_cut_too(timeline: Timeline, layout: str) -> None:
    """GCNII begins and ends with layers of that kind, and its first rows are read by all others."""
    alone, found = (fit(timeline, "gcnii", CLASSES, form, dropout=0.2) for form in ("", layout))
    assert found.loss == pytest.approx(alone.loss, rel=1e-10)
    for split, measures in alone.metrics.items():
        for name, value in measures.items():
            if isinstance(value, float):
                assert found.metrics[split][name] == pytest.approx(value, rel=1e-8), (split, name)
    assert found.loss != pytest.approx(fit(timeline, "gcnii", CLASSES, "", dropout=0.2, seed=1).loss, rel=1e-6)


def test_blocks_need_a_timeline() -> None:
    graph = trisect.Graph.generate("community", vertices=60, classes=3)
    with pytest.raises(LayoutError, match=r"layout\.blocks is 2, but the data are one graph"):
        trisect.fit("gcn", graph, layout="blocks=2", epochs=1)
