"""Every exact cut on the pretend device, in real worlds of ranks, equals the CPU in one process."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SMALL = {"layers": 4, "hidden": 6}
CUTS: dict[int, list[dict[str, Any]]] = {
    2: [
        {"layout": "vertex=2,spatial=halo", "model": "gcn", "options": SMALL},
        {"layout": "vertex=2,spatial=halo", "model": "gat", "options": {**SMALL, "heads": 2}},
        {"layout": "layer=2", "model": "gcnii", "options": SMALL},
        {"layout": "layer=2", "model": "resgcn+", "options": SMALL},
        {"layout": "vertex=2,spatial=halo", "model": "cd-gcn", "data": "timeline"},
        {"layout": "vertex=2,spatial=redistribute", "model": "tm-gcn", "data": "timeline"},
        {"layout": "vertex=2,spatial=halo", "model": "evolvegcn-h", "data": "timeline"},
        {"layout": "time=2,temporal=carry", "model": "cd-gcn", "data": "timeline"},
        {"layout": "time=2", "model": "evolvegcn-o", "data": "timeline"},
    ],
    4: [
        {"layout": "vertex=2,layer=2,spatial=halo", "model": "gcnii", "options": SMALL},
    ],
}
WIRES: list[dict[str, Any]] = [
    {"layout": f"vertex=2,spatial=halo,wire={wire}", "model": "gcn", "options": SMALL, "same": True}
    for wire in ("bfloat16", "int8")
]


@pytest.mark.parametrize("world", CUTS)
def test_exact_cuts_equal_one_process(world: int, tmp_path: Path, ranks: ModuleType, available: None) -> None:
    cases = [{"run": "fitted", "module": "device_cases", **case} for case in CUTS[world]]
    for case, results in zip(cases, ranks.run_ranks(world, cases, tmp_path), strict=True):
        for result in results:
            assert result["loss"] < 1e-10, case
            assert result["parameters"] < 1e-10, case
            assert result["metrics"] < 1e-10, case
            assert result["devices"] == ["sim"], case
            assert result["to_host"] > 0, case


def test_the_comparison_can_fail(tmp_path: Path, ranks: ModuleType, available: None) -> None:
    case = {"run": "fitted", "module": "device_cases", **CUTS[2][0], "broken": {"seed": 1}}
    (results,) = ranks.run_ranks(2, [case], tmp_path)
    assert max(result["loss"] for result in results) > 1e-6


def test_messages_have_the_form_that_they_have_on_the_cpu(tmp_path: Path, ranks: ModuleType, available: None) -> None:
    cases = [{"run": "fitted", "module": "device_cases", **case} for case in WIRES]
    for case, results in zip(cases, ranks.run_ranks(2, cases, tmp_path), strict=True):
        for result in results:
            assert result["loss"] < 1e-10, case
            assert result["parameters"] < 1e-10, case
