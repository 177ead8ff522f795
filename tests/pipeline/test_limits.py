"""Cuts on both sides of every limit at which the library takes another path (`tests/ranks/limits.py`).

Each model goes along the paths of small and of large work, with rows of few and of many numbers, directed edges and
undirected ones, one step a block and several, two parts and three; every gradient against one process.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from itertools import count, product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "ranks"))

from limits import LIMITS

Case = dict[str, Any]

STATIC: dict[str, Case] = {
    "gcn": {"residual": True},
    "gcnii": {},
    "sage": {},
    "resgcn+": {},
    "gin": {"train_eps": True},
    "gat": {"attention_dropout": 0.4},
    "gatv2": {"attention_dropout": 0.4},
    "gine": {"train_eps": True},
    "pyg": {},
}
RECURRENT: list[tuple[str, Case]] = [
    ("recurrent", {"spatial": "gat", "temporal": "gru"}),
    ("recurrent", {"spatial": "gatv2", "temporal": "lstm"}),
    ("recurrent", {"spatial": "gine", "temporal": "lstm", "concat": True}),
    ("recurrent", {"spatial": "sage", "temporal": "gru"}),
]
DYNAMIC: list[tuple[str, Case]] = [
    ("cd-gcn", {}),
    ("wd-gcn", {}),
    ("evolvegcn-o", {}),
    ("evolvegcn-h", {}),
    ("tm-gcn", {"window": 3}),
    *RECURRENT,
]
READS_EDGES = ("gatv2", "gine", "pyg")
# numbers of a row: halos of a step below 64 numbers and above, odd widths, more than one vector
WIDTHS = (4, 18, 66)


def options_of(model: str, options: Case, width: int) -> Case:
    heads = {"heads": 2} if "gat" in model or "gat" in options.get("spatial", "") else {}
    # heads share the width; the others have an odd one
    hidden = width if heads or model == "pyg" else width + width % 4 // 2
    return {"hidden": hidden, "dropout": 0.3, **heads, **options} if model != "pyg" else {"hidden": hidden}


def timeline_cases(world: int) -> list[Case]:
    layouts: dict[int, list[Case]] = {
        2: [{"vertex": 2}, {"vertex": 2, "blocks": 7}],
        3: [{"vertex": 3}, {"vertex": 3, "blocks": 7, "recompute": True}],
        4: [{"vertex": 2, "time": 2, "blocks": 2}, {"vertex": 2, "layer": 2, "blocks": 2, "recompute": True}],
    }
    return _timeline_cases(layouts[world])


def handed_on_cases(world: int) -> list[Case]:
    """States that go from run to run in several messages, block by block."""
    common: Case = {"module": "timeline_cases", "run": "timeline", "evaluate": True, "smallest": 1}
    return [
        {**common, "layout": {**layout, "time": world}, "model": model, "options": options, "limits": limits}
        for model, options in (("cd-gcn", options_of("cd-gcn", {"dropout": 0.3}, 4)), ("tm-gcn", {"hidden": 4}))
        for layout in (
            {"temporal": "carry", "chunks": 3},
            {"temporal": "carry", "chunks": 3, "blocks": 7},
            {"temporal": "redistribute", "blocks": 7, "recompute": True},
        )
        for limits in ("small", "large")
    ]


def whole_rows_cases(world: int) -> list[Case]:
    """Cuts under which no row of a neighbour crosses."""
    return _timeline_cases([{"layer": world, "blocks": 3}, {"time": world, "blocks": 2}])


def _timeline_cases(layouts: list[Case]) -> list[Case]:
    models = [*DYNAMIC, ("pyg", {}), *((name, {**options, "layers": 3}) for name, options in STATIC.items())]
    turn = count()
    cases = []
    for (model, options), layout, limits in product(models, layouts, ("small", "large")):
        if model == "pyg" and "layer" in layout:
            continue
        number = next(turn)
        more = {"merge": "mean"} if model in READS_EDGES or options.get("spatial") in READS_EDGES else {}
        cases.append(
            {
                "module": "timeline_cases",
                "run": "timeline",
                "layout": layout,
                "model": model,
                "options": options_of(model, options, WIDTHS[(number // 2) % 3]),
                "limits": limits,
                "overlap": limits == "large" and "layer" not in layout,
                "symmetric": number // 4 % 2 == 1,
                "evaluate": True,
                "smallest": 1,
                **more,
            }
        )
    return cases


def static_cases(world: int) -> list[Case]:
    layouts: dict[int, list[Case]] = {
        2: [{"vertex": 2}, {"layer": 2}],
        3: [{"vertex": 3}],
        4: [{"vertex": 2, "layer": 2}],
    }
    turn = count()
    return [
        {
            "run": "gradients",
            "layout": layout,
            "model": model,
            "options": options_of(model, {**options, "layers": 3}, WIDTHS[next(turn) % 3]),
            "graph": graph,
            "limits": limits,
            "overlap": limits == "large",
        }
        for model, options in STATIC.items()
        for layout in layouts[world]
        for graph in ("community", "mutual")
        for limits in ("small", "large")
    ]


# of a cut by vertex alone, and of two ranks
BOUNDARY = {"views.boundary.AHEAD", "views.boundary.UNREAD"}
NO_BOUNDARY = BOUNDARY | {"plan.build.AHEAD", "views.door.AHEAD"}
HANDED_ON = {"views.recur._BLOCKS"}
TWO_RANKS = {"comm.sums._SHORT"}
# of timelines, and of graphs
OF_TIMELINES = {"shards.timeline_part._WORTH_IT"}
OF_GRAPHS = {"partition.halo._WORTH_IT", "partition.halo._AT_ONCE", "partition.halo._LANES"}


@pytest.mark.parametrize(
    ("cases_of", "world", "unread"),
    [
        (static_cases, 2, OF_TIMELINES | TWO_RANKS | HANDED_ON),
        (static_cases, 3, OF_TIMELINES | NO_BOUNDARY | HANDED_ON),
        (timeline_cases, 2, OF_GRAPHS | NO_BOUNDARY | TWO_RANKS | HANDED_ON),
        (handed_on_cases, 2, OF_GRAPHS | OF_TIMELINES | BOUNDARY | TWO_RANKS),
        # minutes each; the drawn cases of tests/exact have as many ranks
        pytest.param(whole_rows_cases, 2, None, marks=pytest.mark.slow),
        pytest.param(static_cases, 4, None, marks=pytest.mark.slow),
        pytest.param(timeline_cases, 3, None, marks=pytest.mark.slow),
        pytest.param(timeline_cases, 4, None, marks=pytest.mark.slow),
    ],
)
def test_both_sides_of_every_limit(
    cases_of: Callable[[int], list[Case]], world: int, unread: set[str] | None, tmp_path: Path, ranks: ModuleType
) -> None:
    """Every gradient is that of one process, and each limit is read but those that are `unread` in all cases of a kind;
    together, the fast ones read all.
    """
    cases, consulted = cases_of(world), set[str]()
    for case, results in zip(cases, ranks.run_forks(world, cases, tmp_path, timeout=1200), strict=True):
        for what in ("gradient", "loss", "outputs", "hidden"):
            assert max(result[what] for result in results) < 1e-10, (what, case)
        assert results[0]["bytes"] == results[0]["formula"], case
        compared = {parameter for result in results for parameter in result["compared"]}
        assert sorted(compared) == results[0]["parameters"], case
        consulted.update(*(result["consulted"] for result in results))
    if unread is not None:
        assert consulted == LIMITS.keys() - unread


def test_a_halo_read_from_the_wrong_place_is_seen(tmp_path: Path, ranks: ModuleType) -> None:
    """The halo of steps after the first lies elsewhere: it must not be read as if it followed the own rows."""
    layers = {**options_of("gat", {}, 18), "layers": 3}
    case = {"module": "timeline_cases", "run": "timeline", "layout": {"vertex": 2}, "model": "gat", "options": layers}
    wrong, right = ranks.run_forks(2, [{**case, "break": "follow"}, case], tmp_path)
    assert not max(result["gradient"] for result in wrong) < 1e-5
    assert max(result["gradient"] for result in right) < 1e-10


def test_blocks_of_one_step_leave_what_autograd_saved(tmp_path: Path, ranks: ModuleType) -> None:
    """A halo of few numbers is copied behind the own rows, which the norm of a layer has saved."""
    cases = [
        {
            "module": "timeline_cases",
            "run": "timeline",
            "layout": {"vertex": 2, "blocks": blocks, "recompute": again},
            "model": model,
            "options": {"layers": 3, "hidden": 8, "dropout": 0.3},
            "vertices": 11,
        }
        for model in ("resgcn+", "gcnii", "sage")
        for blocks in (7, 4)
        for again in (False, True)
    ]
    for case, results in zip(cases, ranks.run_forks(2, cases, tmp_path), strict=True):
        assert max(result["gradient"] for result in results) < 1e-10, case


def test_a_fault_that_one_process_has_too_is_seen_behind_a_limit(tmp_path: Path, ranks: ModuleType) -> None:
    """What ranks are compared with takes the library's own limits, and so another path than theirs."""
    case = {"layout": {"vertex": 2}, "model": "gin", "options": {**options_of("gin", {}, 4), "layers": 3}}
    static, timeline = {"run": "gradients"}, {"module": "timeline_cases", "run": "timeline"}
    kinds = product((static, timeline), ("small", "large"))
    cases = [{**case, **kind, "spoil": "pooled", "limits": path} for kind, path in kinds]
    for case, results in zip(cases, ranks.run_forks(2, cases, tmp_path), strict=True):
        assert (max(result["gradient"] for result in results) < 1e-10) == (case["limits"] == "small"), case


def test_limits_are_those_of_the_library() -> None:
    for name, (small, large) in LIMITS.items():
        home, _, constant = name.rpartition(".")
        value = getattr(importlib.import_module(f"trisect.{home}"), constant)
        assert min(small, large) <= value <= max(small, large), name
