from __future__ import annotations

from typing import Any

import pytest

import trisect
from trisect.graph.graph import Graph
from trisect.nn.models.registry import build
from trisect_bench import layouts


def test_bytes_by_formula(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("TRISECT_DATA", raising=False)
    monkeypatch.setitem(layouts.GRAPHS, "community", {"generate": "community", "vertices": 400})
    found = layouts.run(graphs=["community", "squirrel"], models=["gcn", "gcnii"], layers=8, hidden=10, ranks=[4, 16])
    sizes = {model: worlds["4"] for model, worlds in found["graphs"]["community"]["bytes"].items()}
    assert sizes["gcn"]["pipeline"] == 2 * 3 * 400 * 10 * 4
    assert sizes["gcnii"]["pipeline"] == 2 * sizes["gcn"]["pipeline"]
    assert sizes["gcn"]["halo"] > sizes["gcn"]["hybrid"]
    # seven layers sum over neighbours in an epoch, six of them rows of 10 and the last one its outputs of 8; rows turn
    # into columns and back, forward and backward: 4·N·H·(P-1)/P
    width, weights = 6 * 10 + 8, sum(p.numel() for p in build("gcn", 10, 8, layers=8, hidden=10).parameters())
    assert sizes["gcn"]["redistribute"] == 4 * 400 * width * 3 // 4 * 4 + 4 * (2 * weights * 4 * 3 // 4)
    many = found["graphs"]["community"]["bytes"]["gcn"]["16"]
    assert set(many) == {"halo", "redistribute", "hybrid"}  # 16 stages of 8 layers there cannot be
    assert many["redistribute"] == 4 * 400 * width * 15 // 16 * 4 + 16 * (2 * weights * 4 * 15 // 16)
    assert "squirrel" in found["skipped"]
    layouts.show(found)
    assert "squirrel: left out." in capsys.readouterr().out


def test_attention_cannot_be_redistributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layouts.GRAPHS, "community", {"generate": "community", "vertices": 200})
    found = layouts.run(graphs=["community"], models=["gat", "gcn"], layers=3, hidden=8, ranks=[2])
    sizes = found["graphs"]["community"]["bytes"]
    assert set(sizes["gat"]["2"]) == {"halo", "pipeline"}
    assert set(sizes["gcn"]["2"]) == {"halo", "redistribute", "pipeline"}


def test_which_events_wait() -> None:
    assert layouts.waited_along("0WhF0.5") == "vertex"
    assert layouts.waited_along("0WrB0.5") == "vertex"
    assert layouts.waited_along("1WbF3<0") == "layer"
    assert layouts.waited_along("0PhF0.5") is None
    assert layouts.waited_along("0F0") is None
    assert layouts.waited_along("guard") is None


def test_a_run_moves_the_bytes_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes_of_data = {"vertices": 200, "features": 6, "classes": 8}
    monkeypatch.setitem(layouts.GRAPHS, "community", {"generate": "community", **sizes_of_data})
    found = layouts.run(graphs=["community"], models=["gcn"], layers=3, hidden=6, ranks=[2])
    sizes = found["graphs"]["community"]["bytes"]["gcn"]["2"]
    graph = Graph.generate("community", **sizes_of_data)
    options: dict[str, Any] = {"layers": 3, "hidden": 6, "epochs": 1, "threads": 1, "order": "none", "progress": False}
    moved = {}
    for kind in ("halo", "redistribute"):
        run = trisect.fit("gcn", graph, layout=f"vertex=2,spatial={kind}", **options)
        moved[kind] = run.summary["communication"]["bytes_per_epoch"]
    assert moved == {kind: sizes[kind] for kind in moved}
    assert moved["halo"] != moved["redistribute"]
