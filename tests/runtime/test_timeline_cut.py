"""Timelines cut by time, blocks, vertex and layer: every gradient against one process, in real worlds of ranks."""

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

Case = dict[str, Any]

# model, its options, the exchanges that fit it
MODELS: list[tuple[str, Case, tuple[str, ...]]] = [
    ("cd-gcn", {"hidden": 4}, ("carry", "redistribute")),
    ("wd-gcn", {"hidden": 4, "dropout": 0.3}, ("carry", "redistribute")),
    ("evolvegcn-o", {"hidden": 4, "dropout": 0.3}, ("auto",)),
    ("evolvegcn-h", {"hidden": 4}, ("auto",)),
    ("tm-gcn", {"hidden": 4, "window": 3}, ("halo", "carry", "redistribute")),
    ("recurrent", {"hidden": 4, "spatial": "gat", "temporal": "gru", "heads": 2}, ("carry", "redistribute")),
    ("recurrent", {"hidden": 4, "spatial": "sage", "temporal": "gru", "dropout": 0.3}, ("carry", "redistribute")),
]
ALONG = {"evolvegcn-o": "none", "evolvegcn-h": "carry"}


def case(layout: Case, model: str, options: Case, **more: Any) -> Case:
    return {"module": "timeline_cases", "run": "timeline", "layout": layout, "model": model, "options": options, **more}


def every_model(layout: Case, **more: Any) -> list[Case]:
    """Each model with each exchange that fits it."""
    return [
        case({**layout, "temporal": temporal}, model, options, **more)
        for model, options, able in MODELS
        for temporal in able
    ]


def worst(results: list[Case], what: str) -> float:
    return max(result[what] for result in results)


def assert_exact(world: int, cases: list[Case], folder: Path) -> list[list[Case]]:
    found = launch.run_ranks(world, cases, folder)
    for given, results in zip(cases, found, strict=True):
        assert worst(results, "gradient") < 1e-10, given
        assert worst(results, "loss") < 1e-12, given
        assert results[0]["bytes"] == results[0]["formula"], given
        if given.get("evaluate"):
            assert worst(results, "outputs") < 1e-12, given
    return found


def test_blocks_on_one_rank(tmp_path: Path) -> None:
    cases = [
        *every_model({"blocks": 3}, evaluate=True, twice=True),
        *every_model({"blocks": 1}),
        *every_model({"blocks": 1}, steps=1),
        *every_model({"blocks": 7}, fixed=True, aggregated=True)[:1],
    ]
    for results in assert_exact(1, cases, tmp_path):
        assert results[0]["bytes"] == {}


@pytest.mark.parametrize("times", [2, 3, 4])
def test_time(times: int, tmp_path: Path) -> None:
    cases = [*every_model({"time": times}), *every_model({"time": times, "blocks": 3})]
    cases += every_model({"time": times, "blocks": 2}, uneven=True, evaluate=True, twice=True)
    found = assert_exact(times, cases, tmp_path)
    for given, [first, *_] in zip(cases, found, strict=True):
        temporal = given["layout"]["temporal"]
        assert first["along"] == [ALONG.get(given["model"], temporal)] * 2
        if first["along"][0] != "none":
            assert first["bytes"][f"time/{first['along'][0]}"] > 0


def test_time_in_other_forms(tmp_path: Path) -> None:
    cd, tm = MODELS[0][1], MODELS[4][1]
    cases = [
        *every_model({"time": 2, "blocks": 2}, aggregated=True)[:6],
        *every_model({"time": 2, "blocks": 2}, fixed=True),
        *every_model({"time": 2}, steps=2),
        # windows longer than runs and blocks
        case({"time": 2, "blocks": 3, "temporal": "halo"}, "tm-gcn", {**tm, "window": 6}),
        case({"time": 2, "blocks": 3, "temporal": "halo"}, "tm-gcn", {**tm, "window": 6}, uneven=True),
        case({"time": 2, "temporal": "halo"}, "tm-gcn", {**tm, "window": 1}),
        # more chunks than rows
        case({"time": 2, "temporal": "carry", "chunks": 50}, "cd-gcn", cd, vertices=9),
        case({"time": 2, "temporal": "carry", "chunks": 3}, "cd-gcn", {**cd, "layers": 3}),
    ]
    assert_exact(2, cases, tmp_path)


def test_auto_takes_what_moves_least(tmp_path: Path) -> None:
    cases = [case({"time": 2}, model, options) for model, options, _ in MODELS]
    # with a step a rank, a share of the steps is less than the state
    cases.append(case({"time": 2, "blocks": 3}, "wd-gcn", {"hidden": 4}, steps=6))
    found = assert_exact(2, cases, tmp_path)
    along = [results[0]["along"][0] for results in found]
    assert along == ["carry", "carry", "none", "carry", "halo", "carry", "carry", along[-1]]
    for given, results in zip(cases, found, strict=True):
        if given["model"] == "wd-gcn":
            others = [{**given, "layout": {**given["layout"], "temporal": t}} for t in ("carry", "redistribute")]
            (tmp_path / "others").mkdir(exist_ok=True)
            moved = [
                sum(size for key, size in other[0]["bytes"].items() if key.startswith("time"))
                for other in launch.run_ranks(2, others, tmp_path / "others")
            ]
            taken = sum(size for key, size in results[0]["bytes"].items() if key.startswith("time"))
            assert taken == min(moved)


def test_vertex_and_layer(tmp_path: Path) -> None:
    cases = [
        *every_model({"vertex": 2}, evaluate=True),
        *every_model({"vertex": 2, "blocks": 3}),
        *every_model({"layer": 2, "blocks": 3}, evaluate=True, twice=True),
        *every_model({"layer": 2}, steps=1),
        *every_model({"vertex": 2, "blocks": 2}, aggregated=True)[:4],
        *every_model({"vertex": 2, "blocks": 2}, fixed=True),
        *(case({"vertex": 2, "blocks": 2}, model, options, pairs=True) for model, options, _ in MODELS[:3]),
        # fewer rows than a summary has
        case({"vertex": 2}, "evolvegcn-h", {"hidden": 8}, vertices=7),
    ]
    found = assert_exact(2, cases, tmp_path)
    for given, [first, *_] in zip(cases, found, strict=True):
        assert first["bytes"].get("vertex/halo", 0) + first["bytes"].get("layer/activations", 0) > 0, given
        assert ("vertex/summary" in first["bytes"]) == (given["model"] == "evolvegcn-h" and "vertex" in given["layout"])
        assert ("vertex/fetch" in first["bytes"]) == bool(given.get("pairs"))


def test_two_axes(tmp_path: Path) -> None:
    cases = [
        *every_model({"time": 2, "vertex": 2, "blocks": 2}, evaluate=True),
        *every_model({"time": 2, "layer": 2, "blocks": 3}, evaluate=True),
        *every_model({"layer": 2, "vertex": 2, "blocks": 2}),
        *every_model({"time": 2, "vertex": 2}, pairs=True, uneven=True)[:3],
    ]
    assert_exact(4, cases, tmp_path)


def test_all_three(tmp_path: Path) -> None:
    cases = [
        case({"time": 2, "layer": 2, "vertex": 2, "blocks": 2, "temporal": able[0]}, model, options, evaluate=True)
        for model, options, able in (MODELS[0], MODELS[3], MODELS[4])
    ]
    assert_exact(8, cases, tmp_path)


def test_wrong_exchanges_are_seen(tmp_path: Path) -> None:
    cd, tm = MODELS[0][1], MODELS[4][1]
    cases = [
        case({"time": 2, "temporal": "carry"}, "cd-gcn", cd, **{"break": "carry"}),
        case({"time": 2, "temporal": "redistribute"}, "cd-gcn", cd, **{"break": "swap"}),
        case({"time": 2, "temporal": "halo"}, "tm-gcn", tm, **{"break": "send"}),
        case({"vertex": 2}, "cd-gcn", cd, **{"break": "swap"}),
        case({"layer": 2}, "cd-gcn", cd, **{"break": "send"}),
        case({"vertex": 2}, "evolvegcn-h", {"hidden": 4}, **{"break": "swap"}),
    ]
    for given, results in zip(cases, launch.run_ranks(2, cases, tmp_path), strict=True):
        assert worst(results, "gradient") > 1e-5, given


def test_coarse_wires_are_near_and_counted(tmp_path: Path) -> None:
    cases = [
        case({**layout, "wire": wire}, "wd-gcn", {"hidden": 4})
        for wire in ("bfloat16", "int8")
        for layout in ({"time": 2, "temporal": "redistribute"}, {"vertex": 2}, {"layer": 2})
    ]
    for given, results in zip(cases, launch.run_ranks(2, cases, tmp_path), strict=True):
        assert 1e-6 < worst(results, "gradient") < 0.2, given
        assert results[0]["bytes"] == results[0]["formula"], given
